"""Judgement of the parity gate: a candidate's ranks against the reference, check by check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from repro.record.result.reasons import Unlike
from repro.record.result.step_causes import score_cause
from repro.seams.training import Precision
from repro.suite.kinds.training import TrainingConfig
from repro.worker.gate.causes import explained, likely_cause
from repro.worker.gate.difference import (
    AGED,
    AUTOCAST_TOLERANCE,
    EVALUATION_TOLERANCE,
    LARGEST_TOLERANCE,
    LARGEST_UPDATE_TOLERANCE,
    NARROW_EVALUATION_TOLERANCE,
    NARROW_TOLERANCE,
    NARROW_UPDATE,
    NOISE,
    OWN_EVALUATION_TOLERANCE,
    TOLERANCE,
    UPDATE_FACTOR,
    UPDATE_ROUNDING,
    UPDATE_TOLERANCE,
    UPDATE_WIDENED,
    WIDE_SHARE,
    WIDENED,
    Compared,
    Difference,
    compare_number,
    compare_tensors,
    first,
)
from repro.worker.gate.trace import Fed, Series, Trace

TINY = 1e-30
"""In the place of 0 below a fraction."""
SENSITIVE = ("; the tolerance is at its limit, because this training multiplies a disturbance of 1e-7 by 10,000 or "
             "more, so rounding may be the cause: use a smaller rate or a larger damping, or state gate: {skip: "
             "reason}")


@dataclass(frozen=True, slots=True)
class Pair:
    """The reference and all ranks of one candidate."""

    reference: Trace
    ranks: Sequence[Trace]
    tolerances: Sequence[float]
    """By measured step."""
    rounding: float = 0.0
    """Of an update, by the optimizer (`Optimizer.rounding`)."""


Check = Callable[[Pair, int], Difference | None]
"""(pair, index of a measured step) -> the difference."""


def check_input(pair: Pair, index: int) -> Difference | None:
    """Compare the bytes of every micro-batch."""
    return _other_input(pair, pair.reference.steps[index], pair.reference.fed[index],
                        [trace.fed[index] for trace in pair.ranks])


def check_aged_inputs(pair: Pair) -> Difference | None:
    """Compare the micro-batches of the steps at rate 0."""
    start = pair.reference.steps[aged_index(pair.reference)] + 1
    return first(_other_input(pair, start + index, right, [trace.aged_fed[index] for trace in pair.ranks])
                 for index, right in enumerate(pair.reference.aged_fed))


def _other_input(pair: Pair, step: int, fed: Fed, ranks: Sequence[Fed]) -> Difference | None:
    for trace, every in zip(pair.ranks, ranks, strict=True):
        for micro, ours in enumerate(every):
            if ours != (right := fed[micro * len(ranks) + trace.rank]):
                text = f"step {step}: rank {trace.rank} was fed other data than the reference (micro-batch {micro + 1})"
                return Difference("input", step, f"{text}: {_other_data(ours, right, pair.reference)}")
    return None


def _other_data(ours: tuple[str, str], right: tuple[str, str], reference: Trace) -> str:
    """Return in what a micro-batch (hashes of inputs and targets) is another one."""
    if any(ours in step for step in (*reference.fed, *reference.aged_fed)):
        return "it is another micro-batch of the reference's, so their order or their ranks differ"
    if ours[1] == right[1]:
        return "the targets are right and the inputs are not"
    if ours[0] == right[0]:
        return "the inputs are right and the targets are not"
    return "inputs and targets, so it has other samples"


def check_loss(pair: Pair, index: int) -> Difference | None:
    step, theirs = pair.reference.steps[index], pair.reference.loss[index]
    return first(compare_number("loss", step, trace.loss[index], theirs, pair.tolerances[index])
                 for trace in pair.ranks)


def check_updates(pair: Pair, index: int) -> Difference | None:
    """Compare the change of every tensor: at small rates the weights alone would not show that it is missing."""
    norms = [value[0] for value in pair.reference.measures("update", index).values() if value]
    floors = {name: UPDATE_ROUNDING * value[0] + NOISE * max(norms, default=0.0)
              for name, value in pair.reference.measures("weight", index).items() if value}
    tolerance = max(min(max(UPDATE_TOLERANCE, UPDATE_WIDENED * pair.tolerances[index]), LARGEST_UPDATE_TOLERANCE),
                    pair.rounding)
    return check_series(pair, index, "update", tolerance, floors)


def check_series(
    pair: Pair, index: int, what: Series, tolerance: float | None = None, floors: Mapping[str, float] | None = None
) -> Difference | None:
    """Compare all tensors of one step; the tolerance is that of the step unless another is given."""
    reference, allowed = pair.reference, pair.tolerances[index] if tolerance is None else tolerance
    return first(compare_tensors(Compared(what, reference.steps[index], trace.rank), trace.measures(what, index),
                                 reference.measures(what, index), allowed, floors) for trace in pair.ranks)


STEP_CHECKS: Mapping[str, Check] = {
    "input": check_input, "loss": check_loss, "gradient": lambda pair, index: check_series(pair, index, "gradient"),
    "weight": lambda pair, index: check_series(pair, index, "weight", max(pair.tolerances[index], pair.rounding)),
    "update": check_updates,
}
"""Causes before effects: wrong input of one rank changes the loss and the gradients of all."""


def check_initial(pair: Pair) -> Difference | None:
    """Compare the weights before the first step: all of them come from the seed."""
    return first(compare_tensors(Compared("initial weights", 0, trace.rank, "weight", "before step 1"), trace.initial,
                                 pair.reference.initial, TOLERANCE) for trace in pair.ranks)


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
    tolerance = AGED * max(TOLERANCE, pair.tolerances[last])
    start = pair.reference.steps[last] + 1
    return first(compare_number("loss", start + index, trace.aged_loss[index], theirs, tolerance)
                 for index, theirs in enumerate(pair.reference.aged_loss) for trace in pair.ranks)


def aged_index(reference: Trace) -> int:
    """Return the index of the last measured step before those at rate 0."""
    steps = reference.steps
    return next((index for index in range(len(steps) - 1) if steps[index + 1] > steps[index] + 1), len(steps) - 1)


def check_buffers(pair: Pair) -> Difference | None:
    """Compare the buffers after the evaluation: all ranks have those of rank 0, whose micro-batches made them."""
    reference, last = pair.reference, pair.reference.evaluations[0].step
    tolerance = max(pair.tolerances)
    every = [compare_tensors(Compared("buffers", last, trace.rank, "buffer", "after evaluation"), trace.buffers,
                             reference.buffers, tolerance) for trace in pair.ranks]
    found = first(every)
    if found is None:
        return None
    alone = every[0] is None and pair.ranks[every.index(found)].buffers.keys() == pair.ranks[0].buffers.keys()
    stirred = next((trace.evaluations[0].stirred for trace in pair.ranks if trace.evaluations[0].stirred), "")
    if stirred != found.tensor or reference.evaluations[0].stirred:
        stirred = ""
    extra = " (buffers are not synchronised)" if alone else (
        f": the evaluation changed {stirred!r}, as in training mode" if stirred else "")
    return replace(found, text=found.text.replace("buffer of", "buffer", 1) + extra)


def check_evaluations(pair: Pair) -> Difference | None:
    """Compare the evaluations with the harness's own of the same weights, among ranks, and with the reference's.

    Later ones are compared with the reference's only if the harness has none: the weights have moved further apart.
    """
    for index, right in enumerate(pair.reference.evaluations):
        if found := check_own_evaluation(pair.ranks, index, OWN_EVALUATION_TOLERANCE):
            return found
        values = [trace.evaluations[index].value for trace in pair.ranks]
        for trace, value in zip(pair.ranks, values, strict=True):
            if value != values[0] and not (math.isnan(value) and math.isnan(values[0])):
                text = (f"after step {right.step}: the evaluation is {value:.8g} on rank {trace.rank}, "
                        f"{values[0]:.8g} on rank 0")
                return Difference("evaluation", right.step, text)
        found = compare_number("evaluation", right.step, values[0], right.value,
                               max(EVALUATION_TOLERANCE, pair.rounding))
        if found and (index == 0 or pair.ranks[0].evaluations[index].own is None):
            return found
    return None


def check_own_evaluation(ranks: Sequence[Trace], index: int, tolerance: float) -> Difference | None:
    """Compare an evaluation with the harness's own of the same weights, which it must leave as they are."""
    for trace in ranks:
        item = trace.evaluations[index]
        if item.resting or item.counted != item.samples:
            what = (f"{item.counted} samples were evaluated, not {item.samples}" if item.counted != item.samples else
                    f"the evaluation left {item.resting} layers of rank {trace.rank} in evaluation mode")
            return Difference("evaluation", item.step, f"after step {item.step}: {what}")
        if item.moved:
            text = (f"after step {item.step}: the evaluation changed the weights, the first of them {item.moved!r} "
                    f"on rank {trace.rank}")
            return Difference("evaluation", item.step, text, item.moved)
        if item.own is not None and (found := compare_number(
                "evaluation", item.step, item.value, item.own, tolerance)):
            text = found.text.replace("the reference's", "the harness's of the same weights")
            known = item.like or item.place is not None
            return replace(found, text=f"{text}: {score_cause(item.like, item.place)}" if known else text)
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
                text = Unlike(name=name.replace("_", " "), wanted=wanted, ran=trace.effective[name]).words
                return Difference("optimizer", pair.reference.steps[-1], text)
    return None


