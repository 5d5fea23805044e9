"""Records written by version 0.1.0: verified, compared, audited, reported and resumed as that version did.

`tests/data/records-0.1.0/golden` holds the figures, verdicts and outcomes of rules that 0.1.0 computed from each.
It holds no sentences, so that a message may be reworded.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.archive import unpack
from repro.cli.main import main
from repro.core.machine import Machine
from repro.record.folder.resume import plan_differences, reopen

STORED = Path(__file__).parents[2] / "data" / "records-0.1.0"
NAMES = ("quickstart", "outcomes", "resumed", "interrupted", "calibrated", "reproduction")
Command = Callable[..., tuple[int, str, str]]


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORED / "golden" / f"{name}.json").read_text())
    return found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every stored record as a run folder."""
    place = tmp_path_factory.mktemp("records")
    for name in (*NAMES, "unfinished"):
        (place / name).mkdir()
        unpack(STORED / f"{name}.zip", place / name)
    return {path.name: path for path in place.iterdir()}


@pytest.fixture
def repro(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command in this process: arguments in; exit code, stdout and stderr out."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # no calibration of the user's own

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["repro", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        shown = capsys.readouterr()
        return int(code or 0), shown.out, shown.err

    return run


def missing(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yield every figure of `expected` that `found` lacks or has otherwise; `found` may hold more."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            if key in found:
                yield from missing(value, found[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: not there"
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from missing(one, other, f"{place}[{number}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(expected, found, rel_tol=1e-9):
            yield f"{place}: {found}, was {expected}"
    elif expected != found:
        yield f"{place}: {found}, was {expected}"


@pytest.mark.parametrize("name", NAMES)
def test_the_bundle_is_sound(name: str, repro: Command) -> None:
    code, out, _ = repro("verify", STORED / f"{name}.zip", "--json")
    found = json.loads(out)
    assert code == 0 and found["sound"] and found["problems"] == []
    assert found["identity"] == golden(name)["identity"]


@pytest.mark.parametrize("name", NAMES)
def test_compare_gives_the_same_figures(name: str, unpacked: dict[str, Path], repro: Command) -> None:
    expected = golden(name)["compare"]
    code, out, _ = repro("compare", unpacked[name], "--json")
    assert code == expected["exit_code"]
    assert list(missing(expected, json.loads(out))) == []


LENIENT = {"F6": "pass", "F9": "not applicable", "HB11": "not applicable"}
"""Rules about links, which accused records whose ranks were on one machine."""


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_has_the_same_outcome(name: str, unpacked: dict[str, Path], repro: Command) -> None:
    expected = golden(name)["audit"]
    code, out, _ = repro("audit", unpacked[name], "--json")
    found = json.loads(out)
    verdicts = {item["id"]: item["verdict"] for item in found["findings"]}
    newer = {name: verdict for name, verdict in verdicts.items() if name not in expected["verdicts"]}
    wanted = {name: LENIENT.get(name, verdict) if verdict == "fail" else verdict
              for name, verdict in expected["verdicts"].items()}
    assert {name: verdicts[name] for name in expected["verdicts"]} == wanted
    assert set(newer.values()) <= {"not applicable"}, "a rule that is newer than a record accuses it of nothing"
    assert (code, sorted(found["required_failed"])) == (expected["exit_code"], expected["required_failed"])


@pytest.mark.parametrize("name", NAMES)
def test_every_report_is_written(name: str, unpacked: dict[str, Path], repro: Command, tmp_path: Path) -> None:
    code, out, err = repro("report", unpacked[name], "--to", "csv,jsonl,markdown,html", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert all(Path(line).is_file() for line in out.splitlines())
    rows = Counter(json.loads(line)["table"] for line in (tmp_path / "report.jsonl").read_text().splitlines())
    expected = golden(name)["rows"]
    assert {table: rows[table] for table in expected} == expected
    cells = golden(name)["compare"]["cells"]
    with (tmp_path / "csv" / "cells.csv").open(newline="") as stream:
        table = [(row["cell_id"], row["ok"]) for row in csv.DictReader(stream)]
    assert table == [(cell["cell_id"], str(cell["ok"])) for cell in cells]
    title = json.loads((unpacked[name] / "plan.json").read_text())["suite"]["title"]
    assert title in (tmp_path / "report.md").read_text()
    assert title in (tmp_path / "report.html").read_text()


def test_a_calibration_is_read_next_to_a_record_of_its_suite(
    unpacked: dict[str, Path], repro: Command, tmp_path: Path
) -> None:
    record = tmp_path / "quickstart"
    shutil.copytree(unpacked["quickstart"], record)
    shutil.copy(STORED / "cal.json", record / "calibration.json")
    found = json.loads(repro("compare", record, "--json")[1])["calibration"]
    stored = json.loads((STORED / "cal.json").read_text())
    assert {key: found[key] for key in ("n", "false_positives", "rate", "nulls")} == {
        key: stored[key] for key in ("n", "false_positives", "rate", "nulls")}


def test_a_calibration_of_another_suite_is_not_used(
    unpacked: dict[str, Path], repro: Command, tmp_path: Path
) -> None:
    record = tmp_path / "outcomes"
    shutil.copytree(unpacked["outcomes"], record)
    shutil.copy(STORED / "cal.json", record / "calibration.json")
    assert json.loads(repro("compare", record, "--json")[1])["calibration"] is None


def test_the_stored_calibration_follows_from_its_run(
    unpacked: dict[str, Path], repro: Command, tmp_path: Path
) -> None:
    made = tmp_path / "cal.json"
    suite = unpacked["calibrated"] / "suite.yaml"  # the bundled one has other cells by now
    code, _, err = repro("calibrate", suite, "--from", unpacked["calibrated"], "--to", made, "--json")
    assert code == 0, err
    stored = json.loads((STORED / "cal.json").read_text())
    assert list(missing(stored, json.loads(made.read_text()))) == []


def test_the_plan_of_an_unfinished_run_is_made_alike_today(unpacked: dict[str, Path]) -> None:
    _, plan = reopen(unpacked["unfinished"])
    assert plan_differences(plan, Machine("cpu", 0, 2)) == []


@pytest.mark.parametrize("name", [*NAMES, "unfinished"])
def test_a_record_of_method_1_is_verified_by_its_rules_and_says_so(
    unpacked: dict[str, Path], repro: Command, name: str
) -> None:
    assert "method 1.0: verified by its rules" in repro("verify", unpacked[name])[1]


def test_an_order_that_was_chosen_is_found(unpacked: dict[str, Path], repro: Command, tmp_path: Path) -> None:
    shutil.copytree(unpacked["quickstart"], tmp_path / "moved")
    plan = json.loads((tmp_path / "moved" / "plan.json").read_text())
    plan["order"][4], plan["order"][5] = plan["order"][5], plan["order"][4]
    (tmp_path / "moved" / "plan.json").write_text(json.dumps(plan))
    code, out, _ = repro("verify", tmp_path / "moved")
    assert code != 0
    assert "order is not the one that its master_seed 20151102 gives: it differs from trial 5 on" in out


def test_an_unfinished_run_is_refused_in_one_line_on_another_machine_or_commit(
    unpacked: dict[str, Path], repro: Command, tmp_path: Path
) -> None:
    record = tmp_path / "unfinished"
    shutil.copytree(unpacked["unfinished"], record)
    before = {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    code, _, err = repro("run", "--resume", record, "--no-mlflow")
    last = err.strip().splitlines()[-1]
    assert code == 2 and last.startswith("error: ")
    assert "--force" in last and "Traceback" not in err
    assert {path: path.read_bytes() for path in record.rglob("*") if path.is_file()} == before
