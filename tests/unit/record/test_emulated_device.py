"""A record made on a device that stands for a GPU says so everywhere, and counts nowhere as measured."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from repro.board.read import read_entry
from repro.bundle.contents import make_bundle
from repro.bundle.verify import find_emulated, verify
from repro.bundle.verify_files import Verification
from repro.compare.findings import findings
from repro.compare.runs.run_warnings import run_warnings
from repro.core.files import write_model
from repro.core.machine import Machine
from repro.record.environment.gpus import stand_ins
from repro.record.folder import index
from repro.record.folder.store import Record, read_record
from repro.tables.tables import tables
from tests.plans import planned
from tests.records import SUITE, write_record

NAME = "Emulated H100"
LINES = ("Emulated H100, driver 570.00, 16384 MiB", "NVIDIA H100 80GB HBM3, driver 570.00, 81559 MiB")


def made(root: Path, line: str, device: str = "cuda") -> Record:
    text = SUITE.replace("device: cpu", f"device: {device}")
    record = write_record(root, planned(root.parent, text, machine=Machine("cuda", 2, 2)), text)
    write_model(record.folder.environment, record.environment.model_copy(update={
        "device": "cuda", "devices": (line, line)}))
    index.seal(record.folder)
    return read_record(root)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return made(tmp_path / "run", LINES[0])


def test_the_rule_is_how_the_name_begins() -> None:
    assert stand_ins([*LINES, NAME, "cpu"]) == (NAME,)


def test_every_figure_is_labelled_emulated(record: Record) -> None:
    from repro.reporters.page.cells import marks

    assert set(record.origins.values()) == {"emulated"}
    rows = {table.name: table.rows for table in tables(record)}
    assert {row["origin"] for name in ("about", "cells", "comparisons", "trials", "evaluations") for row in rows[name]
            } == {"emulated"}
    assert findings(record).origin == "emulated" and {mark.origin for mark in marks(record).values()} == {"emulated"}


def test_a_warning_a_tag_and_an_export_name_the_device(record: Record) -> None:
    from repro.reporters.mllog_package import system
    from repro.reporters.tracking.run_view import common_tags

    cell = record.plan.cells[0]
    assert [item.title for item in run_warnings(record)] == ["Emulated device"]
    assert common_tags(record, "run", "key", "cell", cell)["repro.label"] == "emulated"
    assert "figures are emulated" in system(record, cell, "x")["sw_notes"]


@pytest.mark.parametrize(("line", "device"), [(LINES[0], "cpu"), (LINES[1], "cuda")], ids=["processor", "real GPU"])
def test_a_trial_on_the_processor_of_that_machine_or_on_a_real_gpu_is_measured(
    tmp_path: Path, line: str, device: str
) -> None:
    record = made(tmp_path / "run", line, device)
    assert set(record.origins.values()) == {"measured"} and not run_warnings(record)
    assert verify(record.folder.root).emulated == () and "EMULATED" not in verify(record.folder.root).text()


def test_verify_and_bundle_say_so_and_a_board_does_not_count_it(record: Record, tmp_path: Path) -> None:
    found = verify(record.folder.root)
    assert found.sound and found.as_json()["emulated"] == [NAME] and f"EMULATED: {NAME} stands" in found.text()
    bundle = make_bundle(record.folder.root, tmp_path / "made.zip", "CC0-1.0")
    assert bundle.emulated == (NAME,)
    crate = json.loads(ZipFile(bundle.path).read("ro-crate-metadata.json"))
    assert any("emulated: Emulated H100" in str(item.get("description")) for item in crate["@graph"])
    entry, _ = read_entry(bundle.path, tmp_path, lambda record: "")
    assert (entry.standing, entry.origin) == ("not verified", "emulated") and "stands for a GPU" in entry.why


def test_a_machine_that_hides_what_its_trials_ran_on_is_a_contradiction() -> None:
    found = Verification("run")
    find_emulated([LINES[1]], ["cpu", "Emulated H100"], found)
    assert found.emulated == ("Emulated H100",)
    assert [item.what for item in found.problems] == [
        "lists no device that stands for a GPU, but trials ran on Emulated H100"]