END_CHECKS: Mapping[str, Callable[[Pair], Difference | None]] = {
    "initial weights": check_initial, "rate 0": check_aged, "buffers": check_buffers, "evaluation": check_evaluations,
    "ranks": check_ranks, "optimizer": check_optimizer,
}


def judge(
    reference: Trace, ranks: Sequence[Trace], tolerances: Sequence[float] | None = None, rounding: float = 0.0
) -> dict[str, Difference | None]:
    """Return the first difference of every check; None: passed.

    Args:
        rounding: of the optimizer's updates (`Optimizer.rounding`).
    """
    pair = Pair(reference, ranks, tolerances or (TOLERANCE,) * len(reference.loss), rounding)
    found = {name: first(check(pair, index) for index in range(len(reference.loss)))
             for name, check in STEP_CHECKS.items()}
    for name, check in (("loss", check_aged_losses), ("input", check_aged_inputs)):
        if (aged := check(pair)) and ((known := found[name]) is None or aged.step < known.step):
            found[name] = aged
    return explained(pair.reference, pair.ranks, found | {name: check(pair) for name, check in END_CHECKS.items()})


ORDER = ("initial weights", "input", "loss", "gradient", "weight", "update", "rate 0", "buffers", "evaluation", "ranks",
         "optimizer", "wide masters")


