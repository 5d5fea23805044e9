"""The colours of cells in a tracking store: those of the page."""

from __future__ import annotations

import re
from functools import cache

from ..page.cells import CellMark
from ..page.document import template


@cache
def palette() -> dict[str, str]:
    """Return the light colours of the page by name."""
    light = template("report.css").partition("}")[0]
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{3,8})", light))


def color_of(mark: CellMark) -> str:
    """Return the colour of a cell on the page."""
    return palette()[f"--c{mark.color}"]
