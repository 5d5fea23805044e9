"""Power of a planned number of repeats, from the spread of a stored pilot, and contrasts that they cannot decide.

Every power is averaged over what the true spread may be, given the pilot's (`repro.stats.power`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np

from repro import stats
from repro.compare import Comparison, Metric, compare
from repro.compare.cells import CellIndex, Factors, contrast_pairs
from repro.compare.figures import Bounds
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.numbers import plain_sum
from repro.record.folder.store import Record
from repro.suite.kinds.training import LAUNCH_SECONDS
from repro.suite.model import MOST_SEEDS
from repro.suite.planning.plan import Plan

ALPHA, POWER = 0.05, 0.8
LEAST_PAIRS = 3
"""Fewest pairs of the pilot for a usable spread (two pairs give it within a factor of 32)."""


class ContrastPower(Frozen):
    """The power of one contrast of the plan."""

    candidate_label: str
    baseline_label: str
    primary: bool
    contrasts: int
    """Tests that share the 5 %: 1 for the primary contrast, else the family that Holm corrects for."""
    pairs: int
    """Planned pairs that its verdict is on: in a sequential design those of the last look, for others than the primary
    contrast those of the first."""
    pilot_pairs: int
    sd_log: float | None
    """Standard deviation of log(candidate / baseline) over the pilot's pairs; about the relative spread."""
    sd_log_interval: Bounds | None
    """chi-square interval, normal logs."""
    detectable: float | None
    """Smallest ratio above 1 that the planned pairs show with 80 % power; None: none, however large."""
    needed_pairs: int | None
    """Pairs that show a ratio of 1 + margin with 80 % power; None: more than 10,000."""
    power_difference: float | None = None
    """Probability that the planned pairs show a true ratio of 1 + margin to be a difference."""
    power_same: float | None = None
    """Probability that the planned pairs show a true ratio of 1 to be within the margin."""
    seconds_per_pair: float | None
    """Both trials, start to end, as in the pilot."""
    problem: str = ""
    """Reason for a missing power of this contrast."""


class Power(Frozen):
    """The power of the planned repeats, and their cost."""

    pilot: str
    metric: Metric
    pairs: int
    margin: float
    alpha: float = ALPHA
    power: float = POWER
    contrasts: tuple[ContrastPower, ...]
    seconds: float | None
    """The whole plan, from the pilot's durations; None if the pilot lacks a cell."""

    def text(self) -> str:
        """Return it for the terminal."""
        lines = [f"power, from the pilot {self.pilot} ({self.metric}, {self.pairs} pairs, {self.power:.0%} power at "
                 f"{self.alpha:.0%}, margin {self.margin:g}):".replace("%", " %")]
        lines += [f"  {item.candidate_label} against {item.baseline_label}{' (primary)' if item.primary else ''}: "
                  f"{item.problem or self._words(item)}" for item in self.contrasts]
        return "\n".join(lines)

    def _words(self, item: ContrastPower) -> str:
        assert item.sd_log is not None and item.sd_log_interval is not None
        after = f" after Holm over {item.contrasts} contrasts" if item.contrasts > 1 else ""
        limits = item.sd_log_interval
        shown = f"{item.pairs} pairs cannot be significant{after}, however large the difference" if \
            item.detectable is None else f"smallest detectable difference {item.detectable - 1:.1%}{after}"
        shown += (f"; spread of pairs {item.sd_log:.2%} ({limits.low:.2%} to {limits.high:.2%}, {item.pilot_pairs} "
                  "pilot pairs)")
        if item.power_difference is not None and item.power_same is not None:
            shown += (f"; these {item.pairs} pairs find a difference of {100 * self.margin:g}% with "
                      f"{item.power_difference:.0%} and equal cells to be the same with {item.power_same:.0%} "
                      "probability")
        return shown.replace("%", " %") + self._needs(item)

    def _needs(self, item: ContrastPower) -> str:
        wanted = f"{100 * self.margin:g} %"
        if item.needed_pairs is None:
            return f"; no number of pairs up to {stats.MOST_PAIRS:,} finds {wanted}"
        if item.needed_pairs > MOST_SEEDS:
            return f"; {wanted} needs {item.needed_pairs:,} pairs, more than the {MOST_SEEDS:,} seeds of a suite"
        cost = "" if item.seconds_per_pair is None else f", {_long(item.needed_pairs * item.seconds_per_pair)}"
        return f"; {wanted} needs {item.needed_pairs} pairs{cost}"


