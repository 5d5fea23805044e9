"""Judgement of the parity gate in fp32: a candidate's ranks against the reference, check by check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from repro.worker.gate.difference import (
    NOISE,
    TOLERANCE,
    Compared,
    Difference,
    compare_number,
    compare_tensors,
    first,
)
from repro.worker.gate.trace import Measure, Trace

LARGEST_TOLERANCE = 1e-2
"""Upper limit of every tolerance: beyond it the gate could not tell a defect from amplified rounding."""
SENSITIVE = ("; the tolerance is at its limit, because this training multiplies a disturbance of 1e-7 by 10,000 or "
             "more, so rounding may be the cause: use a smaller rate or a larger damping, or state gate: {skip: "
             "reason}")
EVALUATION_TOLERANCE = 0.02
"""Relative, of the reference's evaluation: its weights differ in their last places, and so may a sample's class. The
evaluation itself is judged with the candidate's own weights, where nothing may differ."""
OWN_EVALUATION_TOLERANCE = 1e-4
"""Relative, of the harness's evaluation of the same weights; healthy engines differ by nothing (measured on a CPU)."""
UPDATE_TOLERANCE = 1e-3
"""Relative, of the change of a tensor; at small rates rounding of the weights is added."""
UPDATE_ROUNDING = 4e-7
"""Absolute floor of an update as a share of the norm of its weights: a few last places of float32."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The reference and all ranks of one candidate."""

    reference: Trace
    ranks: Sequence[Trace]
    tolerances: Sequence[float]
    """By measured step."""


Check = Callable[[Pair, int], Difference | None]
"""(pair, index of a measured step) -> the difference."""


def check_input(pair: Pair, index: int) -> Difference | None:
    """Compare the bytes of every micro-batch."""
    reference, world, step = pair.reference, len(pair.ranks), pair.reference.steps[index]
    for trace in pair.ranks:
        for micro, ours in enumerate(trace.fed[index]):
            if ours != reference.fed[index][micro * world + trace.rank]:
                text = f"step {step}: rank {trace.rank} was fed other data than the reference (micro-batch {micro + 1})"
                return Difference("input", step, text)
    return None


def check_loss(pair: Pair, index: int) -> Difference | None:
    step, theirs = pair.reference.steps[index], pair.reference.loss[index]
    return first([compare_number("loss", "loss", step, trace.loss[index], theirs, pair.tolerances[index])
                  for trace in pair.ranks])


def check_gradients(pair: Pair, index: int) -> Difference | None:
    return _check_series(pair, index, "gradient", pair.reference.gradients, lambda trace: trace.gradients)


def check_weights(pair: Pair, index: int) -> Difference | None:
    return _check_series(pair, index, "weight", pair.reference.weights, lambda trace: trace.weights)


def check_updates(pair: Pair, index: int) -> Difference | None:
    """Compare the change of every tensor: at small rates the weights alone would not show that it is missing."""
    reference = pair.reference
    step, theirs = reference.steps[index], at(reference.updates, index)
    weights = at(reference.weights, index)
    norms = [value[0] for value in theirs.values() if value]
    floors = {name: UPDATE_ROUNDING * value[0] + NOISE * max(norms, default=0.0)
              for name, value in weights.items() if value}
    tolerance = min(max(UPDATE_TOLERANCE, 100 * pair.tolerances[index]), 0.25)
    return first([compare_tensors(Compared("update", step, f"step {step}", "update", trace.rank),
                                  at(trace.updates, index), theirs, tolerance, floors) for trace in pair.ranks])


def _check_series(
    pair: Pair, index: int, what: str, theirs: Mapping[str, Sequence[Measure | None]],
    ours: Callable[[Trace], Mapping[str, Sequence[Measure | None]]],
) -> Difference | None:
    step = pair.reference.steps[index]
    return first([compare_tensors(Compared(what, step, f"step {step}", what, trace.rank), at(ours(trace), index),
                                  at(theirs, index), pair.tolerances[index]) for trace in pair.ranks])


def at(series: Mapping[str, Sequence[Measure | None]], index: int) -> dict[str, Measure | None]:
    """Return the measures of one step."""
    return {name: values[index] for name, values in series.items()}


STEP_CHECKS: Mapping[str, Check] = {
    "input": check_input, "loss": check_loss, "gradient": check_gradients, "weight": check_weights,
    "update": check_updates,
}
"""Causes before effects: wrong input of one rank changes the loss and the gradients of all."""


def check_initial(pair: Pair) -> Difference | None:
    """Compare the weights before the first step: all of them come from the seed."""
    return first([compare_tensors(Compared("initial weights", 0, "before step 1", "weight", trace.rank),
                                  trace.initial, pair.reference.initial, TOLERANCE) for trace in pair.ranks])


