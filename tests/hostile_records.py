"""A run of the fake engine, the ways in which a stranger could make it harmful, and every verb that takes a record."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from repro.cli.main import cli
from repro.core import registry
from repro.core.errors import ReproError
from tests.in_process import called
from tests.plans import suite

SUITE = suite("invented", """\
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010}
    - {kind: fake, step_seconds: 0.014}
baseline: {engine: {step_seconds: 0.010}}
""", seeds=2, engine="fake", stop="{metric: top1, target: 0.9, max_epochs: 2}", launcher="inline")
VERBS: dict[str, tuple[str, ...]] = {
    "resume": ("run", "--resume", "RUN", "--no-mlflow"),
    "resume by force": ("run", "--resume", "RUN", "--no-mlflow", "--force", "--rerun-failed"),
    "report": ("report", "RUN", "--to", "csv,markdown"),
    "report the rest": ("report", "RUN", "--to", "html,jsonl,mllog,parquet,latex"),
    "report to mlflow": ("report", "RUN", "--to", "mlflow"),
    "reports": ("report", "RUN", "GOOD", "--to", "csv", "--out", "OUT/report"),
    "list": ("list", "runs", "RUN"),
    "compare": ("compare", "RUN"),
    "compare several": ("compare", "RUN", "--against", "GOOD"),
    "compare against": ("compare", "GOOD", "--against", "RUN"),
    "compare markdown": ("compare", "RUN", "--markdown", "OUT/comment.md"),
    "verify": ("verify", "RUN"),
    "reproduce": ("reproduce", "RUN", "--out", "OUT/again"),
    "reproduce by force": ("reproduce", "RUN", "--out", "OUT/again", "--force"),
    "bundle": ("bundle", "RUN", "--out", "OUT/made.zip"),
    "audit": ("audit", "RUN"),
    "diff": ("diff", "GOOD", "RUN"),
    "plan": ("plan", "SUITE", "--pilot", "RUN"),
    "calibrate": ("calibrate", "SUITE", "--from", "RUN"),
    "import": ("import", "mlperf", "RUN", "--out", "OUT/import"),
    "import dawnbench": ("import", "dawnbench", "RUN", "--out", "OUT/import"),
    "import speedrun": ("import", "speedrun", "RUN", "--out", "OUT/import"),
    "board": ("board", "RUN", "--out", "OUT/board"),
    "scores": ("scores", "RUN"),
    "predict": ("predict", "RUN", "--out", "OUT/predict"),
    "advise": ("advise", "SUITE", "--pilot", "RUN"),
    "show": ("show", "RUN/suite.yaml"),
    "clean": ("clean", "RUN", "--yes"),
    "lane": ("lane", "RUN", "1"),
}
OTHERWISE = {"bench comm": "writes only", "data prepare": "reads data, tests/unit/workloads",
             "gate": "reads a suite only", "probe": "writes only", "track": "a run starts it for its own folder",
             "volume create-tasks": "reads volumes, tests/unit/volumes",
             "volume run read": "the same", "volume run write": "the same"}
"""Commands with a path that is no record."""
TRIAL_FILES = ("trial.json", "result.json", "result_1.txt", "rank0.log", "system_1.txt", "lost_1.json", ".x.tmp",
               "checkpoints")
RUN_FILES = ("plan.json", "suite.yaml", "environment.json", "launchers.json", "ledger.jsonl", "incidents.jsonl",
             "parity.json", "run.lock", "tracking.json", "calibration.json", "reproduction.json", "sha256sums.txt",
             ".plan.json.tmp", "parity", "trials", "report", "report/report.html", "report/csv", "TRIAL", "NEXT",
             *(f"TRIAL/{name}" for name in TRIAL_FILES), "NEXT/rank0.log", "NEXT/result_2.txt", "NEXT/.trial.json.tmp")


@dataclass(frozen=True)
class Place:
    """One folder per test: a hostile run, a sound one, a folder for what is made, and everything else of a user."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        return self.root / name

    def path(self, name: str) -> Path:
        """TRIAL is a trial that has ended; NEXT is the one that resuming would run."""
        ended, waiting = trial_folders(self.root / "run")
        return self.root / "run" / name.replace("TRIAL", f"trials/{ended}").replace("NEXT", f"trials/{waiting}")

    def untouched(self) -> dict[str, str]:
        """Everything outside of the folders that a verb is given -> its content."""
        return {name: text for name, text in _listing(self.root) if name.split("/")[0] in ("home", "good")}


