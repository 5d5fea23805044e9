"""The mllog package against MLCommons' own tools, on trials that the real command ran."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.core import registry
from repro.core.events import Event
from repro.record.folder.store import Record, read_record
from tests.in_process import succeeded
from tests.plans import suite
from tests.records import Course, make_record

mllog_package = importlib.import_module("repro.reporters.mllog_package")
FOREIGN = ("submission_benchmark",)
"""Rules of common.yaml that require a benchmark of the round."""
NOT_KNOWN = tuple(f"lowest_numerical_precision_in_{place}" for place in ("attn", "linear", "comm"))
"""Fields that round 6.1 requires: attention is not measured, and the invented engine reads none of the others back."""
SUITE = suite("quick", """\
matrix:
  processes: [1, 2]
""", seeds=2, engine="fake", optimizer="{kind: sgd, lr: 0.1, momentum: 0.9}",
    stop="{metric: top1, target: 0.9, max_epochs: 40}", launcher="inline")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run of the real command, its logs written by the real worker."""
    root = tmp_path_factory.mktemp("mllog")
    (root / "suite.yaml").write_text(SUITE)
    succeeded("run", root / "suite.yaml", "--no-mlflow", "--out", root / "run")
    return read_record(root / "run")


@pytest.fixture(scope="module")
def package(ran: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package")
    registry.load("reporter", "mllog")().write(ran, out)
    return out / "mllog"


def complaints(log: Path, ruleset: str, folder: Path, but: tuple[str, ...] = FOREIGN) -> list[str]:
    """Return the checker's findings on a log by the common rules of both kinds, except `but`; warnings count."""
    checker_of = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance",
                                     reason="mlperf-logging is not installed")
    lines, errors = checker_of.mlp_parser.parse_file(str(log), ruleset=ruleset)
    assert not errors and len(lines) == len(log.read_text().splitlines()) > 20
    checker = checker_of.make_checker("training", ruleset, quiet=False, werror=True)
    checker_of.enqueued_configs.clear()
    for name in ("common", "open_common"):
        rules = yaml.load((Path(checker_of.__file__).parent / f"training_{ruleset}/{name}.yaml").read_text(),
                          Loader=yaml.BaseLoader)
        kept = [rule for rule in rules if rule.get("KEY", {}).get("NAME") not in but]
        assert name != "common" or len(kept) > 15
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(kept))
        checker.configured_checks(lines, str(path))
    checker_of.enqueued_configs.clear()
    return [*checker.not_overwritable, *checker.overwritable.values(), *checker.warnings.values()]


@pytest.mark.parametrize(("ruleset", "but"), [
    ("4.1.0", FOREIGN), ("5.0.0", FOREIGN), ("5.1.0", FOREIGN), ("6.1.0", (*FOREIGN, *NOT_KNOWN))])
def test_every_line_parses_and_the_common_rules_pass(
    package: Path, ruleset: str, but: tuple[str, ...], tmp_path: Path
) -> None:
    logs = sorted(package.glob("results/*/*/result_*.txt"))
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"] * 2
    for log in logs:
        assert complaints(log, ruleset, tmp_path, but) == []


def test_the_check_can_fail(package: Path, tmp_path: Path) -> None:
    log = min(package.glob("results/*/*/result_0.txt"))
    for key in ("train_samples", "block_start", "run_stop", "init_stop", "cache_clear"):
        broken = tmp_path / "result_0.txt"
        broken.write_text("".join(line for line in log.read_text().splitlines(True) if f'"{key}"' not in line))
        assert complaints(broken, "5.1.0", tmp_path), key
    assert any("submission_benchmark" in text for text in complaints(log, "5.1.0", tmp_path, ()))


def test_the_workers_log_needs_the_additions(ran: Record, tmp_path: Path) -> None:
    trial = ran.results[0]
    assert any("block_start" in text for text in complaints(ran.folder.log(trial.trial_id, 1), "5.1.0", tmp_path))


