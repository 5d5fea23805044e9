"""Power of a plan, from a pilot that may be a run folder or a bundle."""

from __future__ import annotations

from pathlib import Path

from repro.bundle.source import open_record
from repro.compare.design.power import Power, power
from repro.record.folder.store import read_record
from repro.suite.planning.plan import Plan


def power_of(plan: Plan, pilot: Path) -> Power:
    """Return the effects that a plan can show, by the spread of the run at `pilot`.

    Raises:
        OutputError: it is neither a run folder nor a bundle.
        UsageError: it has no cell of the plan.
    """
    with open_record(pilot) as root:
        return power(plan, read_record(root)).model_copy(update={"pilot": str(pilot)})
