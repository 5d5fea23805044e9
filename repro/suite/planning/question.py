"""What an experiment compares, apart from its target, its rule to stop, its number of repeats and its names.

Data that were seen under one target are no new data under another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from repro.suite.planning.plan import Plan

STOPPING = frozenset({"stop", "evaluate_every", "timeout_seconds", "stall_seconds"})
"""Fields of a cell's choices that say when its trials are evaluated and end."""
LEAST_SHARED = 2
"""Cells that two experiments share at least, if one repeats a contrast of the other."""

Seen = Literal["", "same", "other target"]
"""The data of a plan: not seen, seen by a run of the same cells, or by one of its cells with another target."""


def stops_by_settings(cells: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return settings -> rules to stop, of cells as in the JSON of a plan."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        rest = {key: value for key, value in cell["choices"].items() if key not in STOPPING}
        stop = {key: cell["choices"].get(key) for key in ("stop", "evaluate_every")}
        found.setdefault(json.dumps(rest, sort_keys=True), set()).add(json.dumps(stop, sort_keys=True))
    return found


def seen_by(plan: Plan, stored: Mapping[str, Any]) -> Seen:
    """Return whether a run with this plan, as JSON, has seen the data that `plan` draws.

    Raises:
        LookupError, TypeError, AttributeError: `stored` is no plan.
    """
    if (stored["kind"], stored["suite"]["master_seed"]) != (plan.kind, plan.master_seed):
        return ""
    ours, theirs = stops_by_settings(_cells(plan)), stops_by_settings(stored["cells"])
    shared = ours.keys() & theirs.keys()
    if len(shared) >= min(LEAST_SHARED, len(ours)) and any(ours[key] != theirs[key] for key in shared):
        return "other target"
    return "same" if ours == theirs else ""


def question_of(plan: Plan) -> str:
    """Return the sha256 of what a plan asks: settings of all its cells, the declared contrast, the metric."""
    primary = plan.suite.primary
    data = [sorted(stops_by_settings(_cells(plan))), plan.suite.metric,
            [primary.candidate, primary.baseline] if primary else None]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def stop_of(plan: Plan) -> str:
    """Return the sha256 of the targets and rules to stop of all its cells."""
    rules = sorted(rule for rules in stops_by_settings(_cells(plan)).values() for rule in rules)
    return hashlib.sha256(json.dumps(rules).encode()).hexdigest()


def _cells(plan: Plan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plan.model_dump(mode="json", by_alias=True, include={"cells"})["cells"]
    return found
