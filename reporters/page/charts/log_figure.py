"""A figure on two logarithmic axes, the first with a few marked values, in the colours of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def log_figure(
    traces: Sequence[dict[str, Any]], x_title: str, y_title: str, label: Callable[[int], str], top: int = 14,
    legend_y: float = -0.22,
) -> dict[str, Any]:
    """Return the figure of traces (Plotly's JSON; names of colours are the page's variables).

    Args:
        label: the text of a value of x on its axis.
        top: margin in pixels.
        legend_y: place of the legend below the axis, in heights of the plot.
    """
    marked = sorted({value for trace in traces for value in trace["x"]})
    grid = {"gridcolor": "--rule", "linecolor": "--rule", "zeroline": False, "automargin": True}
    return {"data": list(traces), "layout": {
        "autosize": True, "showlegend": True, "hovermode": "closest", "font": {"size": 13, "color": "--ink"},
        "margin": {"l": 64, "r": 14, "t": top, "b": 50}, "paper_bgcolor": "--surface", "plot_bgcolor": "--surface",
        "hoverlabel": {"align": "left", "bgcolor": "--raised", "bordercolor": "--rule", "font": {"color": "--ink"}},
        "modebar": {"bgcolor": "--surface", "color": "--muted", "activecolor": "--ink"},
        "legend": {"orientation": "h", "y": legend_y, "font": {"size": 12}},
        "xaxis": {**grid, "type": "log", "title": {"text": x_title}, "tickvals": marked,
                  "ticktext": [label(value) for value in marked]},
        "yaxis": {**grid, "type": "log", "title": {"text": y_title}, "exponentformat": "power"},
    }}
