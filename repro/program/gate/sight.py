"""How far a gate sees: what a start one last place away does to a training, and the tolerances that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from repro.program.gate.trace import Measured, Quantity, Tensors, Trace

FACTOR = 3.0
"""Tolerance over the envelope of the null runs."""
BLIND = 0.1
"""Envelope from which on a difference says nothing."""
FLOOR = 1e-6
"""Absolute floor, as a share of the norm of all tensors: a gradient that is zero up to rounding compares as zero."""
TYPICAL = 0.5
"""Quantile of the envelopes of all tensors that each has at least: one null run is a small sample for one tensor."""
LOSS = (1e-5, 1 / 8)
"""Least tolerance of the loss in float32, and in widths of a narrower type."""
RESIDUAL: Mapping[Quantity, tuple[float, float]] = {"gradient": (1e-5, 2.0), "clipping": (1e-5, 2.0),
                                                    "update": (1e-3, 4.0)}
NORM: Mapping[Quantity, tuple[float, float]] = {"gradient": (1e-5, 0.25), "clipping": (1e-5, 0.25),
                                                "update": (1e-3, 0.5)}
"""Least tolerances: of sums in another order in float32 (about ten times what they differ by, measured), and in widths
of a narrower type, whose products are rounded for every rank on its own."""
FREE = ", or a GPU selects its kernels again in every start (torch.backends.cudnn.benchmark)"
REPEATED = (1e-4, 2.0)
"""Largest relative difference of the first traced gradient between two equal starts, on a device that adds in any
order."""


def residual(ours: Measured, theirs: Measured) -> float:
    """Return the norm of the difference of two tensors, estimated from their sketches."""
    return float(np.linalg.norm(ours.sketch - theirs.sketch))


def distance(ours: Tensors, theirs: Tensors) -> float:
    """Return the norm of the difference of a quantity over the tensors that both have, estimated from sketches."""
    return float(np.sqrt(sum(residual(ours.whole[name], item) ** 2 for name, item in theirs.whole.items()
                             if name in ours.whole)))


@dataclass
class Sight:
    """Tolerances of one comparison, from null runs of both sides."""

    width: float
    """Relative distance of two neighbours in the narrowest type of the two."""
    rounding: float
    """The same of the type that the optimizer updates."""
    blind: float = np.inf
    """First step whose update a start one last place away changes too much: its direction, and what the weights after
    it lead to, are not compared."""
    unrepeated: str = ""
    """How an equal start of one side differs by more than rounding; "": it does not."""
    _tensors: dict[tuple[Quantity, str, int], tuple[float, float]] = field(default_factory=dict)
    _losses: dict[int, float] = field(default_factory=dict)

    def of(self, what: Quantity, name: str, step: int) -> tuple[float, float]:
        """Return the largest relative residual, and difference of norms, of a tensor; infinite: it cannot be seen.

        An update that follows rounding in its direction, as the first of Adam does, still has its size.
        """
        apart, norm = self._tensors.get((what, name, step), (0.0, 0.0))
        parted = step > self.blind or (what == "update" and step == self.blind)
        if norm > BLIND or (parted and what != "update"):
            return np.inf, np.inf
        if apart > BLIND or parted:
            return np.inf, max(BLIND, FACTOR * norm)
        return (max(_least(RESIDUAL[what], self.width), FACTOR * apart),
                max(_least(NORM[what], self.width), FACTOR * norm))

    def loss(self, step: int) -> float:
        """Return the largest relative difference of the loss."""
        return max(_least(LOSS, self.width), FACTOR * self._losses.get(step, 0.0))

    def unseen(self, step: int) -> list[str]:
        """Return the tensors whose update cannot be seen in a step."""
        return [name for (what, name, number), (apart, _) in self._tensors.items()
                if what == "update" and number == step and apart > BLIND]

    @np.errstate(invalid="ignore")
    def add(self, run: Trace, null: Trace) -> None:
        """Widen by what a null run differs from the run of the same variant; it grows with the steps."""
        right = {step.number: step for step in run.steps}
        largest: dict[tuple[Quantity, str], tuple[float, float]] = {}
        loss = 0.0
        for step in (step for step in null.steps if step.number in right):
            base = right[step.number]
            loss = max(loss, abs(step.loss - base.loss) / max(abs(base.loss), 1e-30))
            self._losses[step.number] = max(self._losses.get(step.number, 0.0), loss)
            for what, tensors in base.tensors.items():
                mine, floor = step.tensors[what], FLOOR * tensors.norm
                apart = {name: _apart(mine.whole[name], item, floor) for name, item in tensors.whole.items()
                         if name in mine.whole}
                if not apart:
                    continue
                typical = np.quantile([*apart.values()], TYPICAL, axis=0)
                for name, found in apart.items():
                    known = largest.get((what, name), (0.0, 0.0))
                    largest[what, name] = (max(known[0], found[0], float(typical[0])),
                                           max(known[1], found[1], float(typical[1])))
                    before = self._tensors.get((what, name, step.number), (0.0, 0.0))
                    both = largest[what, name]
                    self._tensors[what, name, step.number] = (max(before[0], both[0]), max(before[1], both[1]))
            unseen = {*self.unseen(step.number)}
            seen = Tensors({name: item for name, item in base.update.whole.items() if name not in unseen}, ())
            if distance(step.update, seen) > BLIND * seen.norm or seen.norm < base.update.norm / 2:
                self.blind = min(self.blind, step.number)


def repeats(run: Trace, again: Trace) -> str:
    """Return how the first traced step of an equal start differs by more than rounding; "": it does not."""
    if not run.steps or not again.steps:
        return ""
    first, second, width = run.steps[0], again.steps[0], run.width
    if sum(first.fed, Counter()) != sum(second.fed, Counter()):
        return f"is fed other samples in step {first.number}: its order or its data are not seeded"
    if abs(first.loss - second.loss) > _least(LOSS, width) * abs(first.loss):
        return (f"has another loss in step {first.number} ({second.loss:.6g} after {first.loss:.6g}): something draws "
                f"without the seed{FREE}")
    for noun, mine, right in (("gradient", second.gradient, first.gradient),
                              ("gradient after clipping", second.clipped, first.clipped)):
        apart = distance(mine, right)
        if apart > _least(REPEATED, width) * right.norm:
            return (f"has another {noun} in step {first.number} (by {apart / right.norm:.2g} of its norm): something "
                    f"draws without the seed{FREE}")
    return ""


def sight_of(ours: Trace, theirs: Trace, nulls: Sequence[tuple[Trace, Trace]]) -> Sight:
    """Return the tolerances of a comparison.

    Args:
        nulls: (run, null run) of each side that has one.
    """
    found = Sight(max(ours.width, theirs.width), max(ours.weight_width, theirs.weight_width))
    for run, null in nulls:
        found.add(run, null)
    return found


def _least(table: tuple[float, float], width: float) -> float:
    wide, narrow = table
    return wide if width < 1e-6 else max(wide, narrow * width)


def _apart(ours: Measured, theirs: Measured, floor: float) -> tuple[float, float]:
    scale = max(ours.norm, theirs.norm, 1e-300)
    return (max(0.0, residual(ours, theirs) - floor) / scale, max(0.0, abs(ours.norm - theirs.norm) - floor) / scale)
