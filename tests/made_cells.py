"""Cells and results by formula, without a plan: what a comparison is given where nothing was run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.record.result.results import Bracket, Result, Status


@dataclass(frozen=True)
class MadeCell:
    """A cell outside any plan: its choices are plain data."""

    cell_id: str
    label: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)


CANDIDATE, BASELINE = MadeCell("c", "candidate"), MadeCell("b", "baseline")


def fine_bracket(seconds: float) -> Bracket:
    """A crossing known to 0.1 %."""
    return Bracket(miss_samples=999, hit_samples=1000, miss_wall_seconds=0.999 * seconds, hit_wall_seconds=seconds)


def result(cell: MadeCell, repeat: int, value: float | None, status: Status = "ok", **changes: Any) -> Result:
    """A trial that took `value` seconds, evaluated every 0.1 % of that; None: no time, the status says why."""
    hashes = {"init_weights": f"w{repeat}", "data_order": f"o{repeat}", "data": "d"}
    if value is not None and math.isfinite(value) and value > 0:
        changes = {"bracket": fine_bracket(value)} | changes
    return Result.model_validate({
        "trial_id": f"{cell.cell_id}-{repeat}", "cell_id": cell.cell_id, "repeat": repeat, "attempt": 1,
        "status": status, "tta_wall": value, "hashes": hashes, **changes})


def trials(cell: MadeCell, values: Sequence[float | None], status: Status = "missed", **changes: Any) -> list[Result]:
    """One trial a value; None: ended with `status`."""
    return [result(cell, repeat, value, "ok" if value is not None else status, **changes)
            for repeat, value in enumerate(values)]
