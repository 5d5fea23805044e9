"""Likely causes of what the parity gate finds, in words: they decide nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from repro.record.derive.effective import find_contradictions, informed, other_step
from repro.record.result.step_causes import LIKE, NO_FACTOR, UPDATE_CAUSE, factor_cause
from repro.suite.kinds.training import TrainingConfig
from repro.worker.gate.difference import UPDATE_TOLERANCE, Difference
from repro.worker.gate.trace import YOUNG, Trace

FIRST_UPDATE = ("another rate, decay, limit of clipping or rule, or the optimizer is not new: the warm-up has left "
                "something in what it keeps")
OF_UPDATES = ("rate", "updates", "update outside", "written", "replaced", "option")
"""What the ledger finds in updates, which change the loss and the gradient of later steps only."""
LATE_UPDATE = ("the first updates were right; in this step or one before it the gradient, or the limit of its clipping,"
               " was another one, or what the optimizer keeps (momentum, moments) was lost, replaced or rounded, or "
               "the weights were changed beside it")
LEAST_TENSORS, LEFT = 4, 1e-3
"""Tensors from which on their projections tell what an update is like, and the share of the squared difference that
this leaves open."""


def explained(
    reference: Trace, ranks: Sequence[Trace], found: Mapping[str, Difference | None]
) -> dict[str, Difference | None]:
    """Return differences, each with the harness's own step of the same number, if there is one, and with what the
    ledger contradicts up to it, or another check found that explains it."""
    again = {step.number: step for trace in ranks[:1] for step in trace.again}
    # The ledger does not see the ragged step, which an optimizer counts.
    notes = [note for note in find_contradictions([trace.ledger for trace in ranks if trace.ledger is not None])
             if note.what != "counted" or abs(note.found - note.wanted) > 1]
    other_rule, fed = found.get("optimizer"), found.get("input")
    moved = any(value.moved for trace in ranks for value in trace.evaluations)
    between = min((trace.moved_between for trace in ranks if trace.moved_between), default=None)

    def told(name: str, item: Difference) -> Difference:
        of_update = name in ("weight", "update")
        seen = next((note.words for note in notes if (
            of_update if note.what == "counted" else
            note.step < item.step + (of_update or note.what not in OF_UPDATES))), "")
        if not seen and between and not moved and between[0] <= item.step:
            seen = (f"the weights changed between step {between[0] - 1} and step {between[0]}, first in "
                    f"{between[1]!r}: by an update, or a write, beside the steps")
        if not seen and fed is not None and fed is not item and 0 < fed.step <= item.step:
            seen = f"it was fed other data, first in step {fed.step}"
        if not seen and other_rule is not None and of_update:
            seen = other_rule.text
        if name == "initial weights" and moved:
            seen = "an evaluation changes the weights, so that of the warm-up did, too"
        step = again.get(item.step)
        earlier = [other.step for check in ("weight", "update")
                   if not of_update and (other := found.get(check)) and other.step < item.step]
        return replace(item, since=min(earlier, default=0), seen=seen or _like_update(reference, ranks[0], item),
                       again=step and informed(step, [*again.values()]))

    return {name: item and told(name, item) for name, item in found.items()}


def _like_update(reference: Trace, ours: Trace, found: Difference) -> str:
    """Return what a late update is like, by the projections of its tensors, each of which is linear in the tensor; "":
    nothing known."""
    if found.check not in ("weight", "update") or found.step <= len(YOUNG):
        return ""
    index = reference.steps.index(found.step)
    right, updates = (trace.measures("update", index) for trace in (reference, ours))
    weights, gradients = reference.measures("weight", index), reference.measures("gradient", index)
    rows = np.array([
        np.array([mine[1], wanted[1], weight[1] - wanted[1], (gradients.get(name) or (0.0, 0.0))[1]]) / wanted[0]
        for name, wanted in right.items() if (mine := updates.get(name)) and wanted and wanted[0]
        and (weight := weights.get(name)) and abs(mine[1] - wanted[1]) > UPDATE_TOLERANCE * abs(wanted[1])])
    if len(rows) < LEAST_TENSORS or not np.isfinite(rows).all():
        return ""
    update, usual, weight, gradient = rows.T
    apart = update - usual
    if not np.any(update):
        return LIKE["left out"]
    for like, target, parts in (("factor", update, [usual]), ("decayed", apart, [weight]),
                                ("forgotten", update, [gradient, weight]), ("other gradient", apart, [gradient]),
                                ("momentum", update, [usual, gradient])):
        matrix = np.stack(parts, axis=1)
        shares = np.linalg.lstsq(matrix, target, rcond=None)[0]
        left = np.sum((target - matrix @ shares)**2)
        if matrix.any(axis=0).all() and len(rows) > len(parts) + 1 and left < LEFT * (apart @ apart):
            return LIKE[like].format(f"{shares[0]:.3g}")
    return ""


def likely_cause(found: Difference, choices: TrainingConfig) -> str:
    """Return what a difference of loss, gradient, weights or update looks like; "": nothing known."""
    if found.check == "initial weights":
        return found.seen or "of another seed, or changed before the first step, as by a warm-up"
    if found.check not in ("loss", "gradient", "weight", "update", "rate 0"):
        return ""
    if found.seen:
        return found.seen
    if (step := found.again) is not None:
        for item in step.apart:
            if item.apart > found.tolerance:
                cause = other_step(choices, item, step, found.tolerance, False, step.place).cause(
                    "", _unknown_update(found.step))
                of_effect = item.what == "update" and found.check in ("loss", "gradient")
                return f"the weights were updated otherwise: {cause}" if of_effect else cause
    if found.check == "rate 0":
        return "it changes beside the update, or by a part of it without the rate (decay, averaging, noise)"
    if found.since and found.check in ("loss", "gradient"):
        return f"the weights differ since step {found.since}, so this is what follows"
    if found.check == "loss":
        return ("the model computes in another mode or type, or it is the loss of other samples" if found.step == 1 else
                "the model computes in another mode or type, or what is not compared, such as a buffer, differs")
    if found.check == "gradient":
        return (factor_cause(found.ratio, choices.processes, choices.batch.accumulation, exact=True)
                if math.isfinite(found.ratio) else NO_FACTOR)
    return _unknown_update(found.step)


def _unknown_update(step: int) -> str:
    return FIRST_UPDATE if step == 1 else UPDATE_CAUSE if step <= len(YOUNG) else LATE_UPDATE
