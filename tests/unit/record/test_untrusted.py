"""Defects that fuzzing found in records and suites, one test each: once a traceback, a hang or gigabytes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.core import registry
from repro.core.errors import LONGEST_MESSAGE, OutputError, ReproError, SuiteError
from repro.core.files import MAX_JSON_BYTES
from repro.core.yaml_file import YamlFile
from repro.record.folder import index
from repro.record.folder.store import read_record
from repro.suite.planning.matrix import MAX_CELLS
from tests.plans import plan_file, planned
from tests.records import SUITE, make_record

SMALL = SUITE.replace("seeds: 6", "seeds: 2").replace("processes: [1, 2]", "processes: [2]")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = make_record(tmp_path_factory.mktemp("hostile") / "run", SMALL)
    index.seal(record.folder)
    return record.folder.root


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def result_file(run: Path) -> Path:
    return sorted(run.glob("trials/*/result.json"))[0]


# ---- suites


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("!!timestamp x", "'x' is not a valid timestamp"),
        ("!!bool x", "'x' is not a valid bool"),
        ("!!int ''", "'' is not a valid int"),
        ("!!int x", "'x' is not a valid int"),
        ("2024-13-45", "'2024-13-45' is not a valid timestamp"),
        ("!!float x", "'x' is not a valid float"),
        ('"\\ud800"', "a lone surrogate"),
        ("1" + ":10" * 80_000, "a number of more than 100 characters"),
        ("9" * 5000, "a number of more than 100 characters"),
        ("0x" + "f" * 200, "a number of more than 100 characters"),
    ],
)
def test_scalars_that_break_the_yaml_library_are_one_line(value: str, problem: str) -> None:
    began = time.process_time()
    with pytest.raises(SuiteError, match=r"not valid YAML|a number of") as caught:
        YamlFile("s.yaml", f"seeds: 1\na: {value}\n")
    assert problem in str(caught.value)
    assert str(caught.value).startswith("s.yaml:2: ")
    assert time.process_time() - began < 30, "a number is not computed"


def test_a_matrix_without_end_is_refused_before_it_is_multiplied(tmp_path: Path) -> None:
    factors = "".join(f"  optimizer.x{number}: [{', '.join(map(str, range(100)))}]\n" for number in range(20))
    (tmp_path / "s.yaml").write_text(SMALL.replace("matrix:\n", f"matrix:\n{factors}"))
    with pytest.raises(SuiteError, match=rf"more than 2\^63 combinations; at most {MAX_CELLS} are allowed") as caught:
        plan_file(tmp_path / "s.yaml")
    assert "s.yaml:" in str(caught.value)


def test_exclusions_without_end_are_refused(tmp_path: Path) -> None:
    levels = ", ".join(str(0.001 * (number + 1)) for number in range(1000))
    excluded = "exclude:\n" + "  - {processes: 3}\n" * 600
    with pytest.raises(SuiteError, match="600 exclusions of 2000 combinations"):
        planned(tmp_path, SMALL.replace("matrix:\n", f"matrix:\n  optimizer.lr: [{levels}]\n") + excluded)


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\ud800b", "a\u2028b", "x" * 10_000])
def test_messages_that_quote_strangers_are_one_line_that_any_terminal_shows(text: str) -> None:
    shown = str(ReproError(text))
    assert shown.isprintable()
    assert len(shown) <= LONGEST_MESSAGE + 10
    shown.encode()


# ---- records


def order(plan: Any, entry: list[int]) -> None:
    plan["order"].append(entry)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda plan: order(plan, [99, 0]), "order: names a trial twice, or one that is of no cell"),
        (lambda plan: order(plan, [-1, 0]), "order: names a trial twice, or one that is of no cell"),
        (lambda plan: order(plan, plan["order"][0]), "order: names a trial twice, or one that is of no cell"),
        (lambda plan: plan["cells"].append(plan["cells"][0]), "cells: must name at least one cell, and none twice"),
        (lambda plan: plan.update(cells=[], order=[]), "cells: must name at least one cell, and none twice"),
        (lambda plan: plan["cells"][0].update(cell_id="../../x"), "is not what its name says"),
        (lambda plan: plan.update(digest="../../../../etc/passwd"), "digest: String should match pattern"),
    ],
)
def test_plans_that_do_not_hold_together(run: Path, change: Callable[[Any], None], problem: str) -> None:
    edit(run / "plan.json", change)
    with pytest.raises(OutputError) as caught:
        read_record(run)
    assert problem in str(caught.value)
    assert not verify(run).sound


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, 10**30, -(10**400)])
def test_figures_that_no_run_gives(run: Path, value: float) -> None:
    edit(result_file(run), lambda data: data.update(samples_per_second=value))
    with pytest.raises(OutputError, match=r"result\.json: .*(no run writes|Invalid|valid number|finite|too large)"):
        read_record(run)
    assert not verify(run).sound


def test_a_result_in_the_place_of_another(run: Path) -> None:
    one, other = sorted(run.glob("trials/*/result.json"))[:2]
    shutil.copyfile(one, other)
    with pytest.raises(OutputError, match="is the result of another trial"):
        read_record(run)


def test_a_ledger_of_another_run(run: Path) -> None:
    line = json.loads((run / "ledger.jsonl").read_text().splitlines()[0])
    with (run / "ledger.jsonl").open("a") as stream:
        stream.write(
            json.dumps({**line, "cell_id": "another"}) + "\n"
            if line["attempt"] != 1
            else json.dumps({**line, "cell_id": "another", "trial_id": "another"}) + "\n"
        )
    with pytest.raises(OutputError, match=r"ledger\.jsonl: names a cell that the plan does not have: another"):
        read_record(run)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"needed": ' + "[" * 5000, "Invalid JSON"),
        ('{"needed": true, "findings": 5}', "findings: "),
        ('{"needed": true, "findings": [{"group": "g"}]}', "findings.0.reference: Field required"),
        ('{"needed": true, "why": "\\ud800"}', "Invalid JSON"),
    ],
)
def test_a_gate_that_is_none(run: Path, text: str, problem: str) -> None:
    (run / "parity.json").write_text(text)
    with pytest.raises(OutputError, match=r"parity\.json: ") as caught:
        read_record(run)
    assert problem in str(caught.value)
    assert not verify(run).sound


@pytest.mark.parametrize("name", ["environment.json", "parity.json", "ledger.jsonl", "plan.json", "launchers.json"])
def test_a_pipe_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    if name == "environment.json":
        with pytest.raises(OutputError, match="no plain file"):
            read_record(run)
    try:
        assert not verify(run).sound
    except OutputError as error:
        assert name == "plan.json" and "neither" in str(error)  # noqa: PT017  # the others are found wanting


def test_a_file_of_gigabytes_is_not_read(run: Path) -> None:
    with result_file(run).open("wb") as stream:
        stream.truncate(1 << 36)  # takes no room on the disk
    with pytest.raises(OutputError, match=f"is larger than {MAX_JSON_BYTES >> 20} MiB"):
        read_record(run)


def test_preloading_that_took_longer_than_anything(run: Path) -> None:
    (run / "launchers.json").write_text(json.dumps({"preload_seconds": 10**400}))
    with pytest.raises(OutputError, match="preload_seconds"):
        read_record(run)


@pytest.mark.parametrize(
    "damage", [('"samples_count": 1', '"samples_count": [], "x": 1'), ('"value": 0.9', '"value": NaN, "x": 0.9')]
)
def test_a_log_that_cannot_be_exported_is_reported(run: Path, tmp_path: Path, damage: tuple[str, str]) -> None:
    record = read_record(run)
    log = record.folder.log(record.results[0].trial_id, 1)
    log.write_text(log.read_text().replace(*damage))
    paths = registry.load("reporter", "mllog")().write(record, tmp_path)
    assert len(paths) >= len(record.results)
    json.dumps(paths)
