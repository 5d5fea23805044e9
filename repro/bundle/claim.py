"""The claims of a record that a second execution is judged by, and what a second execution can show of them.

A claim is the ratio of two cells: session and machine change both alike. A record without two cells to compare claims
the quality or the samples of one cell, which no clock is in. Absolute times are no claim: another session has others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from repro.compare.cells import CellIndex, CellPair, contrast_pairs
from repro.compare.design.standing import Standing
from repro.compare.evidence import drift
from repro.compare.evidence.evidence import NO_SPREAD, ComparisonRequest, Evidence, examine
from repro.compare.evidence.pairing import cell_trials
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.stats.replication import (
    LEAST_PAIRS,
    POWER,
    MeanLog,
    Shift,
    looks_up_to,
    mean_log,
    paired_shift,
    pairs_for_margin,
    replication_power,
    shift,
    supported_margin,
)
from repro.stats.sequential import LookLevel
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

    @property
    def unit(self) -> str:
        return "trials" if self.baseline is None else "pairs"


@dataclass(frozen=True, slots=True)
class Found:
    """A claim, measured by one execution."""

    mean: MeanLog | None
    """None: there is none, for the reason `why`."""
    logs: Mapping[int, float] = field(default_factory=dict)
    """Repeat -> its log ratio, or the log of its figure."""
    why: str = ""
    evidence: Evidence | None = None
    """Of a ratio."""

    @property
    def n(self) -> int:
        return 0 if self.mean is None else self.mean.figures


class Terms(Frozen):
    """The terms of a second execution, declared before it runs."""

    pairs: int = Field(ge=1)
    """New pairs, or trials of one cell."""
    margin: float = Field(gt=0, le=1)
    """Relative change of the claim that counts as the same: 0.05 for 1 / 1.05 to 1.05."""
    interaction: float = Field(0.0, ge=0, le=1)
    """Standard deviation, over sessions, of a cell's own share in the log ratio."""
    power: float | None = Field(None, ge=0, le=1)
    """Least probability over the claims that an unchanged claim is found to be reproduced. None: unknown, because the
    record's figures do not spread or there is none."""
    until_settled: bool = False
    """Judged at the looks up to its pairs, and ended by the first that answers."""

    @property
    def looks(self) -> tuple[LookLevel, ...]:
        """The looks at which it is judged; (): once, with all pairs."""
        return looks_up_to(self.pairs) if self.until_settled else ()

    @property
    def look_words(self) -> str:
        """`5, 8, 10`."""
        return ", ".join(str(look.n) for look in self.looks)


def claims_of(plan: Plan, kept: Sequence[str]) -> tuple[Claimed, ...]:
    """Return the claims that a second execution of the cells `kept` is judged by: the declared contrast alone if there
    is one, else every contrast, else the figure of each cell.

    Cells of which the suite promises every bit are judged by their hashes.

    Raises:
        UsageError: the design has no claim that a second execution can be judged by.
    """
    suite, metric = plan.suite, plan.suite.metric
    if plan.design.is_contest:
        raise UsageError("a contest claims the mean quality of all its declared runs: to test that again, run its "
                         "suite as a new contest")
    free = [cell for cell in plan.cells if cell.cell_id in kept and not is_bitwise(plan, cell.cell_id)]
    index = CellIndex(free)
    primary, contrasts = contrast_pairs(index, suite)
    chosen: Sequence[CellPair] = [primary] if primary else contrasts
    found = tuple(Claimed(one, other, metric, f"{index.cells[one].label} against {index.cells[other].label}")
                  for one, other in chosen)
    return found or tuple(Claimed(cell.cell_id, None, _own_metric(plan), cell.label) for cell in free)


def is_bitwise(plan: Plan, cell_id: str) -> bool:
    """Return True if the suite promises equal bits of this cell; a simulated engine has no weights."""
    choices = next(cell.choices for cell in plan.cells if cell.cell_id == cell_id)
    return choices.repeatability == "bitwise" and choices.origin != "simulated"


def _own_metric(plan: Plan) -> Metric:
    """Return the metric of a cell without another to compare it with.

    Raises:
        UsageError: every figure of it has a clock in it.
    """
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
    sides = [_trials(record, standing, cell_id, claim, kept) for cell_id in claim.cells]
    if claim.baseline is None:
        return _of_one(sides[0], claim)
    doubts = drift.doubts(record.plan, record.results, record.execution)
    pair = claim.candidate, claim.baseline
    cells = [record.cell(name) for name in pair]
    suite = record.plan.suite
    found = examine(cells[0], cells[1], sides[0], sides[1], ComparisonRequest(
        metric=claim.metric, margin=suite.margin, horizon=suite.horizon,
        refusals=doubts.refusals(*pair, METRICS[claim.metric]), cautions=doubts.cautions(*pair),
        slots=doubts.slots(*pair), apart=doubts.apart(*pair), carry=doubts.carry(*pair)))
    if found.refusal:
        return Found(None, why=found.refusal, evidence=found)
    if found.missed is not None or found.ratio is None:
        ends = " and ".join(side.without_words() for side in (found.ours, found.theirs) if side.without)
        return Found(None, why=f"{ends or 'a figure is missing'}, so there is no ratio", evidence=found)
    logs = {pair.repeat: math.log(pair.candidate / pair.baseline) for pair in found.judged_pairs}
    stopped = standing.after_stop(pair)
    mean = _mean(list(logs.values())) if stopped is None else MeanLog(stopped.value, stopped.error, stopped.freedom)
    return Found(mean, logs, evidence=found)


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


