"""Every rule: a record that keeps it and one that does not; rules that no record can break get facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.audit.rules import RULES, Facts, Finding, check, check_facts, failing_first
from repro.audit.rules.from_record import record_facts
from repro.bundle.source import open_record
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, read_record
from repro.record.result.results import Result
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan
from tests.commands import ROOT
from tests.made_tuned import TUNED, make_tuned
from tests.records import SCALING, SUITE, Course, default_course, make_record, scaling_course

Make = Callable[["Records"], Facts]


class Records:
    """Made-up records, each made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[str, Record] = {}

    def of(self, name: str, text: str = SUITE, course: Callable[[Trial], Course] = default_course,
           only: int | None = None) -> Record:
        if name not in self.made:
            self.made[name] = make_record(self.root / name, text, course, only)
        return self.made[name]

    def tuned(self, name: str, text: str = TUNED, **changes: Any) -> Record:
        if name not in self.made:
            self.made[name] = make_tuned(self.root / name, text, **changes)
        return self.made[name]

    @property
    def base(self) -> Record:
        return self.of("base")

    @property
    def scaling(self) -> Record:
        return self.of("scaling", SCALING, scaling_course)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return Records(tmp_path_factory.mktemp("records"))


def facts(record: Record, **changed: Any) -> Facts:
    return replace(record_facts(record), **changed)


def results(record: Record, change: Callable[[Result], dict[str, Any]]) -> Facts:
    return record_facts(replace(record, results=tuple(item.model_copy(update=change(item)) for item in record.results)))


def environment(record: Record, **changed: Any) -> Facts:
    return record_facts(replace(record, environment=record.environment.model_copy(update=changed)))


def synthetic(record: Record) -> Facts:
    data = tuple(item.model_copy(update={"synthetic": True}) for item in record.environment.data)
    return environment(record, data=data)


def text(old: str, new: str) -> str:
    assert old in SUITE
    return SUITE.replace(old, new)


def no_start(item: Result) -> dict[str, Any]:
    return {"hashes": {name: value for name, value in item.hashes.items() if name != "init_weights"}}


def other_start(item: Result) -> dict[str, Any]:
    mark = "other" if item.cell_id.startswith("deepspeed") else "same"
    return {"hashes": item.hashes | {"init_weights": f"{mark}{item.repeat}"}}


def views(record: Record, count: int | None) -> Facts:
    return environment(record, data=tuple(item.model_copy(update={"test_views": count})
                                          for item in record.environment.data))


def test_how_often_a_test_sample_is_shown_must_be_stated_and_weights_kept(records: Records) -> None:
    rule = next(item for item in RULES if item.id == "F8")
    assert rule.find(facts(records.base, models=5)).verdict == "fail"
    assert rule.find(facts(records.base, models=1, augmented=False)).verdict == "pass"
    for found in (views(records.base, None), facts(records.base, data=())):
        assert rule.find(found).verdict == "cannot tell"
    lost = replace(views(records.base, 1), cells=results(records.base, lambda _: {"hashes": {}}).cells)
    assert rule.find(lost).verdict == "cannot tell"


def baseline_misses(trial: Trial) -> Course:
    missed = trial.choices.engine.kind == "ddp"
    return replace(default_course(trial), hits_at=None if missed else 4)


def two_miss(trial: Trial) -> Course:
    return replace(default_course(trial), hits_at=None if trial.repeat < 2 else 4)


def skewed(trial: Trial) -> Course:
    """One pair in ten is far from the others."""
    own = 1 + 0.003 * trial.repeat
    return Course(step_seconds=0.01 * (own if trial.choices.engine.kind == "ddp" else 1 + 9 * (trial.repeat == 3)))


def spread(trial: Trial) -> Course:
    """Log ratios as even as normal quantiles are."""
    steps = (-1.55, -1.0, -0.66, -0.38, -0.12, 0.12, 0.38, 0.66, 1.0, 1.55)
    return Course(step_seconds=0.01 * (1 + 0.02 * steps[trial.repeat] * (trial.choices.engine.kind == "deepspeed")))


def late(trial: Trial) -> Course:
    return Course(hits_at=60, evals=60)


def early(trial: Trial) -> Course:
    return Course(hits_at=40 if trial.choices.engine.kind == "deepspeed" else 60, evals=60)


def linked(record: Record) -> Facts:
    """Links are between the ranks, and nothing is recorded of them."""
    found = record_facts(record)
    return replace(found, cells=tuple(replace(cell, loopback=False) for cell in found.cells))


