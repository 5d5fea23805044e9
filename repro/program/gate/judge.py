"""Judgement of a traced variant of a program against the reference: the first step and tensor that differ, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from repro.program.gate import causes
from repro.program.gate.sight import FLOOR, Sight, residual
from repro.program.gate.trace import Measured, Quantity, Step, Tensors, Trace

INITIAL = 1e-6
"""Relative difference of initial weights; in a narrower type its width is added."""
UPDATE_ROUNDING = 4.0
"""Absolute floor of an update, in last places of its weights."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first failure of one check."""

    check: str
    step: int
    """0: before the first step."""
    what: str
    tensor: str = ""
    size: float = math.nan
    tolerance: float = math.nan
    cause: str = ""

    @property
    def text(self) -> str:
        """Return the difference with what it means."""
        return f"{self.what}: {self.cause}" if self.cause else self.what


@dataclass(frozen=True, slots=True)
class Intended:
    """Processes and wrapper of a variant, as the suite states them."""

    processes: int
    wrapper: str = ""
    """A name of `pieces.wrapper_of`, or the beginning of one; "": not stated."""


@dataclass(frozen=True, slots=True)
class Pair(causes.Facts):
    """A candidate and the reference, as both were traced."""

    sight: Sight


# ---- before the first step


def check_wrapper(ours: Trace, intended: Intended) -> Difference | None:
    """Check that what was to distribute the training did: frameworks fall back to something else silently."""
    header, count = ours.header, len(ours.headers)
    if count > header.world:
        return Difference("wrapper", 0, f"{count} processes trained and know nothing of each other: there was no "
                          "process group, so each trains alone")
    if header.world != intended.processes:
        return Difference("wrapper", 0, f"{header.world} process{'es' * (header.world > 1)} trained, and the suite "
                          f"states {intended.processes}")
    if not header.wrapper.startswith(intended.wrapper) or (intended.wrapper == "fsdp" and header.wrapper == "fsdp2"):
        return Difference("wrapper", 0, f"{intended.wrapper} was requested and {header.wrapper} ran "
                          f"({' around '.join(header.chain)}): {causes.fallback(intended.wrapper, header.wrapper)}")
    return None


def check_tensors(pair: Pair) -> Difference | None:
    """Compare names and shapes of the trained tensors."""
    ours, theirs = pair.ours.header, pair.theirs.header
    for name in {**theirs.shapes, **ours.shapes}:
        if ours.shapes.get(name) == theirs.shapes.get(name):
            continue
        if name in ours.frozen or name in theirs.frozen:
            text = f"{name!r} is {'frozen' if name in ours.frozen else 'trained, and frozen in the reference'}"
        elif name not in ours.shapes or name not in theirs.shapes:
            text = f"{name!r} exists in only one of the two: other models are trained"
        else:
            text = f"{name!r} has the shape {list(ours.shapes[name])}, the reference's {list(theirs.shapes[name])}"
        return Difference("tensors", 0, text, name)
    return None


def check_formats(pair: Pair) -> Difference | None:
    """Compare the types of what the optimizer updates, of its state, and of the forward pass."""
    text = causes.other_formats(pair)
    return Difference("formats", 0, text) if text else None


def check_initial(pair: Pair) -> Difference | None:
    """Compare the weights before the first step."""
    width = max(pair.ours.stored_width, pair.theirs.stored_width)
    tolerance = INITIAL + (width if width > 1e-6 else 0.0)
    ours, theirs = pair.ours.initial, pair.theirs.initial
    if ours.apart:
        return Difference("initial weights", 0, f"before step 1: ranks start from different values of {ours.apart[0]!r}"
                          ": each draws its own, and nothing broadcasts them", ours.apart[0])
    found = _differing(ours, theirs, lambda name: (tolerance, tolerance, 1e-9 * theirs.norm))
    if not found:
        return _check_untrained(pair, tolerance)
    worst = max(found, key=lambda name: found[name].size)
    return Difference("initial weights", 0, f"before step 1: {found[worst].words(worst)} in {_share(found, theirs)}",
                      worst, found[worst].size, tolerance, causes.other_start(found, theirs))