def _of_one(trials: Sequence[Result], claim: Claimed) -> Found:
    found = cell_trials(claim.label, trials, METRICS[claim.metric])
    if found.wrong or found.without or found.n < 2:
        return Found(None, why=found.wrong or found.without_words() or f"{found.n} trials of {claim.label}")
    logs = {repeat: math.log(value) for repeat, value in found.values.items()}
    return Found(_mean(list(logs.values())), logs)


def _mean(logs: Sequence[float]) -> MeanLog:
    """Return the mean of logs; equal ones, as simulated times have, have no error."""
    if max(logs) - min(logs) < NO_SPREAD:
        return MeanLog(sum(logs) / len(logs), 0.0, len(logs) - 1)
    return mean_log(logs)


def settled_terms(
    record: Record, claims: Sequence[Claimed], pairs: int | None, margin: float | None, interaction: float = 0.0,
    *, undecided: bool = False, until_settled: bool = False,
) -> Terms:
    """Return the terms of a second execution.

    Args:
        pairs: new pairs; None: as many as the margin needs, at least those of the record.
        margin: None: the suite's.
        undecided: also if "reproduced" is out of reach, or the record gives no figure.

    Raises:
        UsageError: a claim has no figure in the record, or the record cannot support an answer on these terms; the
            message says which terms it supports.
    """
    found = {claim.label: measured(record, claim) for claim in claims}
    without = next((f"{label}: {item.why}" for label, item in found.items() if item.mean is None), None)
    if without and not undecided:
        raise UsageError(f"the record gives no figure to reproduce: {without}")
    means = [item.mean for item in found.values() if item.mean is not None]
    asked = record.plan.suite.margin if margin is None else margin
    if without or not means:  # no figure, or every cell is judged by its hashes
        return Terms(pairs=pairs or record.plan.design.common, margin=asked, interaction=interaction,
                     until_settled=until_settled)
    needed = pairs or max(_pairs_needed(item, asked, interaction, until_settled) for item in means)
    power = min(replication_power(item, max(2, needed), asked, interaction, until_settled) for item in means)
    if not undecided and (power < POWER or needed < LEAST_PAIRS):
        raise UsageError(_out_of_reach(means, needed, asked, interaction, power, claims[0].unit, until_settled))
    # Equal figures of a simulation are exact; measured ones may be equal by chance, and say nothing of their spread.
    known = all(item.error or _is_simulated(record, claim) for item, claim in zip(means, claims, strict=True))
    return Terms(pairs=needed, margin=asked, interaction=interaction, power=power if known else None,
                 until_settled=until_settled)


def _is_simulated(record: Record, claim: Claimed) -> bool:
    return all(record.cell(name).choices.origin == "simulated" for name in claim.cells)


def _pairs_needed(mean: MeanLog, margin: float, interaction: float, in_looks: bool) -> int:
    """Return the fewest new pairs that show the margin, at least those of the record; its own number if none does."""
    needed = pairs_for_margin(mean, margin, interaction, in_looks=in_looks)
    return max(mean.figures, needed if needed is not None and needed <= MOST_TIMES * mean.figures else 0)


MOST_TIMES = 4
"""Pairs of a second execution, as a multiple of the record's, that are run without being asked for."""


def _out_of_reach(
    means: Sequence[MeanLog], pairs: int, margin: float, interaction: float, power: float, unit: str, in_looks: bool,
) -> str:
    """Return why no answer can be expected on these terms, with those on which one can."""
    if pairs < LEAST_PAIRS:
        return f"{pairs} {unit} are too few for an answer; at least {LEAST_PAIRS} are required"
    least = f"{100 * POWER:.0f} %"
    start = (f"no answer is within reach: {pairs} new {unit} find an unchanged claim to be within a margin of "
             f"{100 * margin:.3g} % with {100 * power:.0f} % probability")
    counts = [pairs_for_margin(item, margin, interaction, in_looks=in_looks) for item in means]
    known = [item for item in counts if item is not None]
    more = f"; {max(known)} do with {least}: --trials {max(known)}" if len(known) == len(counts) else \
        f", and no number does with {least}, because the record itself is not that precise"
    margins = [supported_margin(item, pairs, interaction, in_looks=in_looks) for item in means]
    wider = "" if None in margins else (
        f"; {pairs} {unit} support a margin of {100 * max(item or 0 for item in margins):.0f} %: --margin "
        f"{max(item or 0 for item in margins):g}")
    return f"{start}{more}{wider}; to run all the same: --even-if-undecided"