def again(record: Record) -> Facts:
    """A run that had reached its target was made again, and the second result is the one shown."""
    first = record.attempts[0]
    more = Attempt(**(first.model_dump() | {"attempt": 2}))
    return record_facts(replace(record, starts=(*record.attempts, more)))


def crash_again(record: Record, status: str = "crashed") -> Facts:
    first = record.attempts[0].model_copy(update={"status": status})
    more = Attempt(**(first.model_dump() | {"attempt": 2, "status": "ok"}))
    return record_facts(replace(record, starts=(first, *record.attempts[1:], more)))


APART = SUITE.replace("  processes: [1, 2]\n", "  processes: [1, 2]\n  batch.global: [64, 128]\nexclude:\n"
                      "  - {processes: 1, batch.global: 128}\n  - {processes: 2, batch.global: 64}\n")
TARGETS = SUITE.replace("  processes: [1, 2]\n", "  processes: [1, 2]\n  stop.target: [0.8, 0.9]\n").partition(
    "primary:")[0]
FINE = SUITE.replace("evaluate_every: 1437", "evaluate_every: 64").replace("seeds: 6", "seeds: 10")
CASES: dict[str, tuple[Make, Make]] = {
    "F1": (lambda r: facts(r.base), lambda r: synthetic(r.base)),
    "F2": (lambda r: facts(r.base), lambda r: results(r.base, no_start)),
    "F3": (lambda r: facts(r.base), lambda r: facts(r.of("24", text("processes: [1, 2]", "processes: [2, 4]")))),
    "F4": (lambda r: facts(r.base), lambda r: results(r.base, lambda _: {"best": None, "final": None})),
    "F5": (lambda r: facts(r.base),
           lambda r: facts(r.of("never", course=lambda trial: replace(default_course(trial), hits_at=None)))),
    "F6": (lambda r: facts(r.scaling), lambda r: linked(r.base)),
    "F7": (lambda r: facts(r.base), lambda r: facts(r.of("apart", APART))),
    "F8": (lambda r: views(r.base, 1), lambda r: views(r.base, 10)),
    "F9": (lambda r: facts(r.scaling), lambda r: linked(r.base)),
    "F10": (lambda r: facts(r.base), lambda r: results(r.base, other_start)),
    "HB1": (lambda r: facts(r.base), lambda r: facts(r.of("base-misses", course=baseline_misses))),
    "HB2": (lambda r: facts(r.base), lambda r: facts(r.of("some", only=20))),
    "HB3": (lambda r: facts(r.base), lambda r: facts(r.base, means={"rates": "arithmetic mean"})),
    "HB4": (lambda r: facts(r.base), lambda r: facts(r.base, means={"ratios": "arithmetic mean"})),
    "HB5": (lambda r: facts(r.base), lambda r: facts(r.of("five", text("seeds: 6", "seeds: 5")))),
    "HB6": (lambda r: facts(r.of("spread", text("seeds: 6", "seeds: 10"), spread)),
            lambda r: facts(r.of("skewed", text("seeds: 6", "seeds: 10"), skewed))),
    "HB7": (lambda r: facts(r.base), lambda r: facts(r.of("one", text("seeds: 6", "seeds: 1")))),
    "HB8": (lambda r: facts(r.base), lambda r: results(r.base, lambda _: {"steps": None})),
    "HB9": (lambda r: facts(r.base), lambda r: environment(r.base, libraries={})),
    "HB10": (lambda r: facts(r.base), lambda r: results(r.base, lambda _: {"steps": None})),
    "HB11": (lambda r: facts(r.scaling), lambda r: linked(r.base)),
    "HB12": (lambda r: facts(r.base), lambda r: results(r.base, lambda _: {"curve": ()})),
    "MLP1": (lambda r: facts(r.base), lambda r: facts(r.of("targets", TARGETS))),
    "MLP2": (lambda r: facts(r.base), lambda r: facts(r.of("three", text("seeds: 6", "seeds: 3")))),
    "MLP3": (lambda r: facts(r.base), lambda r: facts(r.of("two-miss", course=two_miss))),
    "MLP4": (lambda r: facts(r.base),
             lambda r: results(r.base, lambda item: {"hashes": {"init_weights": "w", "data_order": "o"}})),
    "MLP5": (lambda r: facts(r.base), lambda r: results(r.base, lambda _: {"conservation_error": 0.05})),
    "MLP6": (lambda r: crash_again(r.base), lambda r: again(r.base)),
    "MLP7": (lambda r: facts(r.of("fine", FINE, late)), lambda r: facts(r.of("early", FINE, early))),
    "NEU1": (lambda r: facts(r.base), lambda r: facts(r.of("undeclared", SUITE.partition("primary:")[0]))),
    "NEU2": (lambda r: facts(r.base), lambda r: environment(r.base, data=())),
    "NEU3": (lambda r: facts(r.base), lambda r: facts(r.of("one", text("seeds: 6", "seeds: 1")))),
    "NEU4": (lambda r: facts(r.base), lambda r: record_facts(replace(r.base, starts=()))),
    "ACM1": (lambda r: environment(r.base, commit="a" * 40, dirty=False),
             lambda r: environment(r.base, commit="a" * 40, dirty=True)),
    "ACM2": (lambda r: facts(r.base),
             lambda r: facts(r.of("crash", course=lambda trial: replace(default_course(trial), crash=True)))),
    "ACM3": (lambda r: facts(r.base, reproduced=True), lambda r: facts(r.base, reproduced=False)),
    "AP1": (lambda r: facts(r.tuned("fair")), lambda r: facts(r.tuned("unequal", TUNED.replace(
        "origin: three", "trials: 9\n      unequal: it is new\n      origin: three")))),
    "AP2": (lambda r: facts(r.tuned("fair")), lambda r: facts(r.tuned("scored-seeds", tuning_drawn=""))),
    "AP3": (lambda r: facts(r.tuned("fair")), lambda r: facts(r.tuned("fixed", TUNED.replace(
        "trials: 5", "trials: 1").replace("{log: [0.00003, 0.03]}", "[0.001]")))),
}


