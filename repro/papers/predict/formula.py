"""The formulas of the scale model, without any measurement, and the table of epochs to the target."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from repro.comm.cost_model import fit_parameters
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.numbers import plain_sum
from repro.core.yaml_file import read_yaml


class EpochTable(Frozen):
    """Epochs to a target by global batch, as published."""

    source: str = Field(min_length=1, max_length=500)
    """Where they were published; every use is labelled with it."""
    samples: int | None = Field(None, ge=1)
    """Samples of an epoch; None: those of the workload."""
    epochs: dict[int, float]
    """Global batch -> epochs."""

    @field_validator("epochs")
    @classmethod
    def _are_positive(cls, value: dict[int, float]) -> dict[int, float]:
        if not value or any(batch < 1 or not 0 < epochs < 1e6 for batch, epochs in value.items()):
            raise ValueError("needs positive epochs by positive batches, for example {8192: 42}")
        return value


def read_epochs(path: Path) -> EpochTable:
    """Read a table.

    Raises:
        UsageError: it cannot be read, or is no such table.
    """
    try:
        data = read_yaml(path).data
        return EpochTable.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {field}{': ' if field else ''}{first['msg']}; write source: TEXT and epochs: "
                         "{BATCH: EPOCHS}") from None


def expected_maximum(draws: Sequence[float], times: float) -> float:
    """Return the expected maximum of `times` independent draws from the empirical distribution of `draws`.

    With x_1 <= ... <= x_n: sum of x_i ((i/n)^k - ((i-1)/n)^k). One draw gives the mean; with many more draws than n it
    is the largest seen, which is all that n draws can tell.

    Args:
        times: k, 1 or more; not a whole number if a draw is itself a maximum.
    """
    ordered, count = sorted(draws), len(draws)
    shares = ((at / count) ** times - ((at - 1) / count) ** times for at in range(1, count + 1))
    return float(plain_sum(value * share for value, share in zip(ordered, shares, strict=True)))


def computation_ratio(measured: Mapping[int, float], samples: float, base: int) -> float:
    """Return the computation of `samples` over that of `base` samples.

    Args:
        measured: samples of a worker in a step -> seconds of its computation. With two or more a straight line is
            fitted by relative error, neither part below zero; with one, computation is in proportion to the samples.
    """
    if samples == base:
        return 1.0
    if len(measured) < 2:
        return samples / base
    fixed, each = fit_parameters([(1.0, float(count)) for count in measured], list(measured.values()), 2)
    return (fixed + each * samples) / (fixed + each * base)


def interpolated(points: Mapping[int, float], at: int) -> float | None:
    """Return the value at `at`, by logarithms between the two points around it; None outside all points."""
    known = sorted(points)
    if at in points:
        return points[at]
    place = bisect_left(known, at)
    if place in (0, len(known)):
        return None
    left, right = known[place - 1], known[place]
    share = math.log(at / left) / math.log(right / left)
    return math.exp((1 - share) * math.log(points[left]) + share * math.log(points[right]))


def speed_up(step: float, batch: int, first_step: float, first_batch: int) -> float:
    """Return how many times as many samples a second are trained as by the first."""
    return (batch / step) / (first_batch / first_step)