def _check_untrained(pair: Pair, tolerance: float) -> Difference | None:
    """Compare frozen weights and buffers before the first step, those that both sides have seen."""
    ours, theirs = ({name: item for name, item in mine.untrained.whole.items() if name in other.untrained.whole}
                    for mine, other in ((pair.ours, pair.theirs), (pair.theirs, pair.ours)))
    found = _differing(Tensors(ours, ()), Tensors(theirs, ()), lambda name: (tolerance, tolerance, 0.0))
    for name, item in found.items():
        what = "frozen weights" if name in pair.ours.header.frozen else "the buffer"
        return Difference("initial weights", 0, f"before step 1: {what} {item.words(name)}", name, item.size, tolerance)
    return None


def check_repetition(pair: Pair) -> Difference | None:
    """Check that each side, started again, does the same, and that it trains: else nothing can be compared."""
    steps = pair.theirs.steps
    if steps and not any(step.update.norm for step in steps):
        why = "the loss is constant, or the rate is 0 in all of them" if any(step.settings for step in steps) else \
            "the optimizer that watch.trace was given holds none of the model's tensors, but perhaps copies of its own"
        return Difference("repetition", 0, "no traced step of the reference changes a weight, so nothing is compared: "
                          f"{why}")
    right = {step.number: step for step in steps}
    if not any(number < pair.sight.blind or (number == pair.sight.blind and all(
            step.ranks[0].loss or step.gradient.whole for step in (ours, right[number])))
            for ours in pair.ours.steps if (number := ours.number) in right):
        return Difference("repetition", 0, "no step can be compared: a start one last place away changes the first "
                          "update, and neither loss nor gradient is seen")
    return Difference("repetition", 0, pair.sight.unrepeated) if pair.sight.unrepeated else None


# ---- step by step


def check_input(pair: Pair, ours: Step, theirs: Step) -> Difference | None:
    """Compare the samples fed over all ranks and micro-steps, whatever their order.

    Rows that differ although loss and gradient are equal hold the same samples otherwise: the batch is not the first
    dimension, or a sample's form depends on its call. More rows of one form are more work, if not another training.
    """
    text = causes.other_input(ours, theirs, pair.theirs.steps)
    counts, kinds = ([sum(fed.total() for fed in step.fed) for step in (ours, theirs)],
                     [{rank.kinds for rank in step.ranks} for step in (ours, theirs)])
    # In a narrow type the gradients of slightly other samples are equal, too.
    arranged = kinds[0] != kinds[1] or (counts[0] == counts[1] and pair.sight.width < 1e-6)
    if not text or _by_position(ours, theirs) or (arranged and _same_gradient(pair, ours, theirs)):
        return None
    return Difference("input", ours.number, f"step {ours.number}: {text}")


def _by_position(ours: Step, theirs: Step) -> bool:
    """Return True if a row is a position of all samples in a call, and no sample.

    Calls have as many rows on both sides then, and rows are longer the fewer calls there are.
    """
    rows = [{len(call) for rank in step.ranks for call in rank.fed} for step in (ours, theirs)]
    calls = [sum(len(rank.fed) for rank in step.ranks) for step in (ours, theirs)]
    widths = [re.search(r"\[(\d+)", next(iter(step.ranks[0].kinds), "")) for step in (ours, theirs)]
    return (rows[0] == rows[1] and calls[0] != calls[1] and widths[0] is not None and widths[1] is not None
            and int(widths[0][1]) * calls[0] == int(widths[1][1]) * calls[1])


def _same_gradient(pair: Pair, ours: Step, theirs: Step) -> bool:
    """Return True if loss and gradient are seen, and equal."""
    what: Quantity = "clipping" if _reduced_late(ours) or _reduced_late(theirs) else "gradient"
    seen = all(step.ranks[0].loss and step.tensors[what].norm for step in (ours, theirs))
    return (seen and ours.number <= pair.sight.blind
            and all(math.isfinite(pair.sight.of(what, name, ours.number)[0]) for name in theirs.tensors[what].whole)
            and check_loss(pair, ours, theirs) is None and check_quantity(pair, what, ours, theirs) is None)


