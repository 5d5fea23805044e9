"""All tolerances of the parity gate with their reasons, and how numbers and tensors are compared by them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from repro.record.log.facts import StepAgain
from repro.worker.gate.trace import Measure

# ---- both kinds of comparison: losses, gradients, weights; relative

TOLERANCE = 1e-5
"""float32 sums in another order stay about ten times below it."""
NOISE = 1e-6
"""Absolute floor as a share of the largest tensor norm: a gradient that is zero up to rounding compares as zero."""

# ---- in fp32

WIDENED = 10.0
"""Where training amplifies rounding: the tolerance from the second step on, over the effect of a disturbance so far."""
LARGEST_TOLERANCE = 1e-2
"""Upper limit of a widened tolerance: beyond it the gate could not tell a defect from amplified rounding."""
AGED = 10.0
"""For losses of the steps at rate 0, over the tolerance of the step before: weights that stay put differ no more."""
UPDATE_TOLERANCE, UPDATE_WIDENED, LARGEST_UPDATE_TOLERANCE = 1e-3, 100.0, 0.25
"""Of the change of a tensor: at small rates rounding of the weights is added; over the widened tolerance; at most."""
UPDATE_ROUNDING = 4e-7
"""Absolute floor of an update as a share of the norm of its weights: a few last places of float32."""
EVALUATION_TOLERANCE = 0.02
"""Of the reference's evaluation: its weights differ in their last places, and so may a sample's class. The evaluation
itself is judged with the candidate's own weights, where nothing may differ."""
OWN_EVALUATION_TOLERANCE = 1e-4
"""Of the harness's evaluation of the same weights; healthy engines differ by nothing (measured on a CPU)."""

# ---- in a cell's own format

AUTOCAST_TOLERANCE = 1e-3
"""Of the first step with float32 gradients: each micro-batch is computed alike, only sums differ."""
NARROW_TOLERANCE = 5e-2
"""Of the first step with gradients of 16 bits, which are also added in 16 bits."""
NARROW_UPDATE = 20.0
"""For the first update, over the tolerance of its gradient: Adam's follows the sign, where rounding can flip a zero."""
UPDATE_FACTOR = 2.0
"""Largest ratio of the norms of two updates: later steps differ by rounding, but none may be left out."""
WIDE_SHARE = 0.5
"""Smallest share of wide master weights, as a share of the reference's."""
NARROW_EVALUATION_TOLERANCE = 1e-2
"""Of the harness's evaluation of the same weights in the same format."""

SAME_FACTOR = 1e-3
"""Relative difference of two ratios that are one factor."""

# ---- before an engine starts

RANDOM = 1e-3
"""Relative difference of two losses that no order of sums explains: a generator that torch does not know was used."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first failure of one check."""

    check: str
    step: int
    """0: before the first step."""
    text: str
    """Complete in itself, with step and tensor."""
    tensor: str = ""
    size: float = math.nan
    """Relative difference; NaN if it is not a number."""
    tolerance: float = math.nan
    ratio: float = math.nan
    """Of a tensor to the reference's, if it is a multiple of it; else NaN."""
    again: StepAgain | None = None
    """How the harness's own step of the same weights differs; None: it was not repeated."""
    since: int = 0
    """Earlier step from which on the weights differ; 0: none."""
    seen: str = ""
    """What the ledger contradicts up to this step, in words; else what an update without a repeated step is like."""


def differ(ours: float, theirs: float, scale: float, floor: float, tolerance: float) -> bool:
    """Return True if two numbers differ by more than `tolerance` x `scale` + `floor`, or one is not finite."""
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return True  # with an infinite scale every difference would pass
    return abs(ours - theirs) > tolerance * scale + floor


def compare_number(check: str, step: int, ours: float, theirs: float, tolerance: float) -> Difference | None:
    """Return the difference of two numbers, named like their check; None within the tolerance."""
    scale = max(abs(ours), abs(theirs))
    if not differ(ours, theirs, scale, 0.0, tolerance):
        return None
    size = abs(ours - theirs) / scale if scale and math.isfinite(scale) else 0.0 if ours == theirs else math.nan
    return Difference(check, step, f"step {step}: {check} is {ours:.8g}, the reference's {theirs:.8g}", "", size,
                      tolerance)


@dataclass(frozen=True, slots=True)
class Compared:
    """Name of the compared tensors of one rank, for messages."""

    check: str
    step: int
    rank: int
    what: str = ""
    """Such as "weight"; "": as the check."""
    where: str = ""
    """Before `what`, such as "before step 1"; "": the step."""

    def text(self) -> str:
        return f"{self.where or f'step {self.step}'}: {self.what or self.check}"


def compare_tensors(
    what: Compared, ours: Mapping[str, Measure | None], theirs: Mapping[str, Measure | None], tolerance: float,
    floors: Mapping[str, float] | None = None,
) -> Difference | None:
    """Return the first tensor of `ours` that differs from the reference's; None if all are within the tolerance.

    Args:
        floors: absolute tolerance of each tensor; None: `NOISE` times the largest norm.
    """
    if odd := sorted(set(ours) ^ set(theirs)):
        return Difference(what.check, what.step, f"{what.text()} {odd[0]!r} exists in only one of the two", odd[0])
    norms = [value[0] for value in theirs.values() if value is not None]
    largest = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    for tensor, mine in ours.items():
        right = theirs[tensor]
        if mine is None or right is None:
            continue
        floor = floors[tensor] if floors is not None else NOISE * largest
        if text := describe_tensor(mine, right, tolerance, floor):
            return Difference(what.check, what.step, f"{what.text()} of {tensor!r} on rank {what.rank} has {text}",
                              tensor, _size(mine, right), tolerance, _ratio(mine, right))
    return None


def _ratio(ours: Measure, theirs: Measure) -> float:
    """Return the factor between two tensors if norm and projection have the same."""
    if not theirs[0] or not theirs[1]:
        return math.nan
    norms, projections = ours[0] / theirs[0], ours[1] / theirs[1]
    return norms if abs(norms - projections) <= SAME_FACTOR * norms else math.nan


def _size(ours: Measure, theirs: Measure) -> float:
    norm = max(ours[0], theirs[0])
    if not math.isfinite(norm) or not norm:
        return math.nan
    return max(abs(ours[0] - theirs[0]) / norm, abs(ours[1] - theirs[1]) / (3 * norm))


def describe_tensor(ours: Measure, theirs: Measure, tolerance: float, floor: float) -> str:
    """Return what a tensor has that the reference's has not, by (norm, projection); "" within the tolerance."""
    norm = max(ours[0], theirs[0])
    if differ(ours[0], theirs[0], norm, floor, tolerance):
        ratio = f", {ours[0] / theirs[0]:.6g} times" if theirs[0] else ""
        return f"norm {ours[0]:.8g}{ratio} the reference's {theirs[0]:.8g}"
    if differ(ours[1], theirs[1], 3 * norm, 3 * floor, tolerance):
        return f"the reference's norm but another direction (projection {ours[1]:.8g} against {theirs[1]:.8g})"
    return ""


def first(found: Iterable[Difference | None]) -> Difference | None:
    """Return the first difference, if any."""
    return next(filter(None, found), None)
