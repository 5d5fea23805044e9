"""Differences that the parity gate finds, and how numbers and tensors are compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from repro.worker.gate.trace import Measure

TOLERANCE = 1e-5
"""Relative; float32 sums in another order stay about ten times below it."""
NOISE = 1e-6
"""Absolute floor as a share of the largest tensor norm: a gradient that is zero up to rounding compares as zero."""


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


@dataclass(frozen=True, slots=True)
class TensorLimit:
    """The allowed difference of two tensors."""

    relative: float = TOLERANCE
    floor: float = 0.0
    """Absolute; added to the relative part."""


def differ(ours: float, theirs: float, scale: float, floor: float, tolerance: float) -> bool:
    """Return True if two numbers differ by more than `tolerance` x `scale` + `floor`, or one is not finite."""
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return True  # with an infinite scale every difference would pass
    return abs(ours - theirs) > tolerance * scale + floor


def relative(ours: float, theirs: float) -> float:
    """Return the difference of two numbers as a share of the larger one."""
    scale = max(abs(ours), abs(theirs))
    return abs(ours - theirs) / scale if scale and math.isfinite(scale) else (0.0 if ours == theirs else math.nan)


def compare_number(check: str, what: str, step: int, ours: float, theirs: float, tolerance: float) -> Difference | None:
    """Return the difference of two numbers; None within the tolerance."""
    if not differ(ours, theirs, max(abs(ours), abs(theirs)), 0.0, tolerance):
        return None
    text = f"step {step}: {what} is {ours:.8g}, the reference's {theirs:.8g}"
    return Difference(check, step, text, "", relative(ours, theirs), tolerance)


@dataclass(frozen=True, slots=True)
class Compared:
    """Name of the compared tensors, for messages."""

    check: str
    step: int
    where: str
    """Before `what`, such as "step 5"."""
    what: str
    """Such as "gradient"."""
    rank: int
    other: str = "the reference"
    """Owner of the right values."""


def compare_tensors(
    what: Compared, ours: Mapping[str, Measure | None], theirs: Mapping[str, Measure | None], tolerance: float,
    floors: Mapping[str, float] | None = None,
) -> Difference | None:
    """Return the first tensor of `ours` that differs from that of `theirs`; None if all are within the tolerance.

    Args:
        floors: absolute tolerance of each tensor; None: `NOISE` times the largest norm.
    """
    if odd := sorted(set(ours) ^ set(theirs)):
        text = f"{what.where}: {what.what} {odd[0]!r} exists in only one of the two"
        return Difference(what.check, what.step, text, odd[0])
    norms = [value[0] for value in theirs.values() if value is not None]
    largest = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    for tensor, mine in ours.items():
        right = theirs[tensor]
        if mine is None or right is None:
            continue
        limit = TensorLimit(tolerance, floors[tensor] if floors is not None else NOISE * largest)
        if text := describe_tensor(f"{what.where}: {what.what} of {tensor!r} on rank {what.rank}", mine, right,
                                   what.other, limit):
            return Difference(what.check, what.step, text, tensor, _size(mine, right), tolerance)
    return None


def _size(ours: Measure, theirs: Measure) -> float:
    norm = max(ours[0], theirs[0])
    if not math.isfinite(norm) or not norm:
        return math.nan
    return max(abs(ours[0] - theirs[0]) / norm, abs(ours[1] - theirs[1]) / (3 * norm))


def describe_tensor(what: str, ours: Measure, theirs: Measure, other: str, limit: TensorLimit | None = None) -> str:
    """Describe the difference between (norm, projection) of two tensors; "" if it is within the limit.

    Args:
        what: the tensor, for the message.
        other: the owner of `theirs`, for the message.
    """
    limit = limit or TensorLimit()
    norm = max(ours[0], theirs[0])
    if differ(ours[0], theirs[0], norm, limit.floor, limit.relative):
        ratio = f", {ours[0] / theirs[0]:.6g} times" if theirs[0] else ""
        return f"{what} has norm {ours[0]:.8g}{ratio} {other}'s {theirs[0]:.8g}"
    if differ(ours[1], theirs[1], 3 * norm, 3 * limit.floor, limit.relative):
        return f"{what} has {other}'s norm but another direction (projection {ours[1]:.8g} against {theirs[1]:.8g})"
    return ""


def first(found: Iterator[Difference | None] | Sequence[Difference | None]) -> Difference | None:
    """Return the first difference, if any."""
    return next(filter(None, found), None)
