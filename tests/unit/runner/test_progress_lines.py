"""Lines of a run on a terminal and in a pipe: one a trial, warnings once with a count, the answer last."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.cli.terminal import Console
from repro.cli.text.suite import ended_text
from repro.cli.workflows import progress
from repro.cli.workflows.progress import TerminalWatcher
from repro.cli.workflows.run import _summarize
from repro.core import registry
from repro.core.errors import Exit
from repro.record.folder.store import Record
from tests.plans import planned
from tests.records import SUITE, make_record, write_record


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("run") / "sample")


def test_a_short_trial_has_one_line_in_a_pipe(record: Record) -> None:
    out = io.StringIO()
    told: list[Mapping[str, Any]] = []
    watcher = TerminalWatcher(Console(file=out, width=200), told.append)
    trial = next(iter(record.plan.trials()))
    with watcher:
        watcher.trial_started(1, 4, trial, record.plan.cells[0])
        watcher.trial_ticked(0.5, 0.5, 100.0)
        watcher.trial_ended(record.results[0], 3.0)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("[1/4] ") and line.endswith("about 9 s left")
    assert [item["event"] for item in told] == ["trial_started", "trial_ticked", "trial_ended"]
    assert told[1] == {"event": "trial_ticked", "value": 0.5, "epochs": 0.5, "samples_per_second": 100.0}


def test_a_sequential_run_says_the_time_to_its_next_look_and_in_all(record: Record) -> None:
    out = io.StringIO()
    trial = next(iter(record.plan.trials()))
    with TerminalWatcher(Console(file=out, width=200)) as watcher:
        watcher.trial_started(1, 20, trial, record.plan.cells[0], 4)
        watcher.trial_ended(record.results[0], 3.0)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("[ 1/20] ") and line.endswith(", about 9 s to the next look, at most 57 s left")


def test_the_time_left_is_known_before_the_first_trial_ends(
    record: Record, monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    out = io.StringIO()
    watcher, trial = TerminalWatcher(Console(file=out, width=200)), next(iter(record.plan.trials()))
    watcher.trial_started(1, 10, trial, record.plan.cells[0])
    clock[0] += 3.0
    watcher.trial_ticked(0.5, trial.choices.stop.max_epochs / 2, 100.0)  # half of the budget: 6 s a trial
    assert "about 57 s left if all use their whole budget" in out.getvalue()
    watcher.trial_started(9, 10, trial, record.plan.cells[0])  # of a resumed run: two are left
    clock[0] += 3.0
    watcher.trial_ticked(0.5, trial.choices.stop.max_epochs / 2, 100.0)
    assert "about 9 s left if all use their whole budget" in out.getvalue()


def test_a_warning_that_repeats_is_shown_once_and_counted(record: Record) -> None:
    out = io.StringIO()
    with TerminalWatcher(Console(file=out, width=200)) as watcher:
        for share in (3, 7, 2):
            watcher.stage(f"warning: the hypervisor gave {share}% of the processors' time to others")
        watcher.stage("warning: something else")
        watcher.stage("parity gate: digits")
        watcher.stage("parity gate: digits")
    assert out.getvalue().splitlines() == [
        "warning: the hypervisor gave 3% of the processors' time to others", "warning: something else",
        "parity gate: digits", "parity gate: digits",
        "warning: the hypervisor gave 3% of the processors' time to others (the first of 3 like it)",
    ]


@pytest.mark.parametrize(("code", "following"), [
    (Exit.DONE, "bundle {run}  (one file, which others verify and run again)"),
    (Exit.INTERRUPTED, "run --resume {run}"),
    (Exit.TRIAL_FAILED, "bundle {run}  (one file, which others verify and run again)")])  # none would run again
def test_the_last_lines_are_answer_certainty_places_and_the_next_step(
    record: Record, code: Exit, following: str,
) -> None:
    lines = ended_text(_summarize(record, code, "report.html", None)).splitlines()
    answer, places = lines[lines.index(""):], lines[-3:]
    assert any(" against " in line and "95 % interval" in line for line in answer)
    assert places[0] == "report: report.html" and places[1] == f"run:    {record.folder.root}"
    assert places[2].endswith(following.format(run=record.folder.root))
    assert not any(line.startswith("warning: ") for line in answer)


def test_a_primary_that_overrides_dropped_is_said_to_be_dropped(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE, "processes=1")
    made = write_record(tmp_path / "run", plan)
    lines = ended_text(_summarize(made, Exit.DONE, "report.html", None)).splitlines()
    assert any(line.startswith("no primary contrast is declared in this plan; the declared primary is dropped: after")
               for line in lines)
    assert any(line.endswith("every contrast, corrected for their number: repro compare RUN") for line in lines)
    (page,) = registry.load("reporter", "html")().write(made, tmp_path / "page")
    assert "the declared primary is dropped: " in Path(page).read_text()


def test_trials_that_would_run_again_are_the_next_step(record: Record) -> None:
    crashed = replace(record, results=(record.results[0].model_copy(update={"status": "crashed"}), *record.results[1:]))
    last = ended_text(_summarize(crashed, Exit.TRIAL_FAILED, "report.html", None)).splitlines()[-1]
    assert last.endswith(f"run --resume {record.folder.root} --rerun-failed")


def test_if_every_trial_crashed_the_suite_is_to_be_mended_first(record: Record) -> None:
    crashed = replace(record, results=tuple(item.model_copy(update={"status": "crashed"}) for item in record.results))
    last = ended_text(_summarize(crashed, Exit.TRIAL_FAILED, "report.html", None)).splitlines()[-1]
    assert "mend what the reasons above name, and run the suite again; if the cause lay outside of it: " in last
    assert last.endswith(f"run --resume {record.folder.root} --rerun-failed")
