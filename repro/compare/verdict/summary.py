"""One cell in figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import median

from repro import stats
from repro.compare.cells import ComparedCell, design_of
from repro.compare.evidence.missed import censored, common_horizon, cut
from repro.compare.evidence.pairing import is_meaningless, observe, watched_until
from repro.compare.evidence.repeated import trainings
from repro.compare.figures import Bounds, Estimate, bounds
from repro.core.frozen import Frozen
from repro.core.numbers import known_median
from repro.record.result.results import Result, figure
from repro.record.result.status import counted, meaning
from repro.suite.design import JUDGES
from repro.suite.metrics import DEFAULT, METRICS, MetricSpec
from repro.suite.model import Metric


class Summary(Frozen):
    """One cell in figures."""

    cell_id: str
    label: str
    metric: str
    n: int
    ok: int
    values: tuple[float, ...]
    """The metric of every trial that has it, by repeat, in the metric's unit."""
    median: float | None
    """None unless more than half of the trials reached the target."""
    interval: Bounds | None
    success: Bounds | None
    """Wilson interval of the probability to reach the target, by different trainings whose end tells something about
    the cell."""
    statuses: dict[str, int]
    median_epochs: float | None
    median_samples_per_second: float | None
    median_final: float | None
    coefficient_of_variation: float | None = None
    """Standard deviation over mean; None below two values and if trials missed."""
    outliers: tuple[bool, ...] = ()
    """One mark per value: far from the others. Marked values stay in every figure."""
    reached_by: tuple[tuple[float, float], ...] = ()
    """Kaplan-Meier: (time, probability to have reached the target by then); only if trials missed."""
    restricted: Estimate | None = None
    """Mean time up to `horizon`, only if trials missed."""
    horizon: float | None = None
    diverged_share: float | None = None
    """Probability to diverge instead of reaching the target, as far as trials were watched (Aalen-Johansen); only if
    trials diverged."""
    has_target: bool = True
    """False: its trials ran a fixed number of steps, and `ok` counts those that ended well."""
    contest: bool = False
    """Its trials ran to their end whatever their quality, and `ok` counts those that did."""
    resumed: int = 0
    """Trials resumed from a checkpoint: their clocks include the time lost."""
    trainings: int = 0
    """Different trainings among the trials whose end tells something about the cell."""

    @property
    def done(self) -> str:
        """Return the noun that `ok` counts, after a number of trials."""
        return "ran to their end" if self.contest else "reached the target" if self.has_target else "ended well"


def summarize(
    cell: ComparedCell, results: Iterable[Result], metric: Metric = DEFAULT, horizon: float | None = None
) -> Summary:
    """Return the median with its order-statistic interval, the success probability with Wilson's, and every point.

    Args:
        horizon: end of the mean time if trials missed; None: as far as all were watched.
    """
    ordered = sorted(results, key=attrgetter("repeat"))
    scale = METRICS[metric]
    found = [value for item in ordered if (value := figure(item, scale)) is not None and not is_meaningless(value)]
    reached, n = sum(meaning(item.status).reached for item in ordered), len(ordered)
    judged = counted(item.status for item in ordered)
    complete = bool(found) and len(found) == n
    different = {group[0] for group in trainings(ordered)}
    own = [item for item in ordered if item.repeat in different]  # what says something about seeds
    hits = sum(meaning(item.status).reached for item in own)
    spread = [value for item in own if (value := figure(item, scale)) is not None] if scale.by_training else found
    at_once = [0.0] * sum(figure(item, scale) == 0 for item in ordered)  # the target, before the first step
    middle = _censored_median([*at_once, *found], judged) if scale.to_target else known_median(found)
    return Summary(
        cell_id=cell.cell_id, label=cell.label, metric=metric, n=n, ok=reached, values=tuple(found), median=middle,
        statuses=dict(Counter(item.status for item in ordered)),
        interval=bounds(stats.median_interval(spread)) if complete else None,
        success=bounds(stats.wilson(hits, len(own))) if own else None, trainings=len(own),
        median_epochs=_censored_median([x for item in ordered if (x := item.epochs_to_target) is not None], judged),
        median_samples_per_second=known_median(item.samples_per_second for item in ordered),
        median_final=known_median(figure(item, METRICS["accuracy"]) for item in ordered),
        coefficient_of_variation=stats.or_none(lambda: stats.coefficient_of_variation(spread))
        if complete and len(spread) > 1 else None,
        outliers=tuple(stats.or_none(lambda: stats.outlier_marks(found)) or ()) if complete else (),
        has_target=isinstance(cell.choices, Mapping) or cell.choices.stop.has_target,
        contest=JUDGES.get(design_of(cell)) == "mean",
        resumed=sum(bool(item.resumed) for item in ordered),
        **(_missed(own, scale, horizon) if scale.to_target and 0 < hits < len(own) else {}),
    )


def _missed(results: Sequence[Result], scale: MetricSpec, horizon: float | None) -> dict[str, object]:
    """Return figures of a cell with missed trials; none if it is unknown how long those were watched."""
    results = [item for item in results if meaning(item.status).counts]
    courses = [observe(item, scale) for item in results]
    if not courses or any(item.kind == "unknown" for item in courses):
        return {}
    times, reached = censored(courses)
    found: dict[str, object] = {"reached_by": stats.or_none(lambda: stats.kaplan_meier(times, reached)) or ()}
    at = common_horizon(courses) if horizon is None else horizon
    if all(item.kind != "watched" or item.at >= at for item in courses):
        mean = stats.or_none(lambda: stats.restricted_mean(*cut(courses, at), at))
        if mean is not None:
            found |= {"restricted": Estimate(value=mean[0], interval=bounds(mean[1])), "horizon": at}
    return found | {"diverged_share": _diverged(results, scale)}


def _diverged(results: Sequence[Result], scale: MetricSpec) -> float | None:
    """Return the share that diverges; the target is the competing event, all other ends are censored."""
    ends = [meaning(item.status) for item in results]
    causes = ["reached" if end.reached else end.name if end.competes else None for end in ends]
    if "diverged" not in causes:
        return None
    times = [figure(item, scale) or watched_until(item, scale) for item in results]
    if any(time is None or is_meaningless(time) for time in times):
        return None
    steps = stats.or_none(lambda: stats.cumulative_incidence([float(time or 0) for time in times], causes))
    return float(steps["diverged"][-1][1]) if steps else None


def _censored_median(values: Sequence[float], n: int) -> float | None:
    """Return the median of times of which n - len(values) are only known to be longer; None up to 50 % reached."""
    if 2 * len(values) <= n:
        return None
    found = median([*values, *[math.inf] * (n - len(values))])
    return None if found == math.inf else found
