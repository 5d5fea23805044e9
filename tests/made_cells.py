"""Cells and results by formula, without a plan: what a comparison is given where nothing was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.record.results import Result, Status


@dataclass(frozen=True)
class MadeCell:
    """A cell outside any plan: its choices are plain data."""

    cell_id: str
    label: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)


CANDIDATE, BASELINE = MadeCell("c", "candidate"), MadeCell("b", "baseline")


def result(cell: MadeCell, repeat: int, value: float | None, status: Status = "ok", **changes: Any) -> Result:
    """A trial that took `value` seconds; None: no time, the status says why."""
    hashes = {"init_weights": f"w{repeat}", "data_order": f"o{repeat}", "data": "d"}
    return Result.model_validate({
        "trial_id": f"{cell.cell_id}-{repeat}", "cell_id": cell.cell_id, "repeat": repeat, "attempt": 1,
        "status": status, "tta_wall": value, "hashes": hashes, **changes})


def trials(cell: MadeCell, values: Sequence[float | None], status: Status = "missed", **changes: Any) -> list[Result]:
    """One trial a value; None: ended with `status`."""
    return [result(cell, repeat, value, "ok" if value is not None else status, **changes)
            for repeat, value in enumerate(values)]