def check_aged(pair: Pair) -> Difference | None:
    """Check that the steps at rate 0 changed no weight."""
    last = aged_index(pair.reference)
    for trace in pair.ranks:
        if trace.moved_at_rate_zero:
            start, end = pair.reference.steps[last] + 1, pair.reference.steps[last + 1] - 1
            text = (f"steps {start} to {end}: weight of {trace.moved_at_rate_zero!r} on rank {trace.rank} changed at "
                    "rate 0")
            return Difference("rate 0", start, text, trace.moved_at_rate_zero)
    return None


def check_aged_losses(pair: Pair) -> Difference | None:
    """Compare the losses of the steps at rate 0: weights that stay put differ by as much as at the last step before."""
    last = aged_index(pair.reference)
    tolerance = max(10 * TOLERANCE, 10 * pair.tolerances[last])
    start = pair.reference.steps[last] + 1
    return first(compare_number("loss", "loss", start + index, trace.aged_loss[index], theirs, tolerance)
                 for index, theirs in enumerate(pair.reference.aged_loss) for trace in pair.ranks)


def aged_index(reference: Trace) -> int:
    """Return the index of the last measured step before those at rate 0."""
    steps = reference.steps
    return next((index for index in range(len(steps) - 1) if steps[index + 1] > steps[index] + 1), len(steps) - 1)


def check_buffers(pair: Pair) -> Difference | None:
    """Compare the buffers after the evaluation: all ranks have those of rank 0, whose micro-batches made them."""
    reference, last = pair.reference, pair.reference.steps[-1]
    tolerance = max(pair.tolerances)
    for trace in pair.ranks:
        found = compare_tensors(Compared("buffers", last, "after evaluation", "buffer", trace.rank), trace.buffers,
                                reference.buffers, tolerance)
        if found is None:
            continue
        alone = trace.rank and trace.buffers.keys() == pair.ranks[0].buffers.keys() and compare_tensors(
            Compared("buffers", last, "", "", 0), pair.ranks[0].buffers, reference.buffers, tolerance) is None
        extra = " (buffers are not synchronised)" if alone else ""
        text = found.text.replace("buffer of", "buffer", 1) + extra
        return Difference("buffers", last, text, found.tensor, found.size, found.tolerance)
    return None


def check_evaluations(pair: Pair) -> Difference | None:
    """Compare the evaluations with the harness's own of the same weights, among ranks, and with the reference's.

    Later ones are compared with the reference's only if the harness has none: the weights have moved further apart.
    """
    for index, right in enumerate(pair.reference.evaluations):
        if found := check_own_evaluation(pair.ranks, index, OWN_EVALUATION_TOLERANCE):
            return found
        values = [trace.evaluations[index].value for trace in pair.ranks]
        for trace, value in zip(pair.ranks, values, strict=True):
            if value != values[0]:
                text = (f"after step {right.step}: the evaluation is {value:.8g} on rank {trace.rank}, "
                        f"{values[0]:.8g} on rank 0")
                return Difference("evaluation", right.step, text)
        found = compare_number("evaluation", "evaluation", right.step, values[0], right.value, EVALUATION_TOLERANCE)
        if found and (index == 0 or pair.ranks[0].evaluations[index].own is None):
            return found
    return None


def check_own_evaluation(ranks: Sequence[Trace], index: int, tolerance: float) -> Difference | None:
    """Compare an evaluation with the harness's own of the same weights, which it must leave as they are."""
    for trace in ranks:
        item = trace.evaluations[index]
        if item.moved:
            text = (f"after step {item.step}: the evaluation changed the weights, the first of them {item.moved!r} "
                    f"on rank {trace.rank}")
            return Difference("evaluation", item.step, text, item.moved)
        if item.own is not None and (found := compare_number(
                "evaluation", "evaluation", item.step, item.value, item.own, tolerance)):
            text = found.text.replace("the reference's", "the harness's of the same weights")
            return replace(found, text=text)
    return None


def check_ranks(pair: Pair) -> Difference | None:
    """Compare what every rank holds: bit for bit among ranks that hold the same, and with the full weights."""
    last, seen = pair.reference.steps[-1], dict[str, Trace]()
    for trace in pair.ranks:
        before = seen.setdefault(trace.parts, trace)
        if trace.parts and before.held != trace.held:
            text = f"after step {last}: rank {trace.rank} holds other weights than rank {before.rank}"
            return Difference("ranks", last, text)
    for trace in pair.ranks:
        if trace.different:
            text = (f"after step {last}: {trace.different} weights that rank {trace.rank} holds differ from the full "
                    f"weights, the first in {trace.first_different!r}")
            return Difference("ranks", last, text, trace.first_different)
    return None