def culprit(found: Mapping[str, Difference | None]) -> Difference | None:
    """Return the difference that explains the others: that of the first step, of the first check in `ORDER`."""
    known = [item for item in found.values() if item is not None]
    return min(known, key=lambda item: (item.step, ORDER.index(item.check)), default=None)


def sentence(found: Difference | None, tolerances: Sequence[float], choices: TrainingConfig | None = None) -> str:
    """Return a difference in words, with its likely cause; "": there is none. Where the tolerance is at its limit it
    may be rounding.

    Args:
        tolerances: as `widen_tolerances` returns them; empty: plain ones.
        choices: of the candidate, whose ranks and micro-batches are factors to look for.
    """
    if found is None:
        return ""
    if found.tolerance == LARGEST_TOLERANCE and LARGEST_TOLERANCE in tolerances:
        return found.text + SENSITIVE
    cause = likely_cause(found, choices) if choices is not None else ""
    return f"{found.text}: {cause}" if cause else found.text


def widen_tolerances(reference: Trace, disturbed: Sequence[Trace], rounding: float = 0.0) -> tuple[float, ...]:
    """Return the tolerance of each step: ten times the largest distance so far between the reference and its copies.

    Adaptive optimizers amplify rounding (a step of AdamW depends on the sign of a gradient near zero), and so does a
    unit that switches on or off, at another step in every copy. Two correct engines therefore differ by more than 1e-5.
    The first step keeps the plain tolerance: it reveals scaling errors.

    Args:
        rounding: of the optimizer's updates; later steps differ by as much, whatever the limit.
    """
    found, largest = [], 0.0
    for index in range(len(reference.loss)):
        largest = max([largest, *(_distance(reference, copy, index) for copy in disturbed)])
        most = max(LARGEST_TOLERANCE, rounding)
        found.append(TOLERANCE if index == 0 else min(most, max(TOLERANCE, WIDENED * largest)))
    return tuple(found)


