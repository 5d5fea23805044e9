"""A cell that the gate leaves out: its reason stands in the plan, in the notices and beside every verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reporters.page.notices import notices, parity
from repro.audit.rules.checklists import functional
from repro.audit.rules.from_record import _parity, record_facts
from repro.compare import compare
from repro.compare.findings import findings
from repro.core.files import write_json
from repro.record.folder.store import Record, read_record
from repro.suite.kinds.training_options import GateOptions
from repro.worker.gate.parity import groups, skipped, why_not
from tests.plans import planned
from tests.records import SUITE, make_record

REASON = "weights and optimizer state in fp32 exceed one GPU"
ALL = SUITE.replace("  device: cpu", f"  device: cpu\n  gate: {{skip: {REASON}}}")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    found = make_record(tmp_path_factory.mktemp("ungated") / "run", ALL)
    write_json(found.folder.parity_verdict, {"needed": False, "why": why_not(found.plan),
                                             "skipped": skipped(found.plan)})
    return read_record(found.folder.root)


def test_the_reason_stands_in_plan_notices_and_beside_every_verdict(record: Record) -> None:
    assert f"not gated: {REASON}" in record.plan.notes
    assert parity(record).outcome == "skipped"
    shown = [notice.text for notice in notices(findings(record)) if notice.title == "Parity gate"]
    assert shown == [f"not gated: {REASON}"]
    compared = compare(record.plan, record.results)
    assert compared
    for item in compared:
        assert sum(text.startswith(f"not gated: {REASON}") for text in item.cautions) == 2, "one for each cell"


def test_an_audit_does_not_call_engines_that_nobody_compared_consistent(record: Record) -> None:
    assert _parity(record.parity) is None
    assert _parity({"needed": False, "why": "one engine"}) == "not needed"


def test_an_audit_names_the_cells_that_the_gate_left_out_and_the_reason(record: Record) -> None:
    verdict, text = functional(record_facts(record))
    assert verdict == "fail" and "the parity gate left out" in text and REASON in text


def test_programs_that_were_not_gated_are_not_called_consistent(record: Record) -> None:
    facts = replace(record_facts(record), programs=True, ungated={})
    verdict, text = functional(replace(facts, parity="not needed"))
    assert verdict == "cannot tell" and "not gated" in text
    assert functional(replace(facts, parity="passed"))[0] == "pass"


def test_only_the_cells_with_a_reason_are_left_out(tmp_path: Path) -> None:
    whole = groups(planned(tmp_path, SUITE))
    plan = planned(tmp_path, SUITE)
    first = plan.cells[0]
    changed = first.choices.model_copy(update={"gate": GateOptions(skip=REASON)})
    plan = plan.model_copy(update={"cells": (first.with_choices(changed), *plan.cells[1:])})
    assert groups(planned(tmp_path, ALL)) == []
    assert sum(len(group.candidates) for group in groups(plan)) == sum(len(group.candidates) for group in whole) - 1
    assert list(skipped(plan).values()) == [REASON]


def test_the_gates_micro_batch_shrinks_the_gate_only(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE.replace("  device: cpu", "  device: cpu\n  gate: {micro: 8}"))
    for group in groups(plan):
        for trial in (group.reference, *group.candidates):
            assert trial.choices.micro_batch == 8
        assert group.reference.choices.batch.accumulation == group.candidates[0].choices.processes
    assert {cell.choices.batch.global_ for cell in plan.cells} == {64}


@pytest.mark.parametrize("text", ["''", "'  '"])
def test_a_reason_without_words_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Exception, match=r"gate\.skip: .*needs a reason in words"):
        planned(tmp_path, SUITE.replace("  device: cpu", f"  device: cpu\n  gate: {{skip: {text}}}"))
