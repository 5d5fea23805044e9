"""Contenders over workloads: performance profiles, their areas, geometric means of ratios, with bands over seeds.

The point figures are those of `repro.stats`; the bands come from resampling the seeds of every cell on its own. They
say how much other seeds would change the figures, not how other workloads would.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

from repro import stats
from repro.compare.evidence.pairing import is_meaningless
from repro.compare.figures import Estimate, bounds
from repro.core import pattern
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.random_streams import Streams
from repro.record.folder.store import Record
from repro.record.result.results import figure
from repro.record.result.status import meaning
from repro.scores.contenders import Entry, Field, default_factors, field_of, target_of
from repro.suite.metrics import DEFAULT, METRICS, MetricSpec
from repro.suite.model import Metric

RULE = ("a contender's time on a workload is the median over its seeds, in which a seed that missed the target counts "
        "as infinite: if no more than half reach it, the workload is missed (AlgoPerf's rule)")


class Outcome(Frozen):
    """One contender on one workload."""

    contender: str
    workload: str
    suite: str
    cell_id: str
    cell: str
    n: int
    """Seeds whose end tells about the cell."""
    planned: int
    reached: int
    median: float | None
    """In the metric's unit; None: missed."""


class WorkloadScore(Frozen):
    """One workload."""

    name: str
    target: str
    origin: str
    """measured, emulated or simulated."""
    best: float | None
    """The least median; None if every contender missed it."""


class ContenderScore(Frozen):
    """One contender over all workloads."""

    name: str
    solved: int
    """Workloads that it did not miss."""
    score: Estimate
    """Area under its profile from 1 to `tau_max`, over tau_max - 1; the band is over resampled seeds."""
    best_share: float
    """Share of workloads on which no other contender is faster."""
    mean_ratio: Estimate | None
    """Geometric mean over workloads of its time over the reference's; None: withheld."""
    withheld: str
    """Reason for a missing mean, or for a missing interval."""
    profile: tuple[float, ...]
    """Share of workloads within each of `Scores.taus` of the best time."""
    low: tuple[float, ...]
    """Lower end of the band at each tau; () without a band."""
    high: tuple[float, ...]


class Scores(Frozen):
    """Contenders over workloads."""

    metric: str
    by: tuple[str, ...]
    reference: str
    tau_max: float
    level: float
    draws: int
    """Resamples of the seeds; 0: there are no bands."""
    taus: tuple[float, ...]
    workloads: tuple[WorkloadScore, ...]
    contenders: tuple[ContenderScore, ...]
    outcomes: tuple[Outcome, ...]
    left_out: tuple[tuple[str, str], ...]
    """(contender, reason): it is in no figure, also not as the best."""
    cautions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.origin for item in self.workloads))

    def within(self, contender: ContenderScore, tau: float) -> float | None:
        """Return the share of workloads within tau of the best; None if no profile is given there."""
        return contender.profile[self.taus.index(tau)] if tau in self.taus else None

    def outcome(self, contender: str, workload: str) -> Outcome:
        """Return one contender on one workload."""
        return next(item for item in self.outcomes if (item.contender, item.workload) == (contender, workload))


TAU_MAX = 4.0
"""AlgoPerf's."""
LEVEL = 0.95
DRAWS = 2000
LEAST_SEEDS = 3
"""Of every cell, for bands."""
TWICE = 2.0
"""A factor at which tables give every profile, beside tau_max."""
GRID = 96
"""Factors between 1 and the last at which bands are computed."""
LAST_TAU = 64.0
"""Profiles are given up to the largest factor, but not beyond this."""
OVER_SEEDS = ("bands and intervals come from resampling the seeds of every cell: they say what other seeds would "
              "change, not what other workloads would")