def found(rule_id: str, of: Facts) -> Finding:
    rule = next(rule for rule in RULES if rule.id == rule_id)
    return rule.find(of)


def test_every_rule_has_a_case_and_its_own_id() -> None:
    assert [rule.id for rule in RULES] == list(CASES)
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule_id", CASES)
def test_a_record_that_keeps_the_rule(rule_id: str, records: Records) -> None:
    finding = found(rule_id, CASES[rule_id][0](records))
    assert finding.verdict == "pass", finding.evidence


@pytest.mark.parametrize("rule_id", CASES)
def test_a_record_that_breaks_the_rule(rule_id: str, records: Records) -> None:
    finding = found(rule_id, CASES[rule_id][1](records))
    assert finding.verdict == "fail", finding.evidence
    assert finding.evidence and "\n" not in finding.evidence


def test_the_contract_of_check(records: Records) -> None:
    findings = check(records.base)
    assert [item.id for item in findings] == [rule.id for rule in RULES]
    assert findings == check(records.base)
    ordered = failing_first(findings)
    verdicts = [item.verdict for item in ordered]
    assert verdicts == sorted(verdicts, key=["fail", "cannot tell", "pass", "not applicable"].index)
    fails = [item.required for item in ordered if item.verdict == "fail"]
    assert fails == sorted(fails, reverse=True)


def test_the_evidence_contains_a_figure(records: Records) -> None:
    told = {item.id: item.evidence for item in check(records.base)}
    assert "24 runs" in told["F1"] and "sha256 000000000000" in told["F1"] and "1437 + 360 samples" in told["F1"]
    assert "top1 >= 0.9" in told["MLP1"]
    assert "24 starts listed, 0 of them repeated" in told["MLP6"]
    seconds = sum(item.seconds for item in records.base.attempts)
    assert f"24 attempts, {seconds:.4g} s in all" in told["NEU4"]


@pytest.mark.parametrize(("status", "verdict", "told"), [
    ("crashed", "pass", "25 starts listed, 1 of them repeated after a crash, and no result replaced"),
    ("refused", "pass", "1 of them repeated after a crash, and"),
    ("not_launched", "pass", "1 of them repeated after a crash, and"),
    ("interrupted", "pass", "0 of them repeated after a crash, 1 because it was interrupted, and no result replaced"),
    ("lost", "cannot tell", "run again because their result was damaged or missing: ddp"),
    ("timed_out", "fail", "run again although they had a result: ddp"),
    ("missed", "fail", "run again although they had a result: ddp"),
    ("diverged", "fail", "run again although they had a result: ddp"),
])
def test_repeated_trials_and_their_reasons(records: Records, status: str, verdict: str, told: str) -> None:
    finding = found("MLP6", crash_again(records.base, status))
    assert finding.verdict == verdict and told in finding.evidence, finding.evidence


