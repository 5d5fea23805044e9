"""What the figures of a page share: heading, line styles, layout, axes; names of colours are the page's variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DASHES = {
    "solid": "solid", "dash": "6px,3px", "dot": "2px,2px", "dashdot": "8px,3px,2px,3px", "longdash": "12px,3px",
}
"""Shorter than plotly's patterns, so that a steep line still shows its pattern."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure with its heading and its text for screen readers."""

    name: str
    title: str
    counted: str
    figure: dict[str, Any]
    summary: str


def short(value: float) -> float:
    """Round to the digits that a figure can show."""
    return float(f"{value:.7g}")


def layout(x: str, y: str) -> dict[str, Any]:
    """Return the layout of a figure with the titles of its axes; the horizontal one begins at 0."""
    return {
        "autosize": True, "showlegend": False, "hovermode": "closest", "dragmode": "zoom",
        "margin": {"l": 56, "r": 14, "t": 26, "b": 50}, "font": {"size": 13, "color": "--ink"},
        "paper_bgcolor": "--surface", "plot_bgcolor": "--surface",
        "hoverlabel": {"align": "left", "bgcolor": "--raised", "bordercolor": "--rule", "font": {"color": "--ink"}},
        "modebar": {"bgcolor": "--surface", "color": "--muted", "activecolor": "--ink"},
        "xaxis": _axis(x) | {"rangemode": "tozero"}, "yaxis": _axis(y),
    }


def _axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8}, "gridcolor": "--rule", "linecolor": "--rule",
        "zerolinecolor": "--rule", "tickcolor": "--rule", "automargin": True, "ticks": "outside", "ticklen": 4,
    }


def log_ticks_of(values: Sequence[float], label: Callable[[Any], str]) -> dict[str, Any]:
    """Return what makes an axis logarithmic, with marks at `values` only."""
    return {"type": "log", "rangemode": "normal", "zeroline": False, "tickvals": list(values),
            "ticktext": [label(value) for value in values]}


def error_bars(values: Sequence[float], ends: Sequence[tuple[float, float]], color: str) -> dict[str, Any]:
    """Return the bars of the intervals of values."""
    return {"type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": color,
            "array": [short(high - value) for value, (_, high) in zip(values, ends, strict=True)],
            "arrayminus": [short(value - low) for value, (low, _) in zip(values, ends, strict=True)]}


def log_figure(
    traces: Sequence[dict[str, Any]], x_title: str, y_title: str, label: Callable[[int], str], top: int = 14,
    legend_y: float = -0.22,
) -> dict[str, Any]:
    """Return a figure on two logarithmic axes, with a legend and marks at the values of x.

    Args:
        label: the text of a value of x on its axis.
        top: margin in pixels.
        legend_y: place of the legend below the axis, in heights of the plot.
    """
    looks = layout(x_title, y_title)
    looks |= {"showlegend": True, "legend": {"orientation": "h", "y": legend_y, "font": {"size": 12}}}
    looks["margin"] |= {"l": 64, "t": top}
    looks["xaxis"] |= log_ticks_of(sorted({value for trace in traces for value in trace["x"]}), label)
    looks["yaxis"] |= {"type": "log", "exponentformat": "power"}
    return {"data": list(traces), "layout": looks}