@pytest.mark.slow
def test_the_package_checker_finds_no_error(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging", reason="mlperf-logging is not installed")
    ended = subprocess.run([sys.executable, "-m", "mlperf_logging.package_checker", str(package), "training", "5.1.0"],
                           cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "PACKAGE CHECKER FOUND NO ERRORS" in ended.stderr, ended.stderr
    assert "Skipping benchmark: digits" in ended.stderr, "the README says that its rules are passed over"


def test_a_system_description_with_a_field_missing_is_found(package: Path) -> None:
    checker = pytest.importorskip("mlperf_logging.system_desc_checker.system_desc_checker",
                                  reason="mlperf-logging is not installed")
    path = min(package.glob("systems/*.json"))
    for ruleset in ("4.0.0", "5.1.0", "6.1.0"):
        assert checker.check_system_desc(str(path), "training", ruleset)[0]
    data = json.loads(path.read_text())
    assert data.pop("cooling") == "" and data["division"] == "open" and "simulated" in data["sw_notes"]


def test_the_package_can_be_imported_again(package: Path, ran: Record, tmp_path: Path) -> None:
    succeeded("import", "mlperf", package, "--out", tmp_path / "in", "--json")
    lines = [json.loads(line) for line in (tmp_path / "in/results.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok"] * 4
    seconds = sorted(item.tta_wall for item in ran.results if item.tta_wall)
    found = sorted(value for line in lines for value in _numbers(line) if any(abs(value - s) < 0.02 for s in seconds))
    assert len(found) >= 4, "times from run_start to run_stop are those to the target, but for the last logging"


def _numbers(data: Any) -> list[float]:
    if isinstance(data, dict):
        return [value for item in data.values() for value in _numbers(item)]
    if isinstance(data, list):
        return [value for item in data for value in _numbers(item)]
    return [float(data)] if isinstance(data, int | float) and not isinstance(data, bool) else []


def test_additions_are_marked_and_nothing_else_is_changed(package: Path, ran: Record) -> None:
    for result in ran.results:
        folder = mllog_package.folder_name(result.cell_id)
        text = (package / f"results/{folder}/digits/result_{result.repeat}.txt").read_text()
        lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]
        own = [json.loads(line.removeprefix(":::MLLOG "))
               for line in ran.folder.log(result.trial_id, 1).read_text().splitlines()]
        kept = [line for line in lines if line["metadata"].get("x_added") is not True]
        for line in kept:
            for name in line["metadata"].pop("x_added", ()):
                del line["metadata"][name]
        assert kept == own and len(lines) > len(own)


def test_trials_that_did_not_end_are_excluded_by_name(tmp_path: Path) -> None:
    def course(trial: Any) -> Course:
        return Course(crash=trial.repeat == 1, hits_at=None if trial.repeat == 2 else 4)

    record = make_record(tmp_path / "run", course=course, only=20)
    registry.load("reporter", "mllog")().write(record, tmp_path)
    readme = (tmp_path / "mllog/README.md").read_text()
    written = {path.name for path in tmp_path.glob("mllog/results/*/*/*")}
    assert "result_1.txt" not in written and "result_2.txt" in written
    assert readme.count("made to fail") == sum(item.status == "crashed" for item in record.results) > 0
    assert readme.count("has not run") == 4 and "not an MLPerf submission" in readme


def test_a_quality_that_falls_is_also_under_the_key_that_the_rules_know() -> None:
    metadata = {"samples_count": 64, "phases": {"a": float("inf")}}
    event = Event("eval_error", float("nan"), "POINT_IN_TIME", 1.0, metadata)
    first, second = mllog_package.export([event], {})
    assert (first.key, second.key, second.metadata["x_added"]) == ("eval_error", "eval_accuracy", True)
    assert '"value": null' in mllog_package.line(first) and '"a": null' in mllog_package.line(first)


@pytest.mark.parametrize("name", ["../../etc", "/abs", "a/b", "..", "", "a\x00b", "\u202ex", "n" * 10_000])
def test_a_name_is_one_folder_below(name: str, tmp_path: Path) -> None:
    found = mllog_package.folder_name(name)
    assert (tmp_path / found).resolve().parent == tmp_path.resolve() and len(found) <= 120
