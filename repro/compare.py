"""Results + baseline -> Comparisons: what can be said of two cells, and why.

This version answers the declared primary contrast with a verdict and shows every other ratio as exploratory, without
one: many verdicts at the 5 % level would be wrong more often than they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import Field

from repro import pattern, stats
from repro.plan import Cell, Plan
from repro.results import Result
from repro.spec import Frozen

Verdict = Literal["faster", "slower", "inconclusive", "exploratory"]
Metric = Literal["tta_wall", "tta_train", "tta_cold"]
PAIRED_HASHES = ("init_weights", "data_order", "data")
"""What two trials of one pair must have in common for their seeds to mean the same."""


class Bounds(Frozen):
    """A confidence interval."""

    low: float
    high: float
    level: float


class Summary(Frozen):
    """One cell in figures."""

    cell_id: str
    label: str
    metric: str
    n: int
    ok: int
    values: tuple[float, ...]
    """The metric of every trial that reached the target, by repeat, seconds."""
    median: float | None
    """None unless more than half of the trials reached the target."""
    interval: Bounds | None
    success: Bounds | None
    """Wilson interval of the probability to reach the target."""
    statuses: dict[str, int]
    median_epochs: float | None
    median_samples_per_second: float | None
    median_final: float | None


class Pair(Frozen):
    """Two trials with one seed, seconds."""

    repeat: int
    candidate: float
    baseline: float


class Comparison(Frozen):
    """A candidate against its baseline."""

    schema_: int = Field(default=1, alias="schema")
    candidate: str
    baseline: str
    candidate_label: str
    baseline_label: str
    metric: str
    primary: bool
    pairs: tuple[Pair, ...]
    n: int
    ratio: float | None
    """Geometric mean of candidate / baseline seconds over pairs; below 1: the candidate is faster."""
    interval: Bounds | None
    verdict: Verdict
    because: str

    @property
    def speedup(self) -> float | None:
        """Baseline / candidate."""
        return None if self.ratio is None else 1 / self.ratio


def summarize(cell: Cell, results: Iterable[Result], metric: Metric = "tta_wall") -> Summary:
    """Median with its order-statistic interval, success probability with Wilson's, and every point."""
    ordered = sorted(results, key=lambda item: item.repeat)
    values = [value for item in ordered if item.status == "ok" and (value := getattr(item, metric)) is not None]
    reached, n = sum(item.status == "ok" for item in ordered), len(ordered)
    statuses: dict[str, int] = {}
    for item in ordered:
        statuses[item.status] = statuses.get(item.status, 0) + 1
    complete = bool(values) and reached == n
    return Summary(
        cell_id=cell.cell_id, label=cell.label, metric=metric, n=n, ok=reached, values=tuple(values),
        median=_censored_median(values, n), statuses=statuses,
        interval=_bounds(stats.median_interval(values)) if complete else None,
        success=_bounds(stats.wilson(reached, n)) if n else None,
        median_epochs=_censored_median([x for item in ordered if (x := item.epochs_to_target) is not None], n),
        median_samples_per_second=_plain_median([x for item in ordered if (x := item.samples_per_second) is not None]),
        median_final=_plain_median([x for item in ordered if (x := item.final) is not None]),
    )


def _censored_median(values: Sequence[float], n: int) -> float | None:
    """Median of times of which n - len(values) are only known to be longer; None at 50 % reached or below."""
    if 2 * len(values) <= n:
        return None
    padded = sorted(values) + [float("inf")] * (n - len(values))
    found = median(padded)
    return None if found == float("inf") else found


def _plain_median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _bounds(interval: stats.Interval | None) -> Bounds | None:
    return None if interval is None else Bounds(low=interval.low, high=interval.high, level=interval.level)


def compare(plan: Plan, results: Sequence[Result], metric: Metric | None = None) -> list[Comparison]:
    """The primary contrast first, then every other cell against its baseline and, where processes vary, against one
    process of its own kind."""
    primary = _primary(plan)
    chosen: Metric = metric or (plan.suite.primary.metric if plan.suite.primary else "tta_wall")
    contrasts = list(dict.fromkeys([*([primary] if primary else []), *_baseline_pairs(plan), *_scaling_pairs(plan)]))
    by_cell: dict[str, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.cell_id, []).append(result)
    cells = {cell.cell_id: cell for cell in plan.cells}
    return [
        contrast(cells[candidate], cells[baseline], by_cell.get(candidate, []), by_cell.get(baseline, []), chosen,
                 primary=(candidate, baseline) == primary, planned=plan.suite.seeds)
        for candidate, baseline in contrasts
    ]


def contrast(
    candidate: Cell, baseline: Cell, candidate_results: Sequence[Result], baseline_results: Sequence[Result],
    metric: Metric, primary: bool, planned: int | None = None,
) -> Comparison:
    """One candidate against one baseline, paired by seed.

    Args:
        planned: pairs that the plan asks for. While some are missing there is no verdict: who may stop at a good moment
            can choose it.
    """
    pairs, void, missed = _pairs(candidate_results, baseline_results, metric)
    have = {item.repeat for item in candidate_results} & {item.repeat for item in baseline_results}
    base: dict[str, Any] = {
        "candidate": candidate.cell_id, "baseline": baseline.cell_id, "candidate_label": candidate.label,
        "baseline_label": baseline.label, "metric": metric, "primary": primary, "pairs": pairs, "n": len(pairs),
    }
    if void:
        return Comparison(**base, ratio=None, interval=None, verdict="inconclusive", because=void)
    if missed:
        because = f"{missed} trial(s) of these cells did not reach the target, so a ratio of times would hide them"
        return Comparison(**base, ratio=None, interval=None, verdict="inconclusive", because=because)
    if len(pairs) < 2:
        because = f"{len(pairs)} pair(s) with one seed; two are the least for an interval, six for significance"
        return Comparison(**base, ratio=None, interval=None, verdict="inconclusive", because=because)
    ratio, interval = stats.paired_ratio([pair.candidate for pair in pairs], [pair.baseline for pair in pairs])
    verdict, because = _verdict(ratio, interval, pairs) if primary else (
        "exploratory", "not the declared primary contrast; shown without a verdict")
    if planned is not None and len(have) < planned:
        because = f"{len(have)} of {planned} planned pairs have run; no verdict before all have"
        verdict = "inconclusive" if primary else verdict
    return Comparison(**base, ratio=ratio, interval=_bounds(interval), verdict=verdict, because=because)