def power(plan: Plan, pilot: Record) -> Power:
    """Return what `plan` can show, from the spread and the durations of a stored run.

    Cells are found by their id, so any run with the same cells can be the pilot.

    Raises:
        UsageError: the pilot holds no cell of this plan, or the plan's tests count nodes.
    """
    if plan.suite.unit == "node":
        raise UsageError("--pilot: the power is that of pairs, and with unit: node the tests count nodes; for that of "
                         "pairs add -o unit=block")
    cells = {cell.cell_id for cell in plan.cells}
    shared = cells & {result.cell_id for result in pilot.results}
    if not shared:
        raise UsageError(f"{pilot.folder.root}: has no cell of suite {plan.suite.suite!r}, so it cannot be its pilot")
    repeats = {item.repeat for item in pilot.results}
    # The pilot is complete with its own number of repeats.
    asked = plan.model_copy(update={"suite": plan.suite.model_copy(update={"seeds": len(repeats), "sequential": None})})
    found = compare(asked, [item for item in pilot.results if item.cell_id in cells], pilot=True)
    family = sum(not item.primary for item in found)
    seconds = _seconds(pilot)
    lengths = [seconds.get(cell.cell_id) for cell in plan.cells]
    known = [value for value in lengths if value is not None]
    return Power(
        pilot=str(pilot.folder.root), metric=plan.suite.metric,
        pairs=plan.design.repeats, margin=plan.suite.margin,
        contrasts=tuple(_contrast(item, plan, 1 if item.primary else family, seconds) for item in found),
        seconds=sum(value * plan.design.repeats_of(place) for place, value in enumerate(known))
        if len(known) == len(lengths) else None,
    )


def _contrast(found: Comparison, plan: Plan, contrasts: int, seconds: dict[str, float]) -> ContrastPower:
    lengths = [seconds.get(name) for name in (found.candidate, found.baseline)]
    pairs = plan.design.repeats if found.primary else plan.design.common
    base = {
        "candidate_label": found.candidate_label, "baseline_label": found.baseline_label, "primary": found.primary,
        "contrasts": contrasts, "pairs": pairs, "pilot_pairs": len(found.pairs),
        "seconds_per_pair": None if None in lengths else plain_sum(value for value in lengths if value is not None),
    }
    nothing = {"sd_log": None, "sd_log_interval": None, "detectable": None, "needed_pairs": None}
    why = _why_not(found)
    if why:
        return ContrastPower.model_validate({**base, **nothing, "problem": why})
    logs = stats.log_ratios([pair.candidate for pair in found.pairs], [pair.baseline for pair in found.pairs])
    spread, interval = spread_interval([float(value) for value in logs])
    margin, level, pilot = plan.suite.margin, ALPHA / contrasts, len(logs)
    return ContrastPower.model_validate({
        **base, "sd_log": spread, "sd_log_interval": interval,
        "detectable": stats.detectable_ratio(spread, pairs, level, POWER, pilot),
        "needed_pairs": stats.or_none(
            lambda: stats.pairs_needed(spread, 1 + margin, ALPHA, POWER, contrasts, pilot)),
        "power_difference": stats.paired_power(spread, 1 + margin, pairs, level, pilot),
        "power_same": stats.equivalence_power(spread, 1.0, pairs, margin, level, pilot),
    })


def _why_not(found: Comparison) -> str:
    if len(found.pairs) < LEAST_PAIRS:
        return f"the pilot gives {len(found.pairs)} pairs with a figure; power needs at least {LEAST_PAIRS}"
    if found.ratio is None:
        return f"the pilot gives no ratio: {found.because}"
    logs = [math.log(pair.candidate / pair.baseline) for pair in found.pairs]
    return "all pairs of the pilot have the same ratio: no spread to plan by" if max(logs) - min(logs) < 1e-12 else ""


def spread_interval(logs: Sequence[float], level: float = 0.95) -> tuple[float, Bounds]:
    """Return the standard deviation with its chi-square interval, (n - 1) s^2 / sigma^2 ~ chi2(n - 1) for normal logs.

    Raises:
        ValueError: fewer than two values.
    """
    from scipy.stats import chi2

    free = len(logs) - 1
    if free < 1:
        raise ValueError("a spread needs at least two values")
    spread = float(np.std(np.asarray(logs), ddof=1))
    low, high = (spread * math.sqrt(free / float(chi2.ppf(q, free))) for q in (0.5 + level / 2, 0.5 - level / 2))
    return spread, Bounds(low=low, high=high, level=level)


def _seconds(pilot: Record) -> dict[str, float]:
    """Return cell -> mean seconds of a trial, start to end: the ledger's, else those of the log and a launch."""
    taken: dict[str, list[float]] = {}
    ended = {item.trial_id: item.seconds for item in pilot.attempts if item.seconds > 0}
    for result in pilot.results:
        logged = (result.run_seconds or 0.0) + (result.init_seconds or 0.0) + LAUNCH_SECONDS
        taken.setdefault(result.cell_id, []).append(ended.get(result.trial_id, logged))
    return {cell: mean(values) for cell, values in taken.items()}


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def out_of_reach(plan: Plan) -> list[str]:
    """Return a note for each family of contrasts that cannot be significant with the repeats of the plan."""
    primary, contrasts = contrast_pairs(CellIndex(plan.cells), plan.suite)
    others = len(contrasts) - (primary is not None)
    name = "contrast" if others == 1 else "contrasts"
    found = [(others, f"the {others} {name} besides the primary" if primary else f"the {others} {name}")]
    if plan.suite.contrasts and not plan.has_twins:
        factors = Factors(plan.cells, plan.suite)
        effects = sum(len(factors.matches(name, plan.suite.baseline)) for name in plan.suite.contrasts)
        found.append((effects, f"the {effects} main effects"))
    seeds = plan.design.common
    return [f"with {seeds} repeats none of {words} can be significant at 5 % after Holm (exact test): {needed} repeats "
            "can" for count, words in found if count and seeds < (needed := stats.pairs_to_survive(count, ALPHA))]