@dataclass(frozen=True, slots=True)
class _Times:
    """The outcomes of a field, and resamples of their medians."""

    field: Field
    outcomes: Mapping[tuple[str, str], Outcome]
    draws: np.ndarray | None
    """(contenders, workloads, draws); None without bands."""

    def medians(self) -> np.ndarray:
        """Return (contenders, workloads, 1): infinite where a workload was missed."""
        found = [[self.outcomes[name, workload].median for workload in self.field.workloads]
                 for name in self.field.contenders]
        return np.array([[[math.inf if value is None else value] for value in row] for row in found])


def scores(
    records: Sequence[Record], metric: Metric | None = None, by: Sequence[str] = (),
    baseline: Mapping[str, object] | None = None, tau_max: float = TAU_MAX,
) -> Scores:
    """Score the contenders of records of one machine and one method.

    Args:
        metric: None: the declared contrast's, else the wall clock.
        by: factors that name a contender; (): those that vary on one workload.
        baseline: factors that select the contender whose times the ratios are over; None: the suite's baseline.
        tau_max: end of the area under a profile.

    Raises:
        UsageError: as `contenders.field_of`; a metric or a design without a target; no cell of the baseline.
    """
    suites = [record.plan.suite for record in records]
    scale = METRICS[metric or (suites[0].metric if METRICS[suites[0].metric].to_target else DEFAULT)]
    _check_metric(records, scale)
    field = field_of(records, by)
    reference = _reference(field, suites[0].baseline if baseline is None else baseline, baseline is not None)
    found = _times(field, scale)
    taus = _taus(stats.ratios_to_best(found.medians()), tau_max)
    return Scores(
        metric=scale.name, by=field.by, reference=reference, tau_max=tau_max, level=LEVEL,
        draws=DRAWS if found.draws is not None else 0, taus=taus,
        workloads=tuple(_workload(name, found) for name in field.workloads),
        contenders=tuple(_contenders(found, reference, taus, tau_max)),
        outcomes=tuple(found.outcomes.values()), left_out=field.left_out,
        cautions=tuple(_cautions(found)),
        notes=(RULE, *field.notes, *([OVER_SEEDS] if found.draws is not None else [])),
    )


def ranking(record: Record) -> Scores | None:
    """Return the scores of one record as its reports show them; None if it has none."""
    found = record_scores(record)
    return found if isinstance(found, Scores) else None


def record_scores(record: Record) -> Scores | str | None:
    """Return the scores of one record, or why it has none; None if it has fewer than two workloads or contenders, or no
    target. They are computed once a record."""
    if "scores" not in record.derived:
        record.derived["scores"] = _record_scores(record)
    found = record.derived["scores"]
    assert found is None or isinstance(found, Scores | str)
    return found


def _record_scores(record: Record) -> Scores | str | None:
    plan = record.plan
    tasks = {cell.choices.task for cell in plan.cells}
    unscored = not plan.design.scored or plan.design.judges != "trial" or plan.has_twins
    if unscored or len(tasks) < 2 or not default_factors([record]):
        return None
    try:
        return scores([record])
    except UsageError as error:
        return str(error)


def _check_metric(records: Sequence[Record], scale: MetricSpec) -> None:
    if not scale.to_target:
        known = ", ".join(name for name, spec in METRICS.items() if spec.to_target)
        raise UsageError(f"--metric {scale.name}: scores take a time or samples to the target ({known}), which a cell "
                         "that misses has as infinite")
    for record in records:
        if record.plan.design.judges != "trial":
            raise UsageError(f"{record.plan.suite.suite}: its trials have no target that ends their clocks")
        if not record.plan.design.scored:
            raise UsageError(f"{record.folder.root}: is the tuning of a run; score the run itself")
        if record.plan.has_twins:
            raise UsageError(f"{record.plan.suite.suite}: a calibration compares cells with themselves")