def _verdict(ratio: float, interval: stats.Interval, pairs: Sequence[Pair]) -> tuple[Verdict, str]:
    count = len(pairs)
    floor = stats.sign_flip_floor(count)
    sides = sum(pair.candidate < pair.baseline for pair in pairs)
    if floor > 0.05:
        return "inconclusive", f"{count} pairs cannot be significant at 5 % (exact floor p = {floor:.3g}); 6 can"
    if interval.low <= 1 <= interval.high:
        return "inconclusive", f"the 95 % interval holds 1; {sides} of {count} pairs were faster"
    word: Verdict = "faster" if ratio < 1 else "slower"
    agree = sides if ratio < 1 else count - sides
    # The t interval leans on normal logs, the permutation test on nothing; a verdict takes both. Beyond 20 pairs the
    # exact test would be 2^n sums long, and the t interval's lean no longer matters.
    p = stats.sign_flip([math.log(pair.candidate / pair.baseline) for pair in pairs]) if count <= 20 else None
    if p is not None and p > 0.05:
        return "inconclusive", (f"the t interval leaves 1 out but the exact sign-flip test does not agree "
                                f"(p = {p:.3g}); {agree} of {count} pairs were {word}")
    shown = "" if p is None else f", exact sign-flip p = {p:.3g}"
    return word, f"the 95 % interval leaves 1 out{shown}; {agree} of {count} pairs were {word}"


def _pairs(
    candidate: Sequence[Result], baseline: Sequence[Result], metric: Metric
) -> tuple[tuple[Pair, ...], str, int]:
    """(pairs by repeat, why pairing is void, trials that did not reach the target)."""
    other = {item.repeat: item for item in baseline}
    pairs, missed = [], 0
    for item in sorted(candidate, key=lambda result: result.repeat):
        mate = other.get(item.repeat)
        if mate is None:
            continue
        for name in PAIRED_HASHES:
            found = {result.hashes.get(name) for result in (item, mate)}
            ended_early = None in found and not item.status == mate.status == "ok"
            if len(found) > 1 and not ended_early:  # what ended before it wrote its hashes counts as missed below
                what = name.replace("_", " ")
                return (), f"seed {item.repeat}: {what} differ between the two, so they are no pair", 0
        ours, theirs = getattr(item, metric), getattr(mate, metric)
        if item.status == "ok" and mate.status == "ok" and ours is not None and theirs is not None:
            pairs.append(Pair(repeat=item.repeat, candidate=ours, baseline=theirs))
        else:
            missed += (item.status != "ok") + (mate.status != "ok")
    return tuple(pairs), "", missed


def _json(cell: Cell) -> dict[str, Any]:
    return cell.choices.model_dump(mode="json", by_alias=True)


def _primary(plan: Plan) -> tuple[str, str] | None:
    wanted = plan.suite.primary
    if wanted is None:
        return None
    candidate = next((cell for cell in plan.cells if pattern.matches(_json(cell), wanted.candidate)), None)
    baseline = next((cell for cell in plan.cells if pattern.matches(_json(cell), wanted.baseline)), None)
    if candidate is None or baseline is None or candidate.cell_id == baseline.cell_id:
        return None
    return candidate.cell_id, baseline.cell_id


def _baseline_pairs(plan: Plan) -> list[tuple[str, str]]:
    """Every cell against the cell that agrees with the baseline pattern and differs from it in nothing else."""
    data = {cell.cell_id: _json(cell) for cell in plan.cells}
    reference = plan.suite.baseline
    bases = [cell for cell in plan.cells if pattern.matches(data[cell.cell_id], reference)]
    if not reference:
        bases = bases[:1]
    found = []
    for cell in plan.cells:
        free = [key for key in plan.suite.matrix if key not in reference] if reference else []
        mate = next((base for base in bases if _alike(data[cell.cell_id], data[base.cell_id], free)), None)
        if mate is not None and mate.cell_id != cell.cell_id:
            found.append((cell.cell_id, mate.cell_id))
    return found


def _scaling_pairs(plan: Plan) -> list[tuple[str, str]]:
    """Every cell of several processes against one process of the same kind."""
    if "processes" not in plan.suite.matrix:
        return []
    data = {cell.cell_id: _json(cell) for cell in plan.cells}
    others = [key for key in plan.suite.matrix if key != "processes"]
    singles = [cell for cell in plan.cells if cell.choices.processes == 1]
    found = []
    for cell in plan.cells:
        mate = next((base for base in singles if _alike(data[cell.cell_id], data[base.cell_id], others)), None)
        if cell.choices.processes > 1 and mate is not None:
            found.append((cell.cell_id, mate.cell_id))
    return found


def _alike(one: dict[str, Any], other: dict[str, Any], keys: Sequence[str]) -> bool:
    return all(pattern.get(one, key) == pattern.get(other, key) for key in keys)
