"""The classes a plug-in fills in, one page for each audience: `training`, `launching`, `reporting`."""

from __future__ import annotations

from typing import Any

_MOVED = {
    "plugin": ("Plugin", "Setting"),
    "training": (
        "Batch", "Comm", "DataIdentity", "Direction", "Engine", "Fed", "Job", "Optimizer", "Parts", "Precision",
        "Session", "Workload",
    ),
    "launching": ("Launcher", "Order", "Outcome", "RankEnd"),
    "reporting": ("Reporter",),
}


def __getattr__(name: str) -> Any:
    """Tell authors of plug-ins written for 0.1 where a class is now.

    Raises:
        ImportError: the class has moved; the message names its page.
        AttributeError: there is no such name.
    """
    for page, classes in _MOVED.items():
        if name in classes:
            raise ImportError(f"`{name}` has moved: write `from repro.seams.{page} import {name}`")
    raise AttributeError(f"module 'repro.seams' has no attribute {name!r}")
