"""Shares in per cent."""

from __future__ import annotations

MOST_DECIMALS = 6


def percent_above(share: float, limit: float, decimals: int = 1) -> str:
    """Return a share above a limit as `0.52 %`, with as many decimals as it needs to be seen above the limit."""
    while decimals < MOST_DECIMALS and round(100 * share, decimals) <= round(100 * limit, MOST_DECIMALS):
        decimals += 1
    return f"{100 * share:.{decimals}f} %"