def _distance(reference: Trace, copy: Trace, index: int) -> float:
    loss = reference.loss[index]
    distances = [abs(copy.loss[index] / loss - 1)] if loss else []
    series: tuple[Series, ...] = ("gradient", "weight")
    for what in series:
        ours = copy.measures(what, index)
        known = {name: value for name, value in reference.measures(what, index).items() if value is not None}
        floor = NOISE * max((value[0] for value in known.values()), default=0.0)
        for name, right in known.items():
            mine = ours[name]
            assert mine is not None
            norm = max(mine[0], right[0]) or 1.0
            distances += [(abs(mine[part] - right[part]) - floor) / (norm * (1 + 2 * part)) for part in (0, 1)]
    return max(distances, default=0.0)


def largest_difference(reference: Trace, trace: Trace) -> float:
    """Return the largest relative difference of a loss or gradient norm over all steps."""
    losses = [abs(a - b) / max(abs(b), TINY) for a, b in zip(trace.loss, reference.loss, strict=True)]
    norms = [abs((norm(trace, "gradient", index) or TINY) / (norm(reference, "gradient", index) or TINY) - 1)
             for index in range(len(reference.loss))]
    return max(*losses, *norms)


def norm(trace: Trace, what: Series, index: int) -> float:
    """Return the norm of all tensors of one step together."""
    return math.sqrt(sum(value[0] ** 2 for value in trace.measures(what, index).values() if value))


# ---- in a cell's own format: the first step, the size of every update, the width of master weights


def judge_precision(
    precision: Precision, reference: Trace, ranks: Sequence[Trace], rounding: float = 0.0
) -> dict[str, Difference | None]:
    """Return the first difference of every check in a cell's own format; None: passed."""
    tolerance = AUTOCAST_TOLERANCE if precision.weights == "float32" else NARROW_TOLERANCE
    pair = Pair(reference, ranks, (tolerance,) * len(reference.loss))
    # A loss scale may start too large: then the first step is skipped, and its gradients are not finite.
    finite = all(value is None or math.isfinite(value[0]) for value in reference.measures("gradient", 0).values())
    return explained(pair.reference, pair.ranks, {
        "initial weights": check_initial(pair),
        "input": first(check_input(pair, step) for step in range(len(reference.loss))),
        "loss": check_loss(pair, 0),
        "gradient": check_series(pair, 0, "gradient") if finite else None,
        "update": (check_series(pair, 0, "update", max(min(1.0, NARROW_UPDATE * tolerance), rounding))
                   if finite else None)
        or _check_sizes(pair),
        "wide masters": _check_width(pair),
        "evaluation": first(check_own_evaluation(ranks, number, NARROW_EVALUATION_TOLERANCE)
                            for number in range(len(reference.evaluations))),
        "ranks": check_ranks(pair), "optimizer": check_optimizer(pair),
    })


def _check_sizes(pair: Pair) -> Difference | None:
    """Compare the sizes of all updates with the reference's: none is left out, none is made where the other skips."""
    for index, step in enumerate(pair.reference.steps):
        theirs = norm(pair.reference, "update", index)
        for trace in pair.ranks:
            ours = norm(trace, "update", index)
            smaller, larger = sorted((ours, theirs))
            if not math.isfinite(larger) or larger > UPDATE_FACTOR * smaller:
                text = f"step {step}: the update on rank {trace.rank} has norm {ours:.8g}, the reference's {theirs:.8g}"
                return Difference("update", step, text, "", larger / smaller - 1 if smaller else math.inf,
                                  UPDATE_FACTOR - 1)
    return None


def _check_width(pair: Pair) -> Difference | None:
    last, theirs = pair.reference.steps[-1], pair.reference.wide_share
    for trace in pair.ranks:
        if trace.wide_share < WIDE_SHARE * theirs:
            text = (f"after step {last}: {trace.wide_share:.1%} of the master weights on rank {trace.rank} are wider "
                    f"than the narrow type, {theirs:.1%} of the reference's")
            return Difference("wide masters", last, text, "", 1 - trace.wide_share / theirs, WIDE_SHARE)
    return None
