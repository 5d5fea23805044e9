"""Signals that end a run, in this process on invented figures: named, and no moment that loses the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.contents import make_bundle
from repro.bundle.verify import verify
from repro.cli.text.suite import ended_text
from repro.cli.workflows import calibrate, reproduce
from repro.cli.workflows import run as cli_run
from repro.cli.workflows.progress import TerminalWatcher
from repro.cli.workflows.run import Ended, resume_suite, run_suite
from repro.core.errors import Interrupted, OutputError, ParityError, UsageError, interrupter
from repro.core.machine import Machine
from repro.launchers.processes import node_launch
from repro.record.environment import environment
from repro.record.folder import index, resume
from repro.record.folder.lock import RunLock
from repro.record.folder.store import Record, read_record
from repro.runner import preflight
from repro.runner import run as runner_run
from repro.runner.launching import Launchers
from repro.runner.run import Run
from repro.runner.signals import Interrupts, raise_dropped
from repro.runner.trials import Trials
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan
from tests.unit.record.scripted_runs import invented

MACHINE = Machine(device="cpu", device_count=0, cores=2)
Begin = Callable[[], Ended]


def send(number: int = signal.SIGINT) -> None:
    """A signal to this very process; Python's handler has run when this returns."""
    os.kill(os.getpid(), number)


