"""The parity gate in a cell's own format, on traces made by hand: rounding passes, what it must not hide is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from repro.engines.precisions import Bf16Autocast, Bf16Master
from repro.worker.gate.judge import culprit, judge_precision
from repro.worker.gate.trace import Trace
from tests.traces import NAMES, STEPS, evaluated, put, set_norm, trace

Change = Callable[[dict[str, Any]], object]


def moving(*changes: Change) -> Change:
    """Traces with an update in every step."""

    def change(data: dict[str, Any]) -> None:
        data["updates"] = {name: [(0.1, 0.03)] * STEPS for name in NAMES}
        for item in changes:
            item(data)

    return change


def judged(change: Change, precision: Any = None) -> str:
    ranks: Sequence[Trace] = [trace(0, moving(change)), trace(1, moving(change))]
    found = culprit(judge_precision(precision or Bf16Autocast(), trace(None, moving()), ranks))
    return found.text if found else ""


def no_update(step: int) -> Change:
    return lambda data: data.update(updates={
        name: [(0.0, 0.0) if index == step - 1 else (0.1, 0.03) for index in range(STEPS)] for name in NAMES})


@pytest.mark.parametrize("change", [
    lambda _: None,
    set_norm("gradients", "first.bias", 1, 1.0005),
    set_norm("gradients", "first.bias", 5, 0.25),  # later steps may differ: rounding has grown
    put("loss", 3, 0.51),
])
def test_rounding_of_the_format_passes(change: Change) -> None:
    assert judged(change) == ""


@pytest.mark.parametrize(("change", "beginning"), [
    (set_norm("gradients", "first.bias", 1, 2.0), "step 1: gradient of 'first.bias' on rank 0 has norm 2"),
    (put("loss", 0, 2.1), "step 1: loss is 2.1, the reference's 2"),
    (no_update(9), "step 9: the update on rank 0 has norm 0, the reference's 0.17320508"),
    (lambda data: data.update(wide_share=0.0), "after step 10: 0.0% of the master weights on rank 0 are wider than"),
    (evaluated(0, value=0.6, own=0.5), "step 9: evaluation is 0.6, the harness's of the same weights 0.5"),
    (evaluated(1, value=0.5, own=0.52), "step 10: evaluation is 0.5, the harness's of the same weights 0.52"),
    (evaluated(0, moved="last.weight"),
     "after step 9: the evaluation changed the weights, the first of them 'last.weight' on rank 0"),
])
def test_a_defect_is_named(change: Change, beginning: str) -> None:
    assert judged(change).startswith(beginning)


def test_gradients_of_16_bits_have_a_wider_tolerance() -> None:
    change = set_norm("gradients", "first.bias", 1, 1.02)
    assert judged(change, Bf16Master()) == ""
    assert judged(change, Bf16Autocast()) != ""