def _reference(field: Field, wanted: Mapping[str, object], asked: bool) -> str:
    """Return the contender of the first cell that matches, else the first."""
    for (name, _), entry in field.entries.items():
        if wanted and pattern.matches(entry.cell.choices.model_dump(mode="json", by_alias=True), wanted):
            return name
    if asked:
        raise UsageError(f"--baseline matches no contender; there are: {'; '.join(field.contenders)}")
    return field.contenders[0]


def _times(field: Field, scale: MetricSpec) -> _Times:
    outcomes: dict[tuple[str, str], Outcome] = {}
    seeds: dict[tuple[str, str], list[float | None]] = {}
    for name in field.contenders:
        for workload in field.workloads:
            entry = field.entries[name, workload]
            # After the first look of a sequential design the stop chooses how many trials there are.
            first_look = entry.record.plan.design.common if entry.record.plan.design.looks else None
            trials = [item for item in entry.record.of_cell(entry.cell.cell_id)
                      if meaning(item.status).counts and (first_look is None or item.repeat < first_look)]
            # The figure of every seed that tells about the cell, None for a miss.
            found = seeds[name, workload] = [figure(item, scale) for item in trials]
            if wrong := next((item for item, value in zip(trials, found, strict=True) if meaning(item.status).reached
                              and (value is None or is_meaningless(value))), None):
                raise UsageError(f"{name} on {workload}: {wrong.trial_id} reached the target, but has no {scale.noun} "
                                 "that a score can be computed from")
            if not found:
                raise UsageError(f"{name} on {workload}: no trial has run that can be scored")
            median = float(stats.resampled_medians(found, np.arange(len(found))[None, :])[0])
            outcomes[name, workload] = Outcome(
                contender=name, workload=workload, suite=entry.record.plan.suite.suite, cell_id=entry.cell.cell_id,
                cell=entry.cell.label, n=len(found), planned=first_look or entry.record.due_of(entry.cell.cell_id),
                reached=sum(value is not None for value in found), median=median if math.isfinite(median) else None)
    if min(len(found) for found in seeds.values()) < LEAST_SEEDS:
        return _Times(field, outcomes, None)
    draws = np.stack([np.stack([_resampled(field.entries[name, workload], seeds[name, workload])
                                for workload in field.workloads]) for name in field.contenders])
    return _Times(field, outcomes, draws)


def _resampled(entry: Entry, outcomes: Sequence[float | None]) -> np.ndarray:
    """Return the medians of resampled seeds; a cell draws the same whatever it is compared with."""
    generator = Streams(entry.record.plan.master_seed, 0).generator("scores", zlib.crc32(entry.cell.cell_id.encode()))
    return stats.resampled_medians(outcomes, generator.integers(0, len(outcomes), (DRAWS, len(outcomes))))


def _taus(ratios: np.ndarray, tau_max: float) -> tuple[float, ...]:
    """Return the factors at which profiles are given: every step of a profile, and a grid for the bands."""
    steps = {math.nextafter(ratio, math.inf) for ratio in ratios.ravel().tolist() if 1 < ratio < math.inf}
    last = max(tau_max, min(1.1 * max(steps, default=1.0), LAST_TAU))
    grid = {float(value) for value in np.geomspace(1.0, last, GRID)}
    marks = {tau for tau in (1.0, TWICE, tau_max) if tau <= last}
    return tuple(sorted({*marks, *(step for step in steps if step <= last), *(min(value, last) for value in grid)}))


def _workload(name: str, found: _Times) -> WorkloadScore:
    solved = [median for contender in found.field.contenders
              if (median := found.outcomes[contender, name].median) is not None]
    entry = found.field.entries[found.field.contenders[0], name]
    return WorkloadScore(name=name, target=target_of(entry.cell), origin=entry.record.origin_of(entry.cell),
                         best=min(solved, default=None))


