"""Complete runs of the real command on invented figures: exact, the same twice, and readable after an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify_ledger import wrong_wash_outs
from repro.compare.design.calibration import Calibration, Null, add, calibration, calibration_of, machine_of
from repro.compare.evidence.drift import doubts
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, read_record
from repro.suite.planning.plan import Plan
from tests.commands import start as start_repro
from tests.in_process import check_json
from tests.plans import suite
from tests.waiting import LONG_SECONDS, until

SUITE = suite("invented", """\
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010}
    - {kind: fake, step_seconds: 0.014}
  processes: [1, 2]
baseline: {engine: {step_seconds: 0.010}}
primary:
  candidate: {engine: {step_seconds: 0.014}, processes: 2}
  baseline: {engine: {step_seconds: 0.010}, processes: 2}
""", seeds=6, engine="fake", stop="{metric: top1, target: 0.9, max_epochs: 40}", launcher="inline")


WASHED = suite("washed", """\
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010}
    - {kind: fake, step_seconds: 0.014}
baseline: {engine: {step_seconds: 0.010}}
primary:
  candidate: {engine: {step_seconds: 0.014}}
  baseline: {engine: {step_seconds: 0.010}}
""", head="wash_out: true\n", seeds=8, engine="fake", stop="{metric: top1, target: 0.9, max_epochs: 40}",
               launcher="inline")


MANY = 100
"""Repeats of a run that is to be interrupted: far more than it gets to."""


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    (folder / "suite.yaml").write_text(SUITE)
    tracking = ["--no-mlflow"] if "MLFLOW_TRACKING_URI" not in variables else []
    return start_repro(folder, "run", "suite.yaml", *tracking, *arguments, **variables)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    process = start(folder, *arguments)
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one suite: `one`, and `two`, of whose suite the user has calibrated verdicts in `data`."""
    folder = tmp_path_factory.mktemp("fake")
    code, out, error = run(folder, "--out", "one", "--json", "--master-seed", "7")
    assert code == 0, error
    check_json(("--json",), out)
    (folder / "one.json").write_text(out)
    place = kept_at(folder / "data", read_record(folder / "one"))
    add(place, calibrated(read_record(folder / "one")))
    process = start(folder, "--out", "two", "--master-seed", "7", XDG_DATA_HOME=str(folder / "data"))
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    (folder / "two.txt").write_text(out)
    return folder


def kept_at(data: Path, record: Record) -> Path:
    return data / "repro" / "calibration" / f"{record.plan.digest}.json"


def calibrated(record: Record) -> Calibration:
    """25 comparisons of a cell with itself, one with the verdict slower."""
    null = {"source": "s", "cell_id": "c", "label": "c", "metric": "tta_wall", "how": "twins", "n": 6, "ratio": 1.0,
            "p": 0.5}
    nulls = [Null(**null | {"source": f"s{index}", "verdict": "slower" if index == 0 else "inconclusive"})
             for index in range(25)]
    return calibration("invented", record.plan.digest, record.plan.method, machine_of(record.environment), nulls)


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return read_record(folder / "one")


def test_every_trial_of_the_plan_has_run_in_its_order(record: Record) -> None:
    assert len(record.plan.order) == 24
    assert [attempt.trial_id for attempt in record.attempts] == [trial.trial_id for trial in record.plan.trials()]
    assert {result.status for result in record.results} == {"ok"}
    assert record.missing() == []


def test_timings_are_recorded_and_exact(record: Record) -> None:
    for result in record.results:
        assert result.tta_wall and result.tta_train and result.tta_cold and result.steps and result.run_seconds
        assert result.tta_train < result.tta_wall <= result.tta_cold  # the fake takes no time to start
        assert result.conservation_error == pytest.approx(0, abs=1e-6)
        assert result.observer_effect == 0
        assert result.warnings == ()
        assert result.samples == result.steps.count * 64
        assert result.run_seconds == pytest.approx(result.tta_wall)
        # an evaluation takes 0.02 s and there is nothing else between the steps
        assert result.tta_wall - result.tta_train == pytest.approx(0.02 * len(result.curve))
        low, high = (0.009, 0.013) if "0.014" not in record.cell(result.cell_id).label else (0.013, 0.017)
        assert low < result.steps.median_seconds < high