def _listing(root: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            plain = path.is_file() and not path.is_symlink()
            yield path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""


def trial_folders(run: Path) -> tuple[str, str]:
    plan = json.loads((run / "plan.json").read_bytes())
    names = [f"{plan['cells'][index]['cell_id']}-s{repeat}" for index, repeat in plan["order"]]
    found = sorted(path.name for path in (run / "trials").iterdir())
    return found[0], next((name for name in names if name not in found), found[-1])


def make_run(root: Path) -> None:
    """`good`: a run of four trials; `run`: the same, interrupted after three."""
    (root / "suite.yaml").write_text(SUITE)
    ended = called("run", root / "suite.yaml", "--no-mlflow", "--out", root / "good")
    assert ended.exit_code in (0, 3), ended.output
    shutil.copytree(root / "good", root / "run")
    last = max((root / "run/trials").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    shutil.rmtree(last)
    (root / "run/sha256sums.txt").unlink()
    ledger = root / "run/ledger.jsonl"
    ledger.write_text("".join(line for line in ledger.read_text().splitlines(True) if last.name not in line))
    home = root / "home"
    (home / "folder/trials").mkdir(parents=True)
    for name in ("file", ".x.tmp", "folder/.x.tmp", "folder/rank0.log", "folder/trials/.x.tmp"):
        (home / name).write_text(f"the user's {name}\n")
    for name in ("plan.json", "result.json", "ledger.jsonl"):
        shutil.copy(next((root / "good").rglob(name)), home / "folder" / name)


def link(place: Place, name: str) -> None:
    path = place.path(name)
    folder = path.is_dir() or name in ("TRIAL", "NEXT", "report", "report/csv", "TRIAL/checkpoints")
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    target = place.home / ("folder" if folder else "file")
    known = place.home / "folder" / path.name
    path.symlink_to(known if known.is_file() else target)


def second_name(place: Place, name: str) -> None:
    """A hard link: a file of the user under a name of the run, with the run's own content, so that it is accepted."""
    path = place.path(name)
    mine = place.home / "mine"
    mine.write_bytes(path.read_bytes() if path.is_file() else b"")
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(mine, path)


def pipe(place: Place, name: str) -> None:
    path = place.path(name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def edit(place: Place, name: str, change: Callable[[Any], None]) -> None:
    path = place.path(name)
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data))


def each_line(place: Place, name: str, change: dict[str, Any]) -> None:
    path = place.path(name)
    path.write_text("".join(json.dumps({**json.loads(line), **change}) + "\n" for line in
                            path.read_text().splitlines()))


def pack(run: Path, to: Path, more: list[zipfile.ZipInfo]) -> None:
    """A zip of a run, as `bundle` lays it out, with hostile members."""
    with zipfile.ZipFile(to, "w") as archive:
        for path in sorted(run.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(run).as_posix())
        for member in more:
            archive.writestr(member, b"hostile")


def invoke(place: Place, verb: str, record: str = "run") -> tuple[int, str]:
    """Run a verb in this process; return its exit code and its error, "" if there was none.

    Raises:
        Exception: anything that the command line does not turn into one line.
    """
    shutil.rmtree(place.root / "out", ignore_errors=True)
    (place.root / "out").mkdir()
    words = {"RUN": place.root / record, "GOOD": place.root / "good", "SUITE": place.root / "suite.yaml"}
    arguments = [str(words.get(item, item)).replace("OUT/", f"{place.root}/out/").replace("RUN/", f"{words['RUN']}/")
                 for item in VERBS[verb]]
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{_store(place)}"} if verb == "report to mlflow" else {}
    return invoke_words(*arguments, **store)[:2]


def invoke_words(*words: str, **variables: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, its error ("" if there was none), and what it printed.

    Raises:
        Exception: anything that the command line does not turn into one line.
    """
    ended = CliRunner().invoke(cli, words, standalone_mode=False, env=variables)
    error = ended.exception
    if isinstance(error, ReproError):
        return int(error.exit_code), str(error), ended.output
    if isinstance(error, click.ClickException):
        return 2, error.format_message(), ended.output
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return ended.exit_code, "", ended.output


def _store(place: Place) -> Path:
    """A fresh MLflow store in the folder for what is made; its tables are made once for a place."""
    empty, used = place.root / "empty.db", place.root / "out/mlflow.db"
    if not empty.exists():
        reporter: Any = registry.load("reporter", "mlflow")
        reporter(tracking_uri=f"sqlite:///{empty}").check()
    shutil.copy(empty, used)
    return used
