"""Colours of verdicts, and p values, as tables on a terminal show them."""

from __future__ import annotations

COLORS = {"faster": "green", "higher": "green", "slower": "red", "lower": "red", "same": "cyan"}


def p_text(value: float | None) -> str:
    """Return three digits; a dash if there is no p."""
    return "-" if value is None else f"{value:.3g}"
