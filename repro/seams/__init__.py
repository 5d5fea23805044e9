"""The classes that training and launcher plug-ins fill in, one page each: `training`, `launching`.

Reporters fill in `repro.reporting`.
"""

from __future__ import annotations

from typing import Any

MOVED = {
    **{name: f"seams.plugin.{name}" for name in ("Plugin", "Setting")},
    **{name: f"seams.training.{name}" for name in (
        "Batch", "Comm", "DataIdentity", "Direction", "Engine", "Fed", "Job", "Optimizer", "Precision", "Session",
        "Workload",
    )},
    "Parts": "seams.training.TrainingParts",
    **{name: f"seams.launching.{name}" for name in ("Launcher", "RankEnd")},
    "Order": "seams.launching.LaunchRequest", "Outcome": "seams.launching.LaunchResult",
    "Reporter": "reporting.Reporter",
}
"""New places of the classes that version 0.1 had in `repro.seams`."""


def __getattr__(name: str) -> Any:
    """Name the new place of a class that version 0.1 had here.

    Raises:
        ImportError: the class has moved; the message is the line to write.
        AttributeError: there never was such a class.
    """
    if name in MOVED:
        page, _, now = MOVED[name].rpartition(".")
        raise ImportError(f"`repro.seams.{name}` has moved: write `from repro.{page} import {now}`")
    raise AttributeError(f"module 'repro.seams' has no attribute {name!r}")
