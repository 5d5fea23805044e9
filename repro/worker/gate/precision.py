"""Judgement of the parity gate in a cell's own format: the first step, every update, the width of master weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from repro.seams.training import Precision
from repro.worker.gate.difference import Compared, Difference, compare_number, compare_tensors, first
from repro.worker.gate.judge import (
    Pair,
    at,
    check_initial,
    check_input,
    check_optimizer,
    check_own_evaluation,
    check_ranks,
)
from repro.worker.gate.trace import Measure, Trace

AUTOCAST_TOLERANCE = 1e-3
"""Relative, of the first step with float32 gradients: each micro-batch is computed alike, only sums differ."""
NARROW_TOLERANCE = 5e-2
"""Relative, of the first step with gradients of 16 bits, which are also added in 16 bits."""
UPDATE_FACTOR = 2.0
"""Largest ratio of the norms of two updates: later steps differ by rounding, but none may be left out."""
WIDE_SHARE = 0.5
"""Smallest share of wide master weights, as a share of the reference's."""
EVALUATION_TOLERANCE = 1e-2
"""Relative, of the harness's evaluation of the same weights in the same format."""


def judge_precision(precision: Precision, reference: Trace, ranks: Sequence[Trace]) -> dict[str, Difference | None]:
    """Return the first difference of every check; None: passed."""
    tolerance = AUTOCAST_TOLERANCE if precision.weights == "float32" else NARROW_TOLERANCE
    pair = Pair(reference, ranks, (tolerance,) * len(reference.loss))
    index = _first_finite(reference)
    return {
        "initial weights": check_initial(pair),
        "input": first(check_input(pair, step) for step in range(len(reference.loss))),
        "loss": first([compare_number("loss", "loss", reference.steps[0], trace.loss[0], reference.loss[0], tolerance)
                       for trace in ranks]),
        "gradient": _check_tensors(pair, index, "gradient", tolerance),
        "update": _check_tensors(pair, index, "update", tolerance) or _check_sizes(pair),
        "wide masters": _check_width(pair),
        "evaluation": first([check_own_evaluation(ranks, number, EVALUATION_TOLERANCE)
                             for number in range(len(reference.evaluations))]),
        "ranks": check_ranks(pair), "optimizer": check_optimizer(pair),
    }


def _first_finite(reference: Trace) -> int | None:
    """Return the first step whose gradients are finite: a loss scale may start too large, and the step is skipped."""
    if all(value is None or math.isfinite(value[0]) for value in at(reference.gradients, 0).values()):
        return 0
    return None


def _check_tensors(pair: Pair, index: int | None, what: str, tolerance: float) -> Difference | None:
    if index is None:
        return None
    step = pair.reference.steps[index]
    # An update of the first step follows its gradient; Adam's follows the sign, where rounding can flip a zero.
    allowed = tolerance if what == "gradient" else min(1.0, 20 * tolerance)
    theirs = at(_series(pair.reference, what), index)
    return first([compare_tensors(Compared(what, step, f"step {step}", what, trace.rank),
                                  at(_series(trace, what), index), theirs, allowed) for trace in pair.ranks])


def _series(trace: Trace, what: str) -> Mapping[str, Sequence[Measure | None]]:
    return trace.gradients if what == "gradient" else trace.updates


def _check_sizes(pair: Pair) -> Difference | None:
    """Compare the sizes of all updates with the reference's: none is left out, none is made where the other skips."""
    for index, step in enumerate(pair.reference.steps):
        theirs = _size(pair.reference, index)
        for trace in pair.ranks:
            ours = _size(trace, index)
            smaller, larger = sorted((ours, theirs))
            if not math.isfinite(larger) or larger > UPDATE_FACTOR * smaller:
                text = f"step {step}: the update on rank {trace.rank} has norm {ours:.8g}, the reference's {theirs:.8g}"
                return Difference("update", step, text, "", larger / smaller - 1 if smaller else math.inf,
                                  UPDATE_FACTOR - 1)
    return None


def _size(trace: Trace, index: int) -> float:
    return math.sqrt(sum(value[0] ** 2 for value in at(trace.updates, index).values() if value))


def _check_width(pair: Pair) -> Difference | None:
    last, theirs = pair.reference.steps[-1], pair.reference.wide_share
    for trace in pair.ranks:
        if trace.wide_share < WIDE_SHARE * theirs:
            text = (f"after step {last}: {trace.wide_share:.1%} of the master weights on rank {trace.rank} are wider "
                    f"than the narrow type, {theirs:.1%} of the reference's")
            return Difference("wide masters", last, text, "", 1 - trace.wide_share / theirs, WIDE_SHARE)
    return None
