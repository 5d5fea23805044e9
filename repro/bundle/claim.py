"""The claims of a record that a second execution is judged by, as one execution measured them.

A claim is the ratio of two cells: session and machine change both alike. A record without two cells to compare claims
the quality or the samples of one cell, which no clock is in. Absolute times are no claim: another session has others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from repro.compare.cells import CellIndex, CellPair, contrast_pairs
from repro.compare.design.standing import Standing
from repro.compare.evidence import drift
from repro.compare.evidence.evidence import NO_SPREAD, ComparisonRequest, Evidence, examine
from repro.compare.evidence.grid import coarseness
from repro.compare.evidence.pairing import CellTrials, cell_trials
from repro.compare.evidence.repeated import of_trainings, repeated_in
from repro.compare.qualifiers import Failures
from repro.core.errors import UsageError
from repro.core.numbers import ratio_texts
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.stats.interval import from_log
from repro.stats.replication import MeanLog, Shift, mean_log, paired_shift, shift
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim: the cells that it is about, and the metric."""

    candidate: str
    baseline: str | None
    """None: the claim is the figure of one cell."""
    metric: Metric
    label: str

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.candidate,) if self.baseline is None else (self.candidate, self.baseline)

    def counted(self, n: int, which: str = "") -> str:
        """`7 pairs`, `1 new trial`."""
        unit = "trial" if self.baseline is None else "pair"
        return f"{n} {f'{which} ' if which else ''}{unit}{'' if n == 1 else 's'}"

    def texts(self, logs: Sequence[float]) -> list[str]:
        """Format figures of the claim, given as logarithms: ratios, or those of one cell."""
        values = [from_log(value) for value in logs]
        return [f"{value:.4g}" for value in values] if self.baseline is None else ratio_texts(values)


@dataclass(frozen=True, slots=True)
class Found:
    """A claim, measured by one execution."""

    mean: MeanLog | None
    """None: there is none, for the reason `why`."""
    logs: Mapping[int, float] = field(default_factory=dict)
    """Repeat -> its log ratio, or the log of its figure."""
    why: str = ""
    sides: tuple[CellTrials, ...] = ()
    """The trials of each cell of the claim."""
    evidence: Evidence | None = None
    """Of a ratio."""
    starts: Failures | None = None
    """Trials of which a start failed and ran again."""
    exaggerates: bool = False
    """It ended at an open-ended look, whose mean nothing corrects."""
    apart: float = 0.0
    """How far evaluations are apart at the target, relative; infinite: unknown. 0: no evaluation limits the figure."""

    @property
    def n(self) -> int:
        return 0 if self.mean is None else self.mean.figures

    @property
    def is_corrected(self) -> bool:
        """The mean is not that of the pairs: it is corrected for the looks at which a run could stop."""
        return self.mean is not None and bool(self.logs) and not math.isclose(
            self.mean.value, math.fsum(self.logs.values()) / len(self.logs), abs_tol=1e-9)

    @property
    def has_weights(self) -> bool:
        """Every trial ended with a hash of its weights, which those of another execution can equal."""
        return all("final_weights" in item.hashes for side in self.sides for item in side.results.values())

    def too_coarse(self, margin: float) -> str:
        """Return that its evaluations are too far apart to show a margin; "" if they are not."""
        if self.apart <= margin:
            return ""
        if math.isinf(self.apart):
            return "the target was crossed before the first evaluation, or between two that are not recorded"
        return f"evaluations are {100 * self.apart:.3g} % apart at the target, too far to resolve this margin"


def claims_of(plan: Plan, kept: Sequence[str]) -> tuple[Claimed, ...]:
    """Return the claims that a second execution of the cells `kept` is judged by: the declared contrast alone if there
    is one, else every contrast, else the figure of each cell.

    Cells of which the suite promises every bit are judged by their hashes, and so is a contrast of two such cells.

    Raises:
        UsageError: the design has no claim that a second execution can be judged by, or none of its cells alone.
    """
    suite, metric = plan.suite, plan.suite.metric
    if plan.design.is_contest:
        raise UsageError("a contest claims the mean quality of all its declared runs: to test that again, run its "
                         "suite as a new contest")
    if suite.unit == "node" and METRICS[metric].clocked and not plan.has_twins:
        raise UsageError("this record claims a ratio of times for all nodes of a class (unit: node), and a second "
                         "execution runs on one computer; run its suite again in a pool, and compare the two runs")
    free = {cell.cell_id: cell for cell in plan.cells if not is_bitwise(plan, cell.cell_id)}
    index = CellIndex(plan.cells)
    primary, contrasts = contrast_pairs(index, suite)
    claimed: Sequence[CellPair] = [primary] if primary else contrasts
    if not claimed:
        return tuple(Claimed(name, None, _own_metric(plan), cell.label) for name, cell in free.items() if name in kept)
    found = tuple(Claimed(one, other, metric, f"{index.cells[one].label} against {index.cells[other].label}")
                  for one, other in claimed if {one, other} & free.keys())
    chosen = tuple(claim for claim in found if {*claim.cells} <= {*kept})
    if found and not chosen and free.keys() & {*kept}:
        raise UsageError(f"these trials leave no pair of a claim of the record; it claims {found[0].label}"
                         + (f" and {len(found) - 1} more" if len(found) > 1 else ""))
    return chosen