def test_simulated_figures_are_no_accuracy(records: Records) -> None:
    fake = records.of("fake", text("engine: [ddp, {kind: deepspeed, stage: 1}]", "engine: [ddp, fake]").replace(
        "candidate: {engine: deepspeed", "candidate: {engine: fake"))
    finding = found("F1", facts(fake))
    assert finding.verdict == "fail" and "simulated" in finding.evidence


def test_an_empty_record_breaks_nothing(records: Records) -> None:
    nothing = records.of("nothing", only=0)
    told = {item.id: item.verdict for item in check(nothing)}
    assert told["F5"] == told["HB2"] == told["MLP2"] == "fail"


def test_facts_required_of_a_record_are_optional_in_other_sources() -> None:
    """A foreign source that says nothing is never accused of anything."""
    silent = Facts(origin="mlflow", title="silent", cells=())
    assert {item.verdict for item in check_facts(silent)} <= {"cannot tell", "not applicable"}


def test_no_scaling_is_no_fault(records: Records) -> None:
    level = records.of("level", text("processes: [1, 2]", "processes: [2]"))
    assert found("F3", facts(level)).verdict == found("F7", facts(level)).verdict == "not applicable"


@pytest.mark.parametrize("metric", ["throughput", "train_throughput"])
def test_a_quicker_cell_that_reaches_its_target_less_often(records: Records, metric: str) -> None:
    """A speed is decided although half of the candidate's runs missed: a speed-up at the price of accuracy."""
    suite = text("  baseline: {engine: ddp, processes: 2}\n",
                 f"  baseline: {{engine: ddp, processes: 2}}\n  metric: {metric}\n")

    def course(trial: Trial) -> Course:
        quick = trial.choices.engine.kind == "deepspeed"
        return Course(step_seconds=0.005 if quick else 0.01, hits_at=None if quick and trial.repeat % 2 else 8)

    finding = found("F4", facts(records.of(f"quick-{metric}", suite, course)))
    assert finding.verdict == "fail" and "3 of 6 against 6 of 6" in finding.evidence


def test_a_clock_that_goes_back(records: Records) -> None:
    finding = found("MLP5", results(records.base, lambda item: {"curve": item.curve[::-1]}))
    assert finding.verdict == "fail" and "backwards" in finding.evidence


@pytest.mark.parametrize(("metric", "unit"), [("step_time", "s"), ("train_throughput", "samples/s")])
def test_the_base_case_of_trials_without_a_target_is_in_the_unit_of_what_is_compared(metric: str, unit: str) -> None:
    with open_record(ROOT / "tests/data/corpus/1.0.0rc1/fixed-steps.zip") as root:
        record = read_record(root)
        suite = record.plan.suite
        assert suite.primary is not None
        asked = suite.model_copy(update={"primary": suite.primary.model_copy(update={"metric": metric})})
        finding = found("HB1", facts(replace(record, plan=record.plan.model_copy(update={"suite": asked}))))
    assert finding.verdict == "pass" and f" {unit} on 1 process" in finding.evidence, finding


@pytest.mark.parametrize(("rule", "verdict"), [("F6", "pass"), ("F9", "not applicable"), ("HB11", "not applicable")])
def test_a_rule_about_links_does_not_fail_where_there_are_none(records: Records, rule: str, verdict: str) -> None:
    assert found(rule, facts(records.base)).verdict == verdict


def test_what_only_a_program_knows_is_not_said_to_be_kept() -> None:
    """Its command takes no {seed}; the record does not say where its ranks run or which libraries they use."""
    with open_record(ROOT / "tests/data/corpus/1.0.0rc1/times-only.zip") as root:
        record = read_record(root)
        text = record.plan.model_dump_json(by_alias=True).replace("{seed}", "7")
        plan = Plan.model_validate_json(text.replace('"processes":1', '"processes":2'))
        found = record_facts(replace(record, plan=plan))
    told = {item.id: (item.verdict, item.evidence) for item in check_facts(found)}
    for rule_id in ("MLP4", "NEU3", "HB9", "F6", "F9", "HB11"):
        assert told[rule_id][0] == "cannot tell" and "a program of the user's does not state it" in told[rule_id][1]