def check_optimizer(pair: Pair) -> Difference | None:
    """Compare class and hyper-parameters of the optimizer that steps with the requested ones."""
    for trace in pair.ranks:
        for name, wanted in trace.optimizer.items():
            if name in trace.effective and trace.effective[name] != wanted:
                text = f"{name.replace('_', ' ')} {wanted} was asked for, {trace.effective[name]} ran"
                return Difference("optimizer", pair.reference.steps[-1], text)
    return None


END_CHECKS: Mapping[str, Callable[[Pair], Difference | None]] = {
    "initial weights": check_initial, "rate 0": check_aged, "buffers": check_buffers, "evaluation": check_evaluations,
    "ranks": check_ranks, "optimizer": check_optimizer,
}


def judge(
    reference: Trace, ranks: Sequence[Trace], tolerances: Sequence[float] | None = None
) -> dict[str, Difference | None]:
    """Return the first difference of every check; None: passed."""
    pair = Pair(reference, ranks, tolerances or (TOLERANCE,) * len(reference.loss))
    found = {name: first(check(pair, index) for index in range(len(reference.loss)))
             for name, check in STEP_CHECKS.items()}
    if (aged := check_aged_losses(pair)) and (found["loss"] is None or aged.step < found["loss"].step):
        found["loss"] = aged
    return found | {name: check(pair) for name, check in END_CHECKS.items()}


ORDER = ("initial weights", "input", "loss", "gradient", "weight", "update", "rate 0", "buffers", "evaluation", "ranks",
         "optimizer", "wide masters")


def culprit(found: Mapping[str, Difference | None]) -> Difference | None:
    """Return the difference that explains the others: that of the first step, of the first check in `ORDER`."""
    known = [item for item in found.values() if item is not None]
    return min(known, key=lambda item: (item.step, ORDER.index(item.check)), default=None)


def sentence(found: Difference | None, tolerances: Sequence[float]) -> str:
    """Return a difference in words; "": there is none. Where the tolerance is at its limit it may be rounding.

    Args:
        tolerances: as `widen_tolerances` returns them; empty: plain ones.
    """
    if found is None:
        return ""
    limited = found.tolerance == LARGEST_TOLERANCE and LARGEST_TOLERANCE in tolerances
    return found.text + SENSITIVE if limited else found.text


def widen_tolerances(reference: Trace, disturbed: Sequence[Trace]) -> tuple[float, ...]:
    """Return the tolerance of each step: ten times the largest distance so far between the reference and its copies.

    Adaptive optimizers amplify rounding (a step of AdamW depends on the sign of a gradient near zero), and so does a
    unit that switches on or off, at another step in every copy. Two correct engines therefore differ by more than 1e-5.
    The first step keeps the plain tolerance: it reveals scaling errors.
    """
    found, largest = [], 0.0
    for index in range(len(reference.loss)):
        largest = max([largest, *(_distance(reference, copy, index) for copy in disturbed)])
        found.append(TOLERANCE if index == 0 else min(LARGEST_TOLERANCE, max(TOLERANCE, 10 * largest)))
    return tuple(found)


def _distance(reference: Trace, copy: Trace, index: int) -> float:
    loss = reference.loss[index]
    distances = [abs(copy.loss[index] / loss - 1)] if loss else []
    for ours, theirs in ((copy.gradients, reference.gradients), (copy.weights, reference.weights)):
        known = {name: value for name, value in at(theirs, index).items() if value is not None}
        floor = NOISE * max((value[0] for value in known.values()), default=0.0)
        for name, right in known.items():
            mine = ours[name][index]
            assert mine is not None
            norm = max(mine[0], right[0]) or 1.0
            distances += [(abs(mine[part] - right[part]) - floor) / (norm * (1 + 2 * part)) for part in (0, 1)]
    return max(distances, default=0.0)


def largest_difference(reference: Trace, trace: Trace) -> float:
    """Return the largest relative difference of a loss or gradient norm over all steps."""
    losses = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(trace.loss, reference.loss, strict=True)]
    norms = [abs(_norm(trace.gradients, index) / _norm(reference.gradients, index) - 1)
             for index in range(len(reference.loss))]
    return max(*losses, *norms)


def _norm(gradients: Mapping[str, Sequence[Measure | None]], index: int) -> float:
    return float(sum(value[0] ** 2 for value in at(gradients, index).values() if value) ** 0.5) or 1e-30
