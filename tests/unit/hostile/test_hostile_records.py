"""No file of a record leads a byte out of the folders that a verb is given, and every verb ends in one line."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from repro.cli.main import cli
from repro.cli.options import PlaceParam, SuiteParam
from repro.core import door
from tests.hostile_records import (
    OTHERWISE,
    RUN_FILES,
    VERBS,
    Place,
    each_line,
    edit,
    invoke,
    link,
    make_run,
    pack,
    pipe,
    second_name,
)

QUICK = ("resume by force", "verify")
"""The verb that writes most and the one that reads most; the others are tried by `make test-slow`."""
EVERY = [pytest.param(verb, marks=() if verb in QUICK else pytest.mark.slow) for verb in VERBS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    make_run(root)
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    root = tmp_path / "user"
    shutil.copytree(made, root, symlinks=True)
    monkeypatch.chdir(root / "home")
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(root / "data"))
    monkeypatch.setenv("MPLCONFIGDIR", str(root / "data"))  # matplotlib caches its fonts, wherever a record is
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Place(root)


def leaves(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_every_command_that_takes_a_path_is_tried() -> None:
    """A new command is tried with hostile records, or `OTHERWISE` says why not."""
    taking = {name for name, command in leaves(cli)
              if any(isinstance(item.type, PlaceParam | SuiteParam) for item in command.params)}
    tried = {name for name in taking for words in VERBS.values() if " ".join(words).startswith(f"{name} ")}
    assert taking - tried == OTHERWISE.keys()


def try_all(made: Path, place: Place, verb: str, attacks: dict[str, Callable[[Place], None]], codes: set[int]) -> None:
    """Try every attack on a fresh copy of the run."""
    for name, attack in attacks.items():
        shutil.rmtree(place.root / "run")
        shutil.copytree(made / "run", place.root / "run")
        attack(place)
        before = place.untouched()
        code, text = invoke(place, verb)
        assert place.untouched() == before, (name, verb)
        assert code in codes, (name, verb, code, text)
        assert "\n" not in text, (name, text)


@pytest.mark.parametrize("verb", EVERY)
def test_no_link_is_followed(made: Path, place: Place, verb: str) -> None:
    """40 files and folders, each a link to a file or folder of the user."""
    attacks = {name: lambda at, name=name: link(at, name) for name in RUN_FILES}
    assert len(attacks) >= 30
    try_all(made, place, verb, attacks, refusals(verb))


def refusals(verb: str) -> set[int]:
    """An import takes the files that it may open and names the others, as a board and a list do with records; `show`
    reads the suite alone, `clean` looks at the names of files."""
    return {0, 2, 3} if verb.startswith(("import", "board", "list", "show", "clean")) else {2, 3}


def whole(at: Place) -> None:
    """Links to whole runs: what is read looks right."""
    shutil.rmtree(at.root / "run/trials")
    shutil.copytree(at.root / "good/trials", at.root / "home/trials", dirs_exist_ok=True)
    (at.root / "run/trials").symlink_to("../home/trials")


def above(at: Place) -> None:
    shutil.move(at.root / "run/trials", at.root / "home/moved")
    (at.root / "run/trials").symlink_to("../../user/home/moved")


@pytest.mark.parametrize("verb", EVERY)
def test_neither_links_to_sound_files_nor_pipes_are_used(made: Path, place: Place, verb: str) -> None:
    attacks: dict[str, Callable[[Place], None]] = {
        f"pipe {name}": lambda at, name=name: pipe(at, name)
        for name in ("plan.json", "ledger.jsonl", "run.lock", "TRIAL/result_1.txt", "TRIAL/rank0.log")}
    try_all(made, place, verb, {"all trials": whole, "by ..": above, **attacks}, refusals(verb))


@pytest.mark.slow
@pytest.mark.parametrize("verb", EVERY)
def test_a_second_name_of_a_file_is_not_changed(made: Path, place: Place, verb: str) -> None:
    attacks = {name: lambda at, name=name: second_name(at, name) for name in (
        "run.lock", "ledger.jsonl", "incidents.jsonl", "plan.json", "parity.json", "report/report.html",
        "TRIAL/rank0.log", "NEXT/rank0.log", "NEXT/result_1.txt", "NEXT/result_2.txt", "NEXT/trial.json")}
    try_all(made, place, verb, attacks, {0, 1, 2, 3})


@pytest.mark.parametrize("verb", ["report", "compare", "verify", "bundle", "audit"])
def test_a_run_that_others_can_change_is_read_from_a_copy_and_left_as_it_is(
    place: Place, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(place.root / "run")
    shutil.copytree(place.root / "good", place.root / "run")
    (place.root / "run/trials").chmod(0o777)
    copied: list[Path] = []
    copy = door.copy_private

    def noted(root: Path, to: Path) -> None:
        copied.append(root)
        copy(root, to)

    monkeypatch.setattr(door, "copy_private", noted)
    before = {path: path.read_bytes() for path in (place.root / "run").rglob("*") if path.is_file()}
    assert invoke(place, verb) in ((0, ""), (3, "")) and set(copied) == {place.root / "run"}
    assert {path: path.read_bytes() for path in (place.root / "run").rglob("*") if path.is_file()} == before
    assert (place.root / "home/run-report").is_dir() == (verb == "report")


def of_cells(**change: Any) -> Callable[[Place], None]:
    return lambda at: edit(at, "plan.json", lambda plan: [cell.update(change) for cell in plan["cells"]])


def of_suite(**change: Any) -> Callable[[Place], None]:
    return lambda at: edit(at, "plan.json", lambda plan: plan["suite"].update(change))


def of_choices(field: str, value: Any) -> Callable[[Place], None]:
    return lambda at: edit(at, "plan.json", lambda plan: [cell["choices"].update({field: value})
                                                           for cell in plan["cells"]])


TUNED = {"kind": "deepspeed", "stage": 1, "config": {"autotuning": {"enabled": True, "metric_path": "/any/file"}}}
NAMES = {
    "cell ids": of_cells(cell_id="../../home/folder"),
    "cell ids from the root": of_cells(cell_id="/tmp/x"),
    "suite": of_suite(suite="../../home/x"),
    "suite with a slash": of_suite(suite="a/b"),
    "engine": of_choices("engine", {"kind": "../../home/x"}),
    "autotuning": of_choices("engine", TUNED),
    "nvme": of_choices("engine", {"kind": "deepspeed", "stage": 3, "config": {
        "zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "../../home"}}}}),
    "monitor": of_choices("engine", {"kind": "deepspeed", "config": {"csv_monitor": {"output_path": "/any"}}}),
    "launcher": of_choices("launcher", {"kind": "inline", "folder": "../../home"}),
    "workload": of_choices("workload", {"kind": "digits", "path": "/etc/passwd"}),
    "result of ..": lambda at: edit(at, "TRIAL/result.json", lambda one: one.update(trial_id="../../home/folder")),
    "ledger of ..": lambda at: each_line(at, "ledger.jsonl", {"cell_id": "../../home/folder"}),
    "order": lambda at: edit(at, "plan.json", lambda plan: plan.update(order=[[-1, 0], [0, 1 << 40]])),
}


@pytest.mark.parametrize("verb", EVERY)
def test_no_name_in_a_record_leads_out_of_it(made: Path, place: Place, verb: str) -> None:
    try_all(made, place, verb, NAMES, refusals(verb))


@pytest.mark.parametrize("verb", EVERY)
def test_ids_that_are_only_words_do_no_harm(made: Path, place: Place, verb: str) -> None:
    """Ids in lines that no path is made of, and the store that a record claims to be in."""
    stores = {"version": 1, "run": "x", "stores": {"sqlite:////any/file": {"runs": {"../..": {"run_id": "../x"}}}}}
    attacks: dict[str, Callable[[Place], None]] = {
        "trial of the ledger": lambda at: each_line(at, "ledger.jsonl", {"trial_id": "../../home/folder"}),
        "checkpoint of the ledger": lambda at: each_line(at, "ledger.jsonl", {"resumed_from": "../../home/x"}),
        "stores": lambda at: (at.path("tracking.json")).write_text(str(stores).replace("'", '"')) and None,
        "reproduction": lambda at: at.path("reproduction.json").write_text('{"of": "../x", "source": "/x"}') and None,
        "index": lambda at: at.path("sha256sums.txt").write_text(f"{'0' * 64}  ../home/file\n") and None,
    }
    try_all(made, place, verb, attacks, {0, 1, 2, 3})


def member(name: str, kind: int = stat.S_IFREG) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo("x")
    found.filename, found.external_attr, found.create_system = name, (kind | 0o777) << 16, 3
    return found


@pytest.mark.parametrize("verb", ["verify", "reproduce", "reproduce by force", "diff"])
def test_no_member_of_a_bundle_leads_out_of_it(place: Place, verb: str) -> None:
    shutil.rmtree(place.root / "run")
    for name in ("/any/file", "../file", "trials/../../home/file", "trials/x/../../../home/file", "a\\..\\b", "C:/x",
                 "trials//x", "./x", "trials/", "trials/\nx"):
        refused(place, verb, member(name))
    for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK):
        refused(place, verb, member("trials/x", kind))


def refused(place: Place, verb: str, entry: zipfile.ZipInfo) -> None:
    pack(place.root / "good", place.root / "run", [entry])
    before = place.untouched()
    code, text = invoke(place, verb)
    assert place.untouched() == before
    assert code == 2 and "\n" not in text and "nothing was unpacked" in text, (entry.filename, text)


def test_the_sentinels_are_reached_by_what_the_test_plants(place: Place) -> None:
    """The test would see a byte that a link leads out."""
    link(place, "run.lock")
    before = place.untouched()
    with place.path("run.lock").open("a") as stream:
        stream.write("x")
    assert place.untouched() != before
    os.truncate(place.root / "home/file", 0)
