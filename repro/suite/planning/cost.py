"""The time that a plan takes, roughly, before anything of it has run."""

from __future__ import annotations

from collections.abc import Mapping

from repro.core.frozen import Frozen
from repro.core.numbers import plain_sum
from repro.suite.planning.plan import Plan, washed_out

SETUP_SECONDS = 15.0
"""Fork server, parity gate, report, once a run, roughly."""
AS_PILOT = "as long as the trials of the pilot"
"""Label of a time that is measured of every cell."""


class Cost(Frozen):
    """Seconds that a plan takes if every trial uses its whole budget, roughly."""

    trials: int
    full_budget_seconds: float | None
    """None: how long a trial takes is unknown, as of a program without a pilot."""
    label: str = "modelled from rough rates of one CPU core; a busy machine or a slow engine takes longer"


def over_time_limits(plan: Plan) -> list[str]:
    """Return a warning if trials that use their whole budget would be ended by `timeout_seconds`, and count as missed.

    Only for CPUs: no rate of a GPU is known before it runs.
    """
    cells = [cell for cell in plan.cells if cell.choices.device == "cpu"]
    late = [(seconds, cell) for cell in cells
            if (seconds := cell.choices.full_budget_seconds(plan.cores) or 0.0) > cell.choices.timeout_seconds]
    if not late:
        return []
    seconds, cell = max(late, key=lambda item: item[0])
    more = f" (and {len(late) - 1} other cells)" if len(late) > 1 else ""
    ended = "as one that missed" if plan.design.judges == "trial" else "before its end"
    return [f"{cell.label}{more}: the whole budget takes about {seconds:,.0f} s (modelled), more than timeout_seconds: "
            f"{cell.choices.timeout_seconds:g}, which would end the trial {ended}; set timeout_seconds higher or the "
            "budget lower"]


def estimate(plan: Plan, pilot: Mapping[str, float] | None = None) -> Cost:
    """Return a plan's time if every trial uses its whole budget.

    Args:
        pilot: cell -> seconds of one of its trials, as measured before.
    """
    known = pilot or {}
    per_cell = [known.get(cell.cell_id, cell.choices.full_budget_seconds(plan.cores)) for cell in plan.cells]
    unmeasured = washed_out(plan.order) if plan.washes_out else ()
    each = [per_cell[index] for index, _ in (*plan.order, *unmeasured)]
    if any(seconds is None for seconds in each):
        return Cost(trials=len(plan.order), full_budget_seconds=None, label="unknown")
    total = plain_sum(seconds or 0.0 for seconds in each)
    label = {"label": AS_PILOT} if all(cell.cell_id in known for cell in plan.cells) else {}
    return Cost(trials=len(plan.order), full_budget_seconds=round(total + SETUP_SECONDS, 1), **label)