def _reduced_late(step: Step) -> bool:
    """Return True if the ranks reduce gradients after the backward pass: what the optimizer gets is alike on all."""
    return bool(step.gradient.apart and step.clipped.whole and not step.clipped.apart)


def check_flags(pair: Pair, ours: Step, theirs: Step) -> Difference | None:
    """Compare which layers were in evaluation mode, on every rank."""
    right = {name for rank in theirs.ranks for name in rank.resting}
    for place, rank in enumerate(ours.ranks):
        if other := {*rank.resting} ^ right:
            where = f" on rank {place}" if any({*each.resting} != {*rank.resting} for each in ours.ranks) else ""
            return Difference("flags", ours.number, f"step {ours.number}: {len(rank.resting)} layers train in "
                              f"evaluation mode{where}, {len(right)} of the reference's (such as {max(other)!r} in one "
                              "of the two): model.train() was not called, or a part was set to eval()")
    return None


def check_loss(pair: Pair, ours: Step, theirs: Step) -> Difference | None:
    """Compare the loss as optimised."""
    mine, right, tolerance = ours.loss, theirs.loss, pair.sight.loss(ours.number)
    scale = max(abs(mine), abs(right))
    if abs(mine - right) <= tolerance * scale:  # False if one is not finite
        return None
    if not ours.ranks[0].loss or not theirs.ranks[0].loss:
        return None  # a framework that differentiates otherwise
    return Difference("loss", ours.number, f"step {ours.number}: loss is {mine:.8g}, the reference's {right:.8g}",
                      "", abs(mine - right) / scale, tolerance, causes.other_loss(pair, ours, theirs))


def check_ranks(pair: Pair, ours: Step, theirs: Step) -> Difference | None:
    """Compare the copies of one tensor on different ranks."""
    for what, words in causes.COPIES.items():
        tensors: Tensors = getattr(ours, what)
        if tensors.apart and not getattr(theirs, what).apart and not (what == "gradient" and _reduced_late(ours)):
            return Difference("ranks", ours.number, f"step {ours.number}: {what.rstrip('s')} of {tensors.apart[0]!r} "
                              f"differs between ranks: {words}", tensors.apart[0])
    return None


def check_quantity(pair: Pair, what: Quantity, ours: Step, theirs: Step) -> Difference | None:
    """Compare one quantity of all tensors."""
    mine, right, number = ours.tensors[what], theirs.tensors[what], ours.number
    if not mine.whole or not right.whole or (what == "gradient" and (_reduced_late(ours) or _reduced_late(theirs))):
        return None
    norm = right.norm

    def limits(name: str) -> tuple[float, float, float]:
        floor = FLOOR * norm
        if what == "update":
            floor += UPDATE_ROUNDING * pair.sight.rounding * pair.theirs.initial.whole[name].norm
        return (*pair.sight.of(what, name, number), floor)

    found = _differing(mine, right, limits)
    if not found:
        return None
    worst = max(found, key=lambda name: found[name].size / found[name].tolerance)
    cause = causes.other_quantity(pair, what, found, ours, theirs)
    noun = {"gradient": "gradient", "clipping": "gradient after clipping", "update": "update"}[what]
    return Difference(what, number, f"step {number}: {noun} of {found[worst].words(worst)} in {_share(found, right)}",
                      worst, found[worst].size, found[worst].tolerance, cause)


def check_rate(pair: Pair, ours: Step, theirs: Step) -> Difference | None:
    """Compare rate, decay and the other settings of the optimizer's groups."""
    text = causes.other_settings(pair, ours, theirs)
    return Difference("rate", ours.number, f"step {ours.number}: {text}") if text else None


def check_moved(pair: Pair, ours: Step, theirs: Step) -> Difference | None:
    """Check that what changes weights besides updates (a clamp, a second optimizer) does so in both or in neither."""
    here, there = _moved(pair.ours, ours, pair.sight.rounding), _moved(pair.theirs, theirs, pair.sight.rounding)
    for name in here ^ there:
        text = ("something else than this optimizer writes them" if name in here else
                "not here, but in the reference, by something else than its optimizer")
        return Difference("weights", ours.number, f"step {ours.number}: the weights of {name!r} changed after the "
                          f"update of the step before: {text}", name)
    return None