class Page:
    """The report in short: the real page takes seconds."""

    def write(self, record: Record, out: Path) -> list[str]:
        out.mkdir(exist_ok=True)
        (out / "report.html").write_text(" ".join(item.reason for item in record.attempts) + "</html>")
        return [str(out / "report.html")]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace slow parts that are not under test."""
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> Begin:
    """Run a suite of four trials into the folder `run`, as `repro run` does."""
    for place in (cli_run, reproduce):
        monkeypatch.setattr(place, "detect", lambda: MACHINE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(cli_run, "reporter", lambda _: Page())
    (tmp_path / "suite.yaml").write_text(invented())
    source = read_suite(str(tmp_path / "suite.yaml"), ())
    plan = make_plan(source.suite, MACHINE, source.problem)
    return lambda: run_suite(plan, source.text, tmp_path / "run", track=False)


def after(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, count: int, number: int = signal.SIGINT) -> None:
    """Let the signal arrive at the end of the `count`-th call of a function; warnings of the machine do not count."""
    real, calls = getattr(place, name), [0]

    def called(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        warned = any(isinstance(item, str) and item.startswith("warning: ") for item in arguments)
        calls[0] += not warned
        if calls[0] == count and not warned:
            send(number)
        return found

    monkeypatch.setattr(place, name, called)


# ---- which signal it was


@pytest.mark.parametrize(("number", "name"), [
    (signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"),
    pytest.param(signal.SIGHUP, "SIGHUP", marks=pytest.mark.slow),
])
def test_the_ledger_the_terminal_and_the_report_name_the_signal(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int,
    name: str,
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here, as under nohup, and stays so")
    after(monkeypatch, Launchers, "launch", 2, number)
    ended = begin()
    assert ended.exit_code == 130
    attempts = read_record(tmp_path / "run").attempts
    assert [(item.status, item.reason) for item in attempts] == [("ok", ""), ("interrupted", name)]
    said = " ".join(capsys.readouterr().err.split())
    assert f"interrupted by {name}; reporting the completed trials; resume with: " in said
    assert "run --resume" in said
    assert name in (tmp_path / "run" / "report" / "report.html").read_text()


@pytest.mark.parametrize(("error", "name"), [
    (KeyboardInterrupt(), "Ctrl-C"), (Interrupted(signal.SIGINT), "Ctrl-C"), (Interrupted(signal.SIGTERM), "SIGTERM"),
    (Interrupted(4000), "signal 4000"),
])
def test_every_interrupt_names_its_signal(error: KeyboardInterrupt, name: str) -> None:
    assert interrupter(error) == name


def test_a_signal_while_the_start_is_written_down_is_named_too(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(monkeypatch, runner_run.RunFolder, "append_attempt", 3, signal.SIGTERM)
    assert begin().exit_code == 130
    last = read_record(tmp_path / "run").attempts[-1]
    assert (last.status, last.reason) == ("interrupted", "SIGTERM")


# ---- no moment without a report


@pytest.mark.parametrize(("place", "name", "count"), [
    (Run, "execute", 1), (TerminalWatcher, "stage", 2), (index, "seal", 1), (Interrupts, "finish", 1),
    *(pytest.param(*case, marks=pytest.mark.slow)
      for case in ((cli_run, "exit_code", 1), (runner_run, "read_record", 2), (Launchers, "close", 1))),
])
def test_a_signal_after_the_last_trial_leaves_record_and_report(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, count: int
) -> None:
    after(monkeypatch, place, name, count)
    ended = begin()
    # Once only the report is left to be written, a signal is answered and changes nothing.
    assert ended.exit_code == (0 if name in ("finish", "stage", "exit_code") else 130)
    record = read_record(tmp_path / "run")
    assert record.missing() == [] and ended.trials == {"ok": 4}
    assert (tmp_path / "run" / "report" / "report.html").read_text().rstrip().endswith("</html>")
    assert verify(tmp_path / "run").problems == []
    assert not (tmp_path / "run" / "run.lock").exists()


def test_a_signal_while_the_index_is_written_leaves_a_complete_one(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(monkeypatch, index, "file_sha256", 3)
    assert begin().exit_code == 130
    assert (tmp_path / "run" / index.NAME).is_file()
    assert verify(tmp_path / "run").problems == []


def test_a_signal_after_a_gate_that_failed_does_not_hide_why(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ParityError("parity gate: made to fail")

    monkeypatch.setattr(Trials, "run", fails)
    real = Interrupts.finish

    def late(self: Any) -> None:
        if not self._only_answers:
            send()
        real(self)

    monkeypatch.setattr(Interrupts, "finish", late)
    with pytest.raises(ParityError, match="made to fail"):
        begin()
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    assert (tmp_path / "run" / index.NAME).is_file()


def test_a_signal_before_the_first_trial_names_the_command_to_resume(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after(monkeypatch, preflight, "check", 1, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        begin()
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted by SIGTERM; nothing has run yet; resume with: " in said
    monkeypatch.undo()
    for place in (cli_run, reproduce):
        monkeypatch.setattr(place, "detect", lambda: MACHINE)
    monkeypatch.setattr(cli_run, "reporter", lambda _: Page())
    assert resume_suite(tmp_path / "run", track=False).trials == {"ok": 4}


# ---- who is refused leaves no trace


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_resume_that_is_refused_changes_no_file(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(monkeypatch, Launchers, "launch", 2)
    begin()
    (tmp_path / "run" / "report" / "report.html").write_text("an earlier report")
    before = contents(tmp_path / "run")

    def refused(*_: Any) -> Any:
        raise OutputError("refused")

    monkeypatch.setattr(preflight, "check", refused)
    with pytest.raises(OutputError, match="refused"):
        resume_suite(tmp_path / "run", track=False)
    assert contents(tmp_path / "run") == before


ANY = reproduce.Wanted(undecided=True)
"""Terms of a reproduction with fewer pairs than an answer needs."""


def test_an_interrupted_reproduction_is_not_judged_and_keeps_completed_trials(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin().exit_code == 0
    with monkeypatch.context() as here:
        after(here, Launchers, "launch", 2, signal.SIGTERM)
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            reproduce.reproduce(tmp_path / "run", None, tmp_path / "again", wanted=ANY)
    assert signal.getsignal(signal.SIGTERM) == before
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted by SIGTERM; nothing is judged; completed trials are kept; resume with: " in said
    assert "repro reproduce " in said and " --resume " in said and "/again" in said
    attempts = read_record(tmp_path / "again").attempts
    assert [(item.status, item.reason) for item in attempts] == [("ok", ""), ("interrupted", "SIGTERM")]
    assert verify(tmp_path / "again").unmodified
    with pytest.raises(UsageError, match="is not a reproduction of this record"):
        reproduce.reproduce(tmp_path / "again", None, None, resume=tmp_path / "run")
    assert json.loads((tmp_path / "again" / reproduce.ANSWER_FILE).read_text())["answer"] is None
    found = reproduce.reproduce(tmp_path / "run", None, None, resume=tmp_path / "again")
    assert found.run == tmp_path / "again" and (tmp_path / "again" / reproduce.ANSWER_FILE).exists()
    assert next(item.status for item in read_record(found.run).attempts if item.attempt == 1) == "ok"
    assert len(read_record(found.run).results) == 4 and verify(tmp_path / "again").unmodified


def test_only_a_reproduction_of_the_same_record_is_resumed(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged against itself, or against the record that fits, anything would be reproduced."""
    assert begin().exit_code == 0
    (tmp_path / "run").rename(tmp_path / "other")
    assert begin().exit_code == 0
    reproduce.reproduce(tmp_path / "run", None, tmp_path / "again", wanted=ANY)
    before = contents(tmp_path / "again")
    make_bundle(tmp_path / "again", tmp_path / "again.zip", "CC0-1.0")
    for source in ("other", "again", "again.zip"):
        with pytest.raises(UsageError, match="is not a reproduction of this record"):
            reproduce.reproduce(tmp_path / source, None, None, resume=tmp_path / "again")
    assert contents(tmp_path / "again") == before
    make_bundle(tmp_path / "run", tmp_path / "run.zip", "CC0-1.0")
    found = reproduce.reproduce(tmp_path / "run.zip", None, None, resume=tmp_path / "again")
    assert json.loads((tmp_path / "again" / reproduce.ANSWER_FILE).read_text())["answer"] == found.reproduction.answer