def test_the_throughput_is_trained_samples_over_the_wall_clock(record: Record) -> None:
    for result in record.results:
        assert result.samples is not None and result.run_seconds is not None
        assert result.samples_per_second == pytest.approx(result.samples / result.run_seconds)


def test_trials_of_one_seed_are_pairs(record: Record) -> None:
    for repeat in range(6):
        same = [result.hashes for result in record.results if result.repeat == repeat]
        assert len({(item["init_weights"], item["data_order"]) for item in same}) == 1
    assert len({result.hashes["data_order"] for result in record.results}) == 6


def test_two_runs_give_the_same_bytes(folder: Path) -> None:
    one, two = ({path.relative_to(folder / name): path.read_bytes() for path in (folder / name).rglob("result.json")}
                for name in ("one", "two"))
    assert len(one) == 24
    assert one == two
    for name in ("suite.yaml", "parity.json"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()
    plans = [read_record(folder / name).plan for name in ("one", "two")]
    assert plans[0].order_seed != plans[1].order_seed
    assert plans[0] == plans[1].model_copy(update={"order_seed": plans[0].order_seed, "order": plans[0].order})


def test_printed_figures_equal_recorded_ones(folder: Path, record: Record) -> None:
    ended: dict[str, Any] = json.loads((folder / "one.json").read_text())
    assert (ended["exit_code"], ended["trials"], ended["mlflow"]) == (0, {"ok": 24}, None)
    primary = ended["comparisons"][0]
    assert primary["primary"]
    assert (primary["verdict"], primary["n"]) == ("slower", 6)
    assert primary["interval"]["low"] < primary["ratio"] < primary["interval"]["high"]
    assert (folder / ended["report"]).is_file()
    medians = {cell["cell_id"]: cell["median"] for cell in ended["cells"]}
    for cell_id, median in medians.items():
        times = sorted(result.tta_wall or 0 for result in record.of_cell(cell_id))
        assert median == pytest.approx((times[2] + times[3]) / 2)


def test_no_gate_is_needed_and_the_record_says_why(record: Record) -> None:
    assert record.parity == {"needed": False, "why": "no engine of this suite trains a model"}


def test_a_target_that_is_not_reached_is_exit_code_3(tmp_path: Path) -> None:
    engines = {"{kind: fake, miss_probability: 1}": ("missed", "top1 0.4"),
               "{kind: fake, diverge_probability: 1}": ("diverged", "loss or top1 is not finite at step")}
    code, out, error = run(tmp_path, "--out", "run", "--seeds", "2", "-o", f"engine={','.join(engines)}")
    assert code == 3, error
    results = read_record(tmp_path / "run").results
    assert len(results) == 8
    for status, reason in engines.values():
        ended = [result for result in results if result.status == status]
        assert len(ended) == 4
        assert all(result.reason.startswith(reason) for result in ended)
        assert f"4 {status}" in out
    assert all(result.tta_wall is None and result.run_seconds for result in results)
    assert "median not reached" in out


def test_a_trial_that_fails_is_exit_code_1_and_in_the_ledger(tmp_path: Path) -> None:
    code, _, error = run(tmp_path, "--out", "run", "--seeds", "1", "-o", "timeout_seconds=1e-6")
    assert code == 1, error
    record = read_record(tmp_path / "run")
    assert {attempt.status for attempt in record.attempts} == {"timed_out"}
    assert all("time limit" in attempt.reason for attempt in record.attempts)


def test_ctrl_c_is_exit_code_130_and_leaves_a_record(tmp_path: Path) -> None:
    process = start(tmp_path, "--out", "run", "--seeds", str(MANY))
    ledger = tmp_path / "run" / "ledger.jsonl"
    until(lambda: ledger.is_file() and ledger.read_bytes().count(b"\n") >= 11, process)  # two lines an attempt
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    record = read_record(tmp_path / "run")
    assert 5 <= len(record.results) < 4 * MANY
    assert len(record.missing()) == 4 * MANY - len(record.results)
    assert abs(len(record.attempts) - len(record.results)) <= 1
    assert (tmp_path / "run" / "report" / "report.html").is_file()


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_keep_the_report_from_being_written(tmp_path: Path) -> None:
    process = start(tmp_path, "--out", "run", "--seeds", str(MANY))
    ledger = tmp_path / "run" / "ledger.jsonl"
    until(lambda: ledger.is_file() and ledger.read_bytes().count(b"\n") >= 11, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "interrupted by Ctrl-C; reporting the completed trials" not in process.stderr.readline():
        assert process.poll() is None  # before that, a second one kills
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        if (tmp_path / "run" / "report" / "report.html").is_file():
            break
        time.sleep(0.02)
    _, error = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode in (130, -signal.SIGINT), error  # a signal may also hit the interpreter's own end
    assert "ending: the report is being written" in error
    assert (tmp_path / "run" / "report" / "report.html").read_text().rstrip().endswith("</html>")


@pytest.mark.slow
def test_an_impossible_tracking_store_is_reported_early_and_the_run_continues(tmp_path: Path) -> None:
    process = start(tmp_path, "--out", "run", "--seeds", "1", MLFLOW_TRACKING_URI="foo://somewhere/x")
    _, error = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode == 0, error
    said = error.index("mlflow: foo://somewhere/x: MLflow has no tracking store of this scheme")
    assert "the run continues without it" in error
    assert said < error.index("seed 0: ok"), "before the first trial has ended"
    assert error.rstrip().endswith("--to mlflow"), "and how to send it later"


def test_the_users_calibration_is_stored_next_to_the_run(folder: Path, record: Record) -> None:
    """The page, the end of the run and `repro compare` say the same rate, also where the data folder is another one."""
    kept, run_folder = calibrated(record), folder / "two"
    assert f"calibrated: {kept.sentence()}" in (folder / "two.txt").read_text()
    assert (run_folder / "calibration.json").read_bytes() == kept_at(folder / "data", record).read_bytes()
    assert f"Calibrated:</b> {kept.sentence()}" in \
        (run_folder / "report" / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    again = calibration_of(read_record(run_folder))
    assert again == kept
    assert (folder / "one" / "calibration.json").exists() is False
    assert json.loads((folder / "one.json").read_text())["calibration"] is None


@pytest.mark.slow
def test_a_damaged_calibration_does_not_cost_the_report(folder: Path, record: Record, tmp_path: Path) -> None:
    place = kept_at(tmp_path, record)
    place.parent.mkdir(parents=True)
    place.write_text("{")
    process = start(folder, "--out", "four", XDG_DATA_HOME=str(tmp_path))
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "not calibrated" in out
    page = (folder / "four" / "report" / "report.html").read_text()
    assert "the calibration of this suite was not copied into the run folder" in page


def washed(folder: Path, *words: str) -> str:
    """Run a command that must succeed next to the suite that washes out, and return its progress."""
    (folder / "washed.yaml").write_text(WASHED)
    process = start_repro(folder, *words)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, out + error
    return error


@pytest.mark.slow
def test_both_trials_of_every_pair_follow_the_same_cell_where_the_suite_washes_out(tmp_path: Path) -> None:
    error = washed(tmp_path, "run", "washed.yaml", "--no-mlflow", "--out", "run")
    found = read_record(tmp_path / "run")
    before, expected = None, list[tuple[str, int]]()
    for trial in found.plan.trials():
        if before is None or (before.repeat != trial.repeat and before.cell_id != trial.cell_id):
            expected.append((trial.cell_id, trial.repeat))
        before = trial
    assert [(item.cell_id, item.repeat) for item in found.wash_outs] == expected, error
    assert error.count("wash-out: an unmeasured trial of ") == len(expected) >= 1
    assert {item.attempt for item in found.attempts} == {1} and len(found.attempts) == 16
    one, two = (cell.cell_id for cell in found.plan.cells)
    doubted = doubts(found.plan, found.results, found.execution)
    assert doubted.carry(one, two).parts == dict.fromkeys(range(8), 0.0) and not doubted.apart(one, two)
    assert not list((tmp_path / "run").rglob("*wash*")), "nothing of them is kept"
    assert f"{len(expected)} unmeasured trials ran in addition" in (tmp_path / "run/report/report.html").read_text()
    washed(tmp_path, "verify", "run")
    check_that_wash_outs_are_verified(found)


def check_that_wash_outs_are_verified(found: Record) -> None:
    """A line of the ledger that is missing, invented or moved is a contradiction."""
    plan, attempts, ran = found.plan, found.attempts, found.wash_outs

    def told(*wash_outs: Attempt, plan: Plan = plan) -> str:
        return " ".join(wrong_wash_outs(plan, attempts, wash_outs, ()))

    assert told(*ran) == ""
    assert "no wash-out is listed before" in told(*ran[1:])
    other = next(item for item in attempts if item.trial_id not in {one.trial_id for one in ran})
    invented = other.model_copy(update={"attempt": 0, "status": "wash_out", "started_ms": other.started_ms - 1})
    assert "is not where the order of the starts has one" in told(*ran, invented)
    moved = ran[0].model_copy(update={"started_ms": attempts[-1].started_ms + 1})
    assert "is not where the order of the starts has one" in told(moved, *ran[1:])
    for changed in ({"seconds": 999.0}, {"seconds": 0.0}):
        assert "had not ended when its trial began" in told(ran[0].model_copy(update=changed), *ran[1:])
    crashed = ran[0].model_copy(update={"status": "crashed"})
    assert "is no wash-out that the suite declares" in told(crashed, *ran[1:])
    plain = plan.model_copy(update={"suite": plan.suite.model_copy(update={"wash_out": False})})
    assert "is no wash-out that the suite declares" in told(*ran, plan=plain)


@pytest.mark.slow
def test_a_wash_out_that_fails_is_a_warning_about_its_seed(tmp_path: Path) -> None:
    """A program that fails when it is started for the first time."""
    (tmp_path / "train.py").write_text(
        "import pathlib, sys, time\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "if not seen.exists():\n    seen.touch()\n    sys.exit('no room')\n"
        "time.sleep(0.05)\nprint('epoch 1 loss', 1 + float(sys.argv[1]) % 97 / 1000)\n")
    (tmp_path / "suite.yaml").write_text("""\
suite: failing
seeds: 2
wash_out: true
trial:
  engine: {kind: program, run: [python, train.py, "{seed}", "{way}"]}
  evaluation: {pattern: 'epoch (?P<epoch>\\d+) loss (?P<value>\\S+)', metric: loss, direction: lower}
  stop: {target: 2.0}
  timeout_seconds: 60
  parameters: {way: 1}
matrix: {parameters.way: [1, 2]}
""")
    process = start_repro(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, out + error
    assert "warning: the unmeasured trial before this one failed" in error
    found = read_record(tmp_path / "run")
    assert [item.kind for item in found.incidents] == ["wash_out"] and {item.status for item in found.results} == {"ok"}
    assert "Wash-out failed" in (tmp_path / "run" / "report" / "report.html").read_text()
    washed(tmp_path, "verify", "run")


@pytest.mark.slow
def test_a_resumed_run_washes_out_before_its_first_trial(tmp_path: Path) -> None:
    washed(tmp_path, "run", "washed.yaml", "--no-mlflow", "--out", "run")
    found = read_record(tmp_path / "run")
    last = list(found.plan.trials())[-1]
    assert last.trial_id not in {item.trial_id for item in found.wash_outs}, "it is the second of its block"
    found.folder.result(last.trial_id).unlink()
    washed(tmp_path, "run", "--resume", "run", "--no-mlflow", "--force")
    assert last.trial_id in {item.trial_id for item in read_record(tmp_path / "run").wash_outs}
