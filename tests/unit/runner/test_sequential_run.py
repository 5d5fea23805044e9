"""Sequential runs on invented figures: looks, the stop, resuming, a budget, and what verify says of a changed look."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from repro.bundle.verify import verify
from repro.bundle.verify_files import Verification
from repro.bundle.verify_ledger import check_looks
from repro.cli.workflows.progress import look_line
from repro.cli.workflows.reproduce import Wanted, choose_trials, reduce_plan
from repro.compare import compare
from repro.compare.design.sequential import stages
from repro.core.files import read_model
from repro.core.machine import detect
from repro.engines.fake import VirtualClock
from repro.record.folder.index import seal
from repro.record.folder.ledger import Incident
from repro.record.folder.store import Record, RunFolder
from repro.reporting import reporter
from repro.runner.context import Options, RunContext
from repro.runner.machine_watch import MachineWatch
from repro.runner.run import Run, prepare
from repro.runner.trials import Looks, Trials
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from tests.watcher import Silent

SUITE = """\
suite: invented
trial:
  workload: digits
  engine: fake
  launcher: inline
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: 0.9, max_epochs: 10}
  evaluate_every: 192
  device: cpu
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010, samples_scale: 1000}
    - {kind: fake, step_seconds: RATE, samples_scale: 1000}
    - {kind: fake, step_seconds: 0.02, samples_scale: 1000}
baseline: {engine: {step_seconds: 0.010}}
primary:
  candidate: {engine: {step_seconds: RATE}}
  baseline: {engine: {step_seconds: 0.010}}
sequential: DESIGN
"""
LOOKS = "{looks: [7, 9, 11], power: 1}"


def planned(folder: Path, rate: str = "0.0130", design: str = LOOKS) -> tuple[Plan, str]:
    (folder / "s.yaml").write_text(SUITE.replace("RATE", rate).replace("DESIGN", design))
    source = read_suite(str(folder / "s.yaml"))
    return make_plan(source.suite, detect(), source.problem), source.text


def execute(folder: RunFolder, plan: Plan, budget: float | None = None) -> tuple[Record, Silent]:
    watcher = Silent()
    return Run(plan, folder, detect(), watcher, Options(budget_seconds=budget)).execute(), watcher


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run that its first look settles."""
    folder = tmp_path_factory.mktemp("settled")
    plan, text = planned(folder)
    return execute(prepare(plan, text, folder / "run"), plan)[0]