def test_a_reproduction_ended_while_it_is_sealed_has_its_index(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin().exit_code == 0
    listed = len(index.read_sums(tmp_path / "run" / index.NAME))  # hashed before, as the source is verified
    with monkeypatch.context() as here:
        after(here, index, "file_sha256", listed + 2, signal.SIGTERM)
        with pytest.raises(Interrupted):
            reproduce.reproduce(tmp_path / "run", "1", tmp_path / "again", wanted=ANY)
    assert "nothing is judged" in capsys.readouterr().err
    assert verify(tmp_path / "again").unmodified and (tmp_path / "again" / index.NAME).is_file()
    other = resume.plan_differences(read_record(tmp_path / "again").plan, MACHINE)
    assert other == [], "some cells of a suite are a plan that can be resumed"


def test_a_reproduction_resumed_elsewhere_lists_the_differences(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin().exit_code == 0
    with monkeypatch.context() as here:
        after(here, Launchers, "launch", 2)
        with pytest.raises(Interrupted):
            reproduce.reproduce(tmp_path / "run", None, tmp_path / "again", wanted=ANY)
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    with pytest.raises(UsageError, match="setting OMP_NUM_THREADS"):
        reproduce.reproduce(tmp_path / "run", None, None, resume=tmp_path / "again")
    found = reproduce.reproduce(tmp_path / "run", None, None, resume=tmp_path / "again", force=True)
    told = [f"{item.area}: {item.change}" for item in found.reproduction.differences]
    assert any(text.startswith("settings: between its own starts: absent -> setting OMP_NUM_THREADS") and
               text.endswith(", now 77") for text in told), told
    assert "no recorded difference" not in found.text()


def test_an_interrupted_calibration_keeps_completed_trials_and_no_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quick: None
) -> None:
    monkeypatch.setattr(cli_run, "detect", lambda: MACHINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.yaml").write_text(invented())
    source = read_suite(str(tmp_path / "suite.yaml"), ())
    plan = make_plan(source.suite, MACHINE, source.problem)
    after(monkeypatch, Launchers, "launch", 3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        calibrate.calibrate(plan, source.text, None, 6, 1, to=tmp_path / "nulls.json")
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted by SIGTERM; no null is kept; completed trials stay in runs/" in said
    assert "repeat the command with --from runs/" in said
    run = next((tmp_path / "runs").iterdir())
    assert [item.status for item in read_record(run).attempts] == ["ok", "ok", "interrupted"]
    assert verify(run).unmodified and not (tmp_path / "nulls.json").exists()


def test_an_index_that_cannot_be_written_costs_no_report(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Any) -> None:
        raise OutputError("sha256sums.txt: cannot be written: No space left on device")

    monkeypatch.setattr(index, "write_text", lambda *_: full(None))
    with pytest.raises(OutputError, match="No space left"):
        begin()
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    assert f"run --resume {tmp_path / 'run'}" in "".join(capsys.readouterr().err.split("\n")), "how to go on"


def test_a_full_disk_costs_the_report_and_no_verdict(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Page):
        def write(self, record: Record, out: Path) -> list[str]:
            raise OutputError("report.html: cannot be written: No space left on device")

    monkeypatch.setattr(cli_run, "reporter", lambda _: Full())
    ended = begin()
    assert ended.exit_code == OutputError.exit_code and "No space left" in ended.unwritten
    said = ended_text(ended).splitlines()
    assert "trials: 4 ok" in said and "report: not written" in said
    assert said[-1].startswith("next:   ") and said[-1].endswith(f"report {tmp_path / 'run'}")


# ---- while a trial is killed for taking too long


def test_a_signal_that_comes_while_a_late_trial_is_killed_is_delivered() -> None:
    """Only the deadline's own signal, sent to leave elastic, has no other sender."""
    elastic = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    ending = node_launch._Ending()
    for left in (False, True):
        ending.left = left
        with pytest.raises(KeyboardInterrupt), node_launch._signals_delivered(ending):
            raise elastic.SignalException("from a terminal", signal.SIGINT)
    with node_launch._signals_delivered(ending):
        raise elastic.SignalException("its own", signal.SIGTERM)


TWICE = """
import os, pathlib, signal, time
from repro.record.folder.lock import RunLock
from repro.runner.signals import Interrupts
with RunLock(pathlib.Path()).acquire() as lock, Interrupts(lock, "next", "the report is being written"):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
"""


def test_a_second_signal_that_kills_promises_no_report(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], cwd=tmp_path, capture_output=True, text=True, check=False,
                           env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "killed; completed trials are kept; next\n")


# ---- an interrupt that is dropped


def test_an_interrupt_that_was_dropped_is_raised_before_the_next_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a destructor goes nowhere, whatever it is."""
    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    with RunLock(tmp_path).acquire() as lock, Interrupts(lock, "next", "closing") as interrupts:
        raise_dropped()
        Dropping()
        assert len(dropped) == 1
        with pytest.raises(Interrupted):
            raise_dropped()
        interrupts.finish()
        raise_dropped()
    raise_dropped()