def _contenders(found: _Times, reference: str, taus: Sequence[float], tau_max: float) -> Iterator[ContenderScore]:
    medians = found.medians()
    ratios = stats.ratios_to_best(medians)
    shares, areas = stats.profiles(ratios, taus)[:, :, 0].tolist(), stats.profile_scores(ratios, tau_max)[:, 0].tolist()
    bands = None if found.draws is None else _Bands(
        found.draws, found.field.contenders.index(reference), taus, tau_max)
    for number, name in enumerate(found.field.contenders):
        mean, withheld = _mean_ratio(found, name, reference)
        interval = bands.mean_ratio(number) if bands and mean is not None and name != reference else None
        if interval is not None and (interval.low == 0 or math.isinf(interval.high)):
            interval, withheld = None, f"no interval: in some resamples of the seeds it or {reference} misses"
        low, high = bands.profile(number) if bands else ((), ())
        yield ContenderScore(
            name=name, solved=int(np.isfinite(medians[number]).sum()), best_share=shares[number][0],
            score=Estimate(value=areas[number], interval=bounds(bands.score(number)) if bands else None),
            mean_ratio=None if mean is None else Estimate(value=mean, interval=bounds(interval)), withheld=withheld,
            profile=tuple(shares[number]), low=low, high=high)


def _mean_ratio(found: _Times, name: str, reference: str) -> tuple[float | None, str]:
    """Return the geometric mean of the ratios to the reference, or why there is none."""
    pairs = [(found.outcomes[name, workload], found.outcomes[reference, workload])
             for workload in found.field.workloads]
    for who in dict.fromkeys((name, reference)):
        missed = [item for pair in pairs for item in pair if item.contender == who and item.median is None]
        if missed:
            parts = [f"{item.workload} ({item.reached} of {item.n} seeds reached it)"
                     for item in dict.fromkeys(missed)]
            return None, (f"{'it' if who == name else who} missed {', '.join(parts)}: infinite, so there is no "
                          "geometric mean")
    return geometric_mean([(one.median or 0.0) / (other.median or math.inf) for one, other in pairs]), ""


class _Bands:

    def __init__(self, draws: np.ndarray, reference: int, taus: Sequence[float], tau_max: float) -> None:
        ratios = stats.ratios_to_best(draws)
        self._profiles = stats.profiles(ratios, taus)
        self._scores = stats.profile_scores(ratios, tau_max)
        self._means = stats.mean_ratios(draws, reference)

    def score(self, number: int) -> stats.Interval:
        return stats.percentile_interval(self._scores[number], LEVEL)

    def mean_ratio(self, number: int) -> stats.Interval:
        """Return 0 or infinity for an end in which the reference or the contender misses a workload: no bound."""
        means = self._means[number]
        low = stats.percentile_interval(np.nan_to_num(means, nan=0.0, posinf=math.inf), LEVEL).low
        return stats.Interval(low, stats.percentile_interval(np.where(np.isnan(means), math.inf, means), LEVEL).high,
                              LEVEL)

    def profile(self, number: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the lower and the upper end at every tau."""
        found = [stats.percentile_interval(row, LEVEL) for row in self._profiles[number]]
        return tuple(item.low for item in found), tuple(item.high for item in found)


def _cautions(found: _Times) -> Iterator[str]:
    late = [item for item in found.outcomes.values() if item.n < item.planned]
    if late:
        yield (f"{len(late)} of {len(found.outcomes)} cells have fewer seeds than planned (first: "
               f"{late[0].contender} on {late[0].workload}, {late[0].n} of {late[0].planned}): the scores can change")
    if found.draws is None:
        yield f"no bands: they need at least {LEAST_SEEDS} seeds of every contender on every workload"
    missed = [item.name for item in (_workload(name, found) for name in found.field.workloads) if item.best is None]
    if missed:
        yield f"every contender missed {', '.join(missed)}: it counts against all of them"
    if len(found.field.workloads) < 5:
        yield (f"{len(found.field.workloads)} workloads: a ranking over so few depends on their choice, and on which "
               "contenders take part")