def _moved(trace: Trace, now: Step, rounding: float) -> set[str]:
    """Return the tensors that are not, before a step, what they were before the last one plus its update."""
    before = next((step for step in trace.steps if step.number == now.number - 1), None)
    if before is None:
        return set()
    return {name for name, item in now.weights.whole.items()
            if np.linalg.norm(item.sketch - before.weights.whole[name].sketch - before.update.whole[name].sketch)
            > (INITIAL + rounding) * item.norm + 0.01 * before.update.whole[name].norm}


STEP_CHECKS: Mapping[str, Callable[[Pair, Step, Step], Difference | None]] = {
    "input": check_input, "flags": check_flags, "rate": check_rate, "weights": check_moved, "loss": check_loss,
    "ranks": check_ranks,
    "gradient": lambda pair, ours, theirs: check_quantity(pair, "gradient", ours, theirs),
    "clipping": lambda pair, ours, theirs: check_quantity(pair, "clipping", ours, theirs),
    "update": lambda pair, ours, theirs: check_quantity(pair, "update", ours, theirs),
}
"""Causes before effects."""
UNWEIGHTED = ("input", "flags", "rate", "ranks", "weights")
"""Checks of what does not depend on the weights, or not on those of another run."""


@np.errstate(invalid="ignore")  # what is not finite is a difference
def judge(
    ours: Trace, theirs: Trace, sight: Sight, intended: Intended
) -> dict[str, Difference | None]:
    """Return the first difference of every check, causes before effects; None: passed."""
    pair = Pair(ours, theirs, sight)
    found: dict[str, Difference | None] = {
        "wrapper": check_wrapper(ours, intended), "tensors": check_tensors(pair), "formats": check_formats(pair),
        "initial weights": check_initial(pair), "repetition": check_repetition(pair)}
    right = {step.number: step for step in theirs.steps}
    alike = found["tensors"] is None
    for name, check in ((name, check) for name, check in STEP_CHECKS.items() if alike or name in UNWEIGHTED):
        found[name] = next((difference for step in ours.steps if step.number in right and
                            (name in UNWEIGHTED or name == "update" or step.number <= sight.blind) and
                            (difference := check(pair, step, right[step.number])) is not None), None)
    first = culprit(found)
    return {name: replace(item, cause=f"it may follow from the first difference ({first.check})")
            if item is not None and first is not None and item is not first and item.cause else item
            for name, item in found.items()}


def culprit(found: Mapping[str, Difference | None]) -> Difference | None:
    """Return the difference that explains the others: that of the first step, of the first check."""
    order = list(found)
    return min((item for item in found.values() if item is not None),
               key=lambda item: (item.step, order.index(item.check)), default=None)


def _differing(
    ours: Tensors, theirs: Tensors, limits: Callable[[str], tuple[float, float, float]]
) -> dict[str, causes.Apart]:
    """Return the tensors that differ.

    Args:
        limits: returns the largest relative residual, the largest relative difference of norms, and an absolute floor.
    """
    nothing = Measured(0.0, np.zeros(64))
    found = {}
    for name in {**theirs.whole, **ours.whole}:
        mine, right = ours.whole.get(name, nothing), theirs.whole.get(name, nothing)
        scale, (most, ratio, floor) = max(mine.norm, right.norm), limits(name)
        apart, norms = residual(mine, right), abs(mine.norm - right.norm)
        if not math.isfinite(mine.norm + right.norm) or apart > most * scale + floor or norms > ratio * scale + floor:
            size, tolerance = (apart, most) if apart * ratio > norms * most else (norms, ratio)
            found[name] = causes.Apart(mine, right, size / scale if scale else math.nan, tolerance)
    return found


def _share(found: Mapping[str, object], tensors: Tensors) -> str:
    return f"{len(found)} of {len(tensors.whole)} tensors" if len(found) < len(tensors.whole) else "all tensors"