def is_bitwise(plan: Plan, cell_id: str) -> bool:
    """Return True if the suite promises equal bits of this cell; a simulated engine has no weights."""
    choices = next(cell.choices for cell in plan.cells if cell.cell_id == cell_id)
    return choices.repeatability == "bitwise" and choices.origin != "simulated"


def _own_metric(plan: Plan) -> Metric:
    """Return the metric of a cell without another to compare it with."""
    if not METRICS[plan.suite.metric].clocked:
        return plan.suite.metric
    if plan.design.judges != "trial":
        raise UsageError("this record has no two cells to compare, and its figures are times: those of another session "
                         "or machine differ without a reason in the cell, so there is nothing to judge; compare two "
                         "cells in one suite")
    fixed = all(cell.choices.stop.design == "fixed_budget" for cell in plan.cells)
    return "accuracy" if fixed else "samples"


def measured(record: Record, claim: Claimed, kept: Mapping[str, set[int]] | None = None) -> Found:
    """Return a claim as one execution measured it.

    Args:
        kept: cell -> repeats that count; None: those that the verdict of the record is on.
    """
    standing = Standing(record.plan, record.results, record.execution)
    trials = [_trials(record, standing, cell_id, claim, kept) for cell_id in claim.cells]
    if claim.baseline is None:
        return _of_one(record, trials[0], claim)
    doubts = drift.doubts(record.plan, record.results, record.execution)
    pair = claim.candidate, claim.baseline
    cells = [record.cell(name) for name in pair]
    suite = record.plan.suite
    found = examine(cells[0], cells[1], trials[0], trials[1], ComparisonRequest(
        metric=claim.metric, margin=suite.margin, horizon=suite.horizon_of(claim.metric),
        refusals=doubts.refusals(*pair, METRICS[claim.metric]), cautions=doubts.cautions(*pair),
        slots=doubts.slots(*pair), apart=doubts.apart(*pair), carry=doubts.carry(*pair)))
    sides = found.ours, found.theirs
    if found.refusal:
        return Found(None, why=found.refusal, sides=sides, evidence=found)
    if found.missed is not None or found.ratio is None:
        without = " and ".join(side.without_words() for side in sides if side.without)
        return Found(None, why=f"{without or 'a figure is missing'}, so there is no ratio", sides=sides, evidence=found)
    logs = {pair.repeat: math.log(pair.candidate / pair.baseline) for pair in found.judged_pairs}
    stopped = standing.after_stop(pair)
    mean = _mean(list(logs.values())) if stopped is None else MeanLog(stopped.value, stopped.error, stopped.freedom)
    spec = METRICS[claim.metric]
    return Found(mean, logs, sides=sides, evidence=found, starts=doubts.failed_starts(spec, pair),
                 exaggerates=kept is None and standing.ended_open(pair), apart=coarseness(sides, spec))


def shift_between(before: Found, after: Found) -> Shift | None:
    """Return the shift of a claim from one execution to the other, by seed if the first one has all seeds of the
    second; None: one of them has no figure.

    The pairs of a record that stopped at a look exaggerate: what its mean is corrected by is taken off, and what the
    correction adds to its error is added.
    """
    if before.mean is None or after.mean is None:
        return None
    if not after.logs.keys() <= before.logs.keys():
        return shift(before.mean, after.mean)
    found = paired_shift([before.logs[repeat] for repeat in after.logs], list(after.logs.values()))
    plain = _mean(list(before.logs.values()))
    added = max(0.0, before.mean.error**2 - plain.error**2)
    error = math.hypot(found.error, math.sqrt(added))
    return Shift(found.value + plain.value - before.mean.value, error, found.freedom)


def _trials(
    record: Record, standing: Standing, cell_id: str, claim: Claimed, kept: Mapping[str, set[int]] | None,
) -> list[Result]:
    """Return the trials that count: of a sequential run those of its last look, so that the stop chose none."""
    known = kept.get(cell_id, ()) if kept is not None else range(standing.judged_repeats(claim.cells))
    return [item for item in record.of_cell(cell_id) if item.repeat in known]


def _of_one(record: Record, trials: Sequence[Result], claim: Claimed) -> Found:
    """Return the figure of one cell, which training alone decides: of repeated trainings each counts once."""
    spec = METRICS[claim.metric]
    every = cell_trials(claim.label, trials, spec)
    if every.wrong or any(not meaning(status).counts for status in every.without):
        return Found(None, why=every.wrong or every.without_words(), sides=(every,))
    side = of_trainings(every)
    if side.without:
        return Found(None, why=side.without_words(), sides=(side,))
    if side.n < 2:
        repeated = repeated_in(record.cell(claim.candidate), every.results.values())
        return Found(None, why=repeated[0].words if repeated else f"{claim.counted(side.n)} of {claim.label}",
                     sides=(side,))
    logs = {repeat: math.log(value) for repeat, value in side.values.items()}
    return Found(_mean(list(logs.values())), logs, sides=(side,), apart=coarseness((side,), spec))


def _mean(logs: Sequence[float]) -> MeanLog:
    """Return the mean of logs; equal ones, as simulated times have, have no error."""
    if max(logs) - min(logs) < NO_SPREAD:
        return MeanLog(sum(logs) / len(logs), 0.0, len(logs) - 1)
    return mean_log(logs)
