"""The disk space that an output may take."""

from __future__ import annotations

import shutil
from math import prod
from pathlib import Path

from repro.papers.chunkflow.grid import Grid

PART_BYTES = 8
"""Of a voxel of a weighted chunk; compression usually saves some."""


def why_no_room(place: Path, folder: Path, grid: Grid, itemsize: int) -> str:
    """Return that `folder` has less room than the output `place` may take, in one sentence; "" if it has enough."""
    needed = grid.chunks * prod(grid.chunk) * PART_BYTES + prod(grid.shape) * itemsize
    if (free := shutil.disk_usage(folder).free) >= needed:
        return ""
    return f"{place}: may take {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free there; make room or name " \
           "another place"
