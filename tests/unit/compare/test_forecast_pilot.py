"""The pilot and the check of a suite: which cells they have, and that they plan."""

from __future__ import annotations

import pytest

from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.papers.advise.pilot import check_suite, pilot_suite
from repro.suite.file import bundled, read_suite
from repro.suite.planning.plan import Plan, make_plan
from tests.plans import plan_file

CPU = Machine("cpu", 0, 2)


def shapes(plan: Plan) -> set[tuple[int, int, bool]]:
    return {(cell.choices.processes, cell.choices.global_batch, cell.training.channels_last) for cell in plan.cells}


def test_a_worker_keeps_its_samples_and_a_convolution_has_variants() -> None:
    plan = plan_file("engines", "workload=digits", "engine=ddp", "batch.global=64", "processes=2")
    pilot = make_plan(pilot_suite(plan, 5), CPU)
    assert shapes(pilot) == {(1, 32, False), (1, 32, True), (1, 64, False), (1, 128, False), (2, 64, False),
                             (3, 96, False)}
    assert {(cell.choices.stop.steps, cell.choices.stop.design) for cell in pilot.cells} == {(5, "fixed_steps")}
    check = make_plan(check_suite(plan, (2, 4), 5), CPU)
    assert shapes(check) == {(1, 32, False), (2, 64, False), (4, 128, False)}


def test_a_model_without_convolutions_has_no_variants() -> None:
    pilot = make_plan(pilot_suite(plan_file("throughput", "engine=ddp"), 5), CPU)
    assert not any(cell.training.channels_last for cell in pilot.cells)


def test_a_suite_that_trains_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="is of kind measurement"):
        pilot_suite(plan_file("in-memory-data"), 5)


@pytest.mark.slow
def test_every_shipped_suite_has_a_pilot_or_a_reason() -> None:
    made, refused = 0, dict[str, str]()
    for source in map(read_suite, bundled()):
        if source.suite.tune is None:  # others are tuned first
            try:
                made += len(make_plan(pilot_suite(make_plan(source.suite, CPU), 5), CPU).cells) > 0
            except UsageError as error:
                refused[source.suite.suite] = str(error)
    told = ("advice is for suites that train a model here", "nothing can run")
    assert {name: text for name, text in refused.items() if not any(words in text for words in told)} == {}
    assert made >= 12