@pytest.fixture(scope="module")
def open_run(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run of two equal cells, which no look settles: at this spread 11 pairs show no equality."""
    folder = tmp_path_factory.mktemp("open")
    plan, text = planned(folder, "0.01001")
    return execute(prepare(plan, text, folder / "run"), plan)[0]


def labels(record: Record) -> Counter[str]:
    return Counter(record.cell(item.cell_id).label.rpartition("=")[2] for item in record.results)


def test_a_settled_run_stops_and_misses_nothing(settled: Record) -> None:
    assert [(look.n, look.decision, look.verdict) for look in settled.looks] == [(7, "settled", "slower")]
    assert len(settled.results) == 21 < len(settled.plan.order)
    assert (settled.missing(), settled.planned) == ([], 21)
    found = compare(settled.plan, settled.results, execution=settled.execution)
    assert found[0].because.startswith("settled at look 1 of 3 at 7 pairs (a p of at most 0.0318 is needed)")
    assert found[0].look is not None and found[0].look.next_n is None
    assert found[0].interval is not None and found[0].interval.level == pytest.approx(1 - 0.0318, abs=1e-4)
    assert found[0].welch is None and found[0].split is not None and found[0].split.samples.interval is None
    assert verify(settled.folder.root).problems == []


def test_page_and_terminal_show_the_looks(settled: Record, tmp_path: Path) -> None:
    page = Path(reporter("html").write(settled, tmp_path)[0]).read_text()
    assert "Looks: 1 of 3 taken, bounds by alpha spending (power, t^1)" in page
    assert "repeated 95\N{NO-BREAK SPACE}% interval" in page
    assert "Partial record" not in page
    line = look_line(settled.looks[0])
    assert line.startswith("look 1 of 3, 7 pairs: ratio 1.") and line.endswith("; settled: slower")
    assert "p 0.016 (needs 0.032)" in line


def test_a_reproduction_of_a_settled_run_is_complete(settled: Record, tmp_path: Path) -> None:
    for trials, have in ((None, 7), ("3", 3)):
        chosen, terms = choose_trials(settled, trials, Wanted(undecided=True))
        plan = reduce_plan(settled.plan, chosen, detect(), 5, terms)
        record, _ = execute(prepare(plan, "", tmp_path / f"{have}"), plan)
        assert (record.missing(), plan.design.common) == ([], have)
        for found in compare(plan, record.results, execution=record.execution):
            assert (found.verdict, found.refused, found.n, found.settles) == ("inconclusive", True, have, "")
            assert found.because.startswith("the reproduction of a sequential run has the pairs that its source ran; ")
        page = Path(reporter("html").write(record, tmp_path / f"page{have}")[0]).read_text()
        assert "planned pairs" not in page and "gives no separate verdict" in page


def test_resuming_a_settled_run_runs_nothing(settled: Record) -> None:
    again, watcher = execute(settled.folder, settled.plan)
    assert (len(again.results), again.looks, watcher.looks) == (21, settled.looks, [])


def test_an_open_run_takes_all_looks_and_only_the_primary_goes_on(open_run: Record) -> None:
    assert [(look.n, look.decision) for look in open_run.looks] == [(7, "continues"), (9, "continues"), (11, "last")]
    assert sorted(labels(open_run).values()) == [7, 11, 11]
    first, family = compare(open_run.plan, open_run.results, execution=open_run.execution)
    assert first.because.startswith("look 3 of 3 at 11 pairs, the last: ")
    assert first.settles.startswith("report it as undecided. Its looks are used up")
    assert (family.n, family.verdict) == (7, "slower")  # judged once, by the pairs of the first look
    assert verify(open_run.folder.root).problems == []


def test_before_its_last_look_a_contrast_goes_on_and_the_family_waits(open_run: Record) -> None:
    for have, text in ((5, "look 1 of 3 at 7 pairs: 5 have run"), (7, "look 1 of 3 at 7 pairs: continues; "),
                       (10, "look 2 of 3 at 9 pairs: continues; ")):
        first, family = compare(open_run.plan, [item for item in open_run.results if item.repeat < have])
        assert first.verdict == "inconclusive" and first.because.startswith(text)
        assert family.refused


def test_a_killed_run_resumes_with_the_next_pairs_of_its_plan(open_run: Record, tmp_path: Path) -> None:
    shutil.copytree(open_run.folder.root, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for item in open_run.results:
        if item.repeat >= 8:
            shutil.rmtree(folder.trial(item.trial_id))
    keep_lines(folder.ledger, lambda line: line["repeat"] < 8)
    keep_lines(folder.looks, lambda line: line["number"] == 1)
    seal(folder)
    resumed, watcher = execute(folder, open_run.plan)
    assert [look.number for look in watcher.looks] == [2, 3]
    assert [look.model_copy(update={"at_ms": 0.0}) for look in resumed.looks] == \
        [look.model_copy(update={"at_ms": 0.0}) for look in open_run.looks]
    assert verify(folder.root).problems == []


def keep_lines(path: Path, wanted: object) -> None:
    assert callable(wanted)
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if wanted(json.loads(line))))


@pytest.mark.parametrize(("old", "new", "text"), [
    ('"n": 9', '"n": 10', "look 2 of 3 was taken at 10 pairs; the suite declares: look 2 of 3 is at 9 pairs"),
    ('"decision": "last"', '"decision": "settled"', "look 3 at 11 pairs: it says inconclusive (settled)"),
    ('"nominal": 0.0', '"nominal": 0.1', "nominal is 0.1"),
    ('"number": 3', '"number": 4', "there are 3 looks"),
])
def test_verify_names_looks_that_were_not_the_declared_or_differ(
    open_run: Record, tmp_path: Path, old: str, new: str, text: str,
) -> None:
    lines = open_run.folder.looks.read_text()
    assert old in lines
    assert any(text in what for what in problems(open_run, lines.replace(old, new), tmp_path))


def test_verify_names_a_look_that_was_not_taken_and_pairs_after_the_end(
    open_run: Record, settled: Record, tmp_path: Path,
) -> None:
    lines = open_run.folder.looks.read_text().splitlines(keepends=True)
    assert problems(open_run, "".join(lines), tmp_path) == []
    assert problems(open_run, lines[0] + lines[2], tmp_path) == [
        "look 2 at 9 pairs was not taken, but later pairs have run"]
    first = json.loads(lines[0]) | {"decision": "settled", "verdict": "slower"}
    assert problems(open_run, json.dumps(first) + "\n" + "".join(lines), tmp_path) == [
        "look 1 at 7 pairs was settled (slower) in an earlier line, and taken again"]
    late = settled.results[0].model_copy(update={"repeat": 7})
    longer = dataclasses.replace(settled, results=(*settled.results, late))
    assert problems(longer, settled.folder.looks.read_text(), tmp_path) == [
        "the contrast was settled at 7 pairs, but trials of seed 7 have run"]


def problems(record: Record, lines: str, folder: Path) -> list[str]:
    """What verify says of a record with these lines in its file of looks."""
    (folder / "looks.jsonl").write_text(lines)
    found = Verification("made up")
    check_looks(RunFolder(folder), record.plan, record.results, found)
    return [item.what for item in found.problems]


def test_plug_ins_with_a_state_do_not_hide_the_first_trial(tmp_path: Path) -> None:
    """An engine that ran in the gate is no longer equal to itself as read from the plan's file."""
    plan, text = planned(tmp_path)
    folder = prepare(plan, text, tmp_path / "run")
    read_back = read_model(folder.plan, Plan)
    for cell in plan.cells:
        cell.choices.engine.plugin._waiting.append(VirtualClock())
    context = RunContext(plan, folder, Silent())
    looks = Looks(context, stages(plan))
    trials = Trials(context, cast(Any, None), MachineWatch(), False, looks)
    assert trials._done(list(read_back.trials())[5:]) == 5


def test_a_budget_ends_the_run(tmp_path: Path) -> None:
    plan, text = planned(tmp_path, "0.01001")
    folder = prepare(plan, text, tmp_path / "run")
    first, watcher = execute(folder, plan, budget=1e-3)
    assert first.budget_spent and first.missing() and watcher.looks == []  # before any look: nothing was answered
    assert any(item.kind == "budget" for item in first.incidents)
    assert len(first.results) < 21
    assert verify(folder.root).problems == []


def test_a_budget_that_reaches_a_look_leaves_nothing_missing(open_run: Record) -> None:
    spent = Incident(at_ms=4e15, kind="budget", text="used")
    some = dataclasses.replace(open_run, looks=open_run.looks[:1], incidents=(spent,),
                               results=tuple(item for item in open_run.results if item.repeat < 7))
    assert (some.missing(), some.planned) == ([], 21)
    assert dataclasses.replace(some, incidents=()).missing() != []


def test_a_run_that_went_on_after_its_budget_is_incomplete_whatever_its_clock(open_run: Record) -> None:
    """The clock was set back before the run was resumed: its later trials seem to be older than the budget's end."""
    spent, resumed = Incident(at_ms=4e15, kind="budget", text="used"), Incident(at_ms=1.0, kind="resumed", text="")
    some = dataclasses.replace(open_run, looks=open_run.looks[:1], incidents=(spent, resumed),
                               results=tuple(item for item in open_run.results if item.repeat < 8))
    assert not some.budget_spent and some.missing() != []


def test_an_e_process_judges_after_every_pair(tmp_path: Path) -> None:
    plan, text = planned(tmp_path, design="{anytime: true, looks: [7, 8, 9, 10]}")
    record, watcher = execute(prepare(plan, text, tmp_path / "run"), plan)
    assert watcher.looks[-1].decision == "settled" and watcher.looks[-1].nominal == 0.05
    found = compare(plan, record.results)[0]
    assert found.verdict == "slower" and "confidence sequence excludes 1, e-process p = " in found.because
    assert verify(record.folder.root).problems == []
