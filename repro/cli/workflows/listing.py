"""The runs of a folder: what ran, its verdicts, its size, how often its question was asked; and what can be removed."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote

from repro.compare.findings import findings
from repro.core.errors import OutputError, ReproError, UsageError, one_line
from repro.core.files import read_model
from repro.record.folder.lock import RunLock
from repro.record.folder.store import TUNING, Record, RunFolder, read_record
from repro.record.questions import answered
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.runner.run import has_begun
from repro.suite.planning.question import question_of
from repro.tables.values import Row, plain
from repro.tables.verdicts import ratio_and_span

RUNS = Path("runs")


def runs_below(folder: Path = RUNS) -> list[Path]:
    """Return the run folders in a folder, by name; a link to one is none."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and any(
        (path / name).is_file() for name in ("plan.json", f"{TUNING}/plan.json")))


def runs_of(places: Sequence[Path]) -> list[Path]:
    """Return the runs that places are or hold, each a folder or a pattern.

    Raises:
        UsageError: there is no such folder.
    """
    found: list[Path] = []
    for place in places:
        matches = [place] if place.is_dir() else sorted(map(Path, glob.glob(str(place))))  # noqa: PTH207  # any base
        if not matches:
            raise UsageError(f"{place}: no such folder")
        for path in matches:
            found += [path] if (path / "plan.json").is_file() else runs_below(path)
    return list(dict.fromkeys(found))


def listed(places: Sequence[Path]) -> Iterator[Row]:
    """Yield one row per run of these places; one that cannot be read has its problem in place of a verdict."""
    for path in runs_of(places) if places else runs_below():
        row: Row = {"name": str(path), "title": "", "started": None, "trials": None, "planned": None, "verdict": "",
                    "times_asked": None, "mib": round(size(path) / (1 << 20), 1)}
        try:
            record = read_record(path)
        except ReproError as error:
            yield row | {"verdict": one_line(str(error))}
            continue
        moment = datetime.fromtimestamp(record.environment.started_ms / 1e3, tz=timezone.utc)
        yield row | {
            "title": plain(record.plan.suite.title or record.plan.suite.suite), "started": f"{moment:%Y-%m-%d %H:%M}",
            "trials": len(record.results), "planned": record.planned, "verdict": verdict_of(record),
            "times_asked": len(answered(question_of(record.plan))) if record.plan.kind == "suite" else None}


def verdict_of(record: Record) -> str:
    """Return the verdict on the declared contrast, else how many contrasts have which."""
    found = findings(record)
    if found.primary is not None:
        ratio, _ = ratio_and_span(found.primary.ratio, None)
        return f"{found.primary.spoken}, {ratio} x" if ratio else found.primary.spoken
    words = [item.spoken for item in found.comparisons]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "no contrast"


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(Path(place, name).lstat().st_size for place, _, names in os.walk(folder) for name in names)


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that can be removed without loss to a record."""

    path: Path
    why: str
    bytes: int


def leftovers(runs: Sequence[Path]) -> Iterator[Leftover]:
    """Yield what can be removed: runs in which nothing ran, compiled code, checkpoints of ended trials, reports of
    complete runs, files of killed writers.

    Raises:
        OutputError: a path is no run folder.
    """
    for root in runs:
        folder = RunFolder(root)
        if not folder.plan.is_file() and not folder.tuning.plan.is_file():
            raise OutputError(f"{root}: is not a run folder (it has no plan.json)")
        if not has_begun(folder) and not has_begun(folder.tuning):
            yield _found(root, "nothing has run in it")
            continue
        for path in (folder.cache, folder.tuning.cache):
            if path.is_dir() and path.parent.resolve().is_relative_to(root.resolve()):
                yield _found(path, "compiled code")
        # A link would lead out of the record, to files of the user.
        trials = [] if folder.trials.is_symlink() else [
            path for path in folder.trials.glob("*") if not path.is_symlink()]
        for trial in trials:
            if (path := trial / "checkpoints").exists() and _stands(folder.result(trial.name)):
                yield _found(path, "checkpoints of a trial that has ended")
        if folder.reports.is_dir() and (root / "sha256sums.txt").is_file():
            yield _found(folder.reports, f"a report: repro report {quote(str(root))} writes it again")
        for path in (*root.glob(".*.tmp"), *(path for trial in trials for path in trial.glob(".*.tmp"))):
            yield _found(path, "the file of a writer that was killed")


def _stands(path: Path) -> bool:
    """Return True if this is a result after which its trial does not run again: no crash, and no hang."""
    try:
        return not meaning(read_model(path, Result).status).reruns
    except OutputError:  # missing or damaged: it runs again
        return False


def _found(path: Path, why: str) -> Leftover:
    return Leftover(path, why, size(path) if path.is_dir() else path.lstat().st_size)


def remove(found: Sequence[Leftover], root: Path) -> None:
    """Remove leftovers of one run, which no other process may be writing.

    Raises:
        OutputError: a process writes this run, or something cannot be removed.
    """
    with RunLock(root).acquire():
        for item in found:
            try:
                if item.path.is_dir() and not item.path.is_symlink():
                    shutil.rmtree(item.path)
                else:
                    item.path.unlink()
            except OSError as error:
                raise OutputError(f"{item.path}: cannot be removed: {error.strerror}") from error
