"""Words for the settings of a tuning, as the page and the paper formats show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.record.tuning import TriedSetting, TunedContender
from repro.suite.field_problem import as_text
from repro.suite.metrics import METRICS


def is_lower_better(contender: TunedContender, metric: str) -> bool:
    """Return whether a smaller figure ranks higher, as the choice ranks."""
    if METRICS[metric].path not in ("final", "best"):
        return METRICS[metric].better == "lower"
    return any(item.cell is not None and item.cell.choices.stop.direction == "lower" for item in contender.settings)


def end_of(item: TriedSetting) -> str:
    """Return how a setting without a figure ended: missed, abandoned, failed, skipped or not yet run."""
    if item.cell is None:
        return "skipped"
    if not item.results:
        return "not run"
    statuses = item.statuses
    return "abandoned" if "abandoned" in statuses else "missed" if "missed" in statuses else "failed"


def figure_text(item: TriedSetting, metric: str) -> str:
    """Return the figure of a setting with its unit, or how it ended."""
    if item.figure is not None:
        return f"{item.figure:,.4g} {METRICS[metric].unit}".rstrip()
    return end_of(item)


def setting_text(values: Mapping[str, Any]) -> str:
    """Return a setting as people read it: `optimizer.lr 0.1, batch.global 64`."""
    return ", ".join(f"{name} {as_text(value)}" for name, value in sorted(values.items()))
