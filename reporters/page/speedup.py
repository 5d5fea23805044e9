"""Comparisons as the page shows them: the headline, the forest plot, its table, and a sentence to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from repro.compare import DECIDED, Bounds, Comparison, MetricSpec
from repro.compare.findings import Findings
from repro.core import pattern
from repro.core.redact import without_users
from repro.record.folder.store import Record
from repro.suite.field_problem import as_text
from repro.suite.kinds.training import TrainingConfig
from repro.suite.metrics import DEFAULT, METRICS
from repro.suite.planning.cell import Cell, shown_factors
from repro.tables.text import Number, limited, number, plural, ratios, visible, without_paths

from .axis import Axis, RatioMark, around_one, ratio_mark
from .cells import CellMark, goal, in_unit, marks

STATED: dict[str, str] = {
    "workload": "", "engine": "", "processes": "", "batch.global": "", "batch.accumulation": "1", "precision": "",
    "optimizer": "", "comm": "backend", "compression": "none", "compile": "False", "preconditioner": "none",
    "launcher": "local", "determinism": "seeded"}
"""Settings that a quotation names -> the value that it leaves out; "": none."""


@dataclass(frozen=True)
class Factor(RatioMark):
    """One value with its interval below a comparison."""

    name: str
    """On the page: `samples to the target`."""
    kind: Literal["samples", "throughput", "restricted"]
    words: str

    @property
    def inverse(self) -> bool:
        """True if it is drawn as 1 / value, so that on the logarithmic axis the factors add up to the ratio."""
        return self.kind == "throughput"

    @property
    def path(self) -> str:
        """Path of the value in the comparison as JSON."""
        return "restricted.ratio" if self.kind == "restricted" else f"split.{self.kind}.value"


def factors(item: Comparison, axis: Axis) -> tuple[Factor, ...]:
    """Return samples to the target and throughput of a ratio of times, or the restricted means if there is no ratio."""
    if item.split is not None:
        samples, throughput = item.split.samples, item.split.throughput
        return (_factor("samples to the target", "samples", samples.value, samples.interval, axis),
                _factor("throughput up to the target", "throughput", throughput.value, throughput.interval, axis))
    if item.restricted is not None and item.ratio is None:
        mean = item.restricted
        name = f"mean up to the horizon of {in_unit(mean.horizon, METRICS[item.metric])}"
        return (_factor(name, "restricted", mean.ratio, mean.interval, axis),)
    return ()


def _factor(
    name: str, kind: Literal["samples", "throughput", "restricted"], value: float, interval: Bounds | None, axis: Axis,
) -> Factor:
    mark = ratio_mark(axis, value, interval, inverse=kind == "throughput")
    limits = f", interval {mark.interval[0]} to {mark.interval[1]}" if mark.interval else ""
    drawn = "; drawn inverted, as time per sample" if kind == "throughput" else ""
    return Factor(**vars(mark), name=name, kind=kind, words=f"{name}: ratio {mark.ratio}{limits}{drawn}")


@dataclass(frozen=True, slots=True)
class SideFigure:
    """One further statistic of a comparison."""

    name: str
    path: str
    shown: Number
    ends: tuple[Number, Number] | None = None
    note: str = ""


def side_figures(item: Comparison) -> tuple[SideFigure, ...]:
    """Return p, the unpaired ratio, the order of single trials, the log-rank test and equivalence, as far as known."""
    found: list[SideFigure] = []
    if (p := number(item.p)) is not None:
        found.append(SideFigure("p", "p", p, note="not corrected" if item.primary else "before correction"))
    if (p := number(item.p_adjusted)) is not None:
        found.append(SideFigure("p after Holm", "p_adjusted", p, note=f"over {plural(item.family, 'contrast')}"))
    if item.unbiased is not None:
        found.append(_estimate("Median-unbiased ratio, corrected for the stop", "unbiased", item.unbiased.value,
                               item.unbiased.interval))
    if item.levels is not None:
        found.append(SideFigure("Ratio of arithmetic means", "levels.mean_ratio", ratios([item.levels.mean_ratio])[0]))
        found += [SideFigure(f"P90 of the {side}", f"levels.{side}_p90", value) for side in ("candidate", "baseline")
                  if (value := in_unit(getattr(item.levels, f"{side}_p90"), METRICS[item.metric])) is not None]
    if item.welch is not None and item.paired:
        found.append(_estimate("Ratio without pairing (Welch on logs)", "welch", item.welch.value,
                               item.welch.interval))
    if item.probability_less is not None:
        found.append(_estimate("P(candidate trial has the smaller value)", "probability_less",
                               item.probability_less.value, item.probability_less.interval))
    if (p := number(item.log_rank_p)) is not None:
        found.append(SideFigure("Log-rank p", "log_rank_p", p))
    if item.equivalence is not None and (p := number(item.equivalence.p)) is not None:
        found.append(SideFigure(f"Equivalent within {item.equivalence.margin:.2g}: p", "equivalence.p", p))
    return tuple(found)


def _estimate(name: str, path: str, value: float, interval: Bounds | None) -> SideFigure:
    values: Sequence[float] = [value, *((interval.low, interval.high) if interval else ())]
    texts = ratios(values) if path in ("welch", "unbiased") else [
        shown for x in values if (shown := number(x, 2)) is not None]
    return SideFigure(name, f"{path}.value", texts[0], (texts[1], texts[2]) if interval else None)


@dataclass(frozen=True, slots=True)
class PairRow:
    """One seed of a comparison: both values and their trials."""

    repeat: int
    candidate: Number | None
    candidate_trial: str
    baseline: Number | None
    baseline_trial: str
    ratio: Number
    at: float
    """Place of the ratio, per cent of the width."""

    @property
    def words(self) -> str:
        """Its tooltip."""
        return f"seed {self.repeat}: {self.candidate} / {self.baseline} = {self.ratio}"


@dataclass(frozen=True)
class Ratio(RatioMark):
    """One comparison: a row of the forest plot and of its table."""

    index: int
    """Index in the list of comparisons of `repro compare --json`."""
    item: Comparison
    candidate: CellMark
    baseline: CellMark
    goal: str
    reached: tuple[str, str]
    """Trials of the candidate and of the baseline that reached the target, of those that ran: `7 of 8 trials`."""
    margin: str
    """Largest difference that counts as the same: `5 %`."""
    base_median: Number | None
    pairs: tuple[PairRow, ...]
    words: str
    factors: tuple[Factor, ...]
    statistics: tuple[SideFigure, ...]
    in_both: str
    """The settings that both cells share: `mlp, 2 processes, batch 64`."""
    apart: str
    """The settings in which they differ and which neither label spells out: `reference: batch 64; batch 128: ...`."""

    @property
    def spec(self) -> MetricSpec:
        """The metric of the ratio."""
        return METRICS[self.item.metric]

    @property
    def clock(self) -> str:
        """The clock, or the quantity of a metric without one."""
        return self.spec.clock or self.spec.noun

    @property
    def by_clock(self) -> bool:
        """True if the headline names the clock: it is not the wall clock."""
        return bool(self.spec.clock) and self.spec.name != DEFAULT

    @property
    def amount(self) -> str:
        """time or samples."""
        return "time" if self.spec.timed else self.spec.unit

    @property
    def level(self) -> str:
        """Nominal coverage of the interval."""
        return self.item.coverage.replace(" %", "\N{NO-BREAK SPACE}%")

    @property
    def open(self) -> bool:
        """True if no verdict was reached: the sentence begins with that."""
        return self.item.verdict not in DECIDED

    @property
    def opening(self) -> str:
        """The first words of the sentence then."""
        return "No verdict" if self.item.verdict == "exploratory" else "Undecided"


@dataclass(frozen=True, slots=True)
class Forest:
    """All comparisons on one axis."""

    axis: Axis
    rows: tuple[Ratio, ...]
    """The declared contrast first."""
    without: str = ""
    """Why none of them was declared, for a record without a declared contrast."""

    @property
    def one(self) -> float:
        """Position of 1, per cent."""
        return self.axis.at(1.0)

    @property
    def primary(self) -> Ratio | None:
        return next((row for row in self.rows if row.item.primary), None)

    @property
    def others(self) -> tuple[Ratio, ...]:
        """Not declared in advance, so corrected for multiple testing."""
        return tuple(row for row in self.rows if not row.item.primary)

    @property
    def spec(self) -> MetricSpec:
        """The metric of the ratios."""
        return self.rows[0].spec if self.rows else METRICS[DEFAULT]

    @property
    def relative(self) -> str:
        """The title of the axis: `relative time`."""
        return f"relative {'time' if self.spec.clock else self.spec.noun}"

    @property
    def level(self) -> str:
        """Nominal coverage of the intervals; empty without intervals."""
        return next((row.level for row in self.rows if row.level), "")

    @property
    def kinds(self) -> set[str]:
        """Kinds of the factors that are drawn."""
        return {part.kind for row in self.rows for part in row.factors}


def forest(findings: Findings) -> Forest:
    """Place every comparison of the plan on one axis."""
    found = findings.comparisons
    further = [value for item in found if item.split
               for value in (item.split.samples.value, 1 / item.split.throughput.value)]
    further += [item.restricted.ratio for item in found if item.restricted and item.ratio is None]
    axis, known = around_one(extent(found, further)), marks(findings.record)
    rows = [_ratio(findings, index, item, known, axis) for index, item in enumerate(found)]
    return Forest(axis, tuple(sorted(rows, key=lambda row: not row.item.primary)), findings.without_primary)


def extent(found: Sequence[Comparison], further: Sequence[float] = ()) -> list[float]:
    """Return the values that an axis must hold: ratios, pairs, and intervals up to four times beyond them."""
    values = [pair.candidate / pair.baseline for item in found for pair in item.pairs]
    values += [*(item.ratio for item in found if item.ratio is not None), *further]
    low, high = min(values, default=1.0), max(values, default=1.0)
    ends = [end for item in found if item.interval for end in (item.interval.low, item.interval.high)]
    return values + [min(max(end, low / 4), high * 4) for end in ends]


def _ratio(findings: Findings, index: int, item: Comparison, known: dict[str, CellMark], axis: Axis) -> Ratio:
    record, mark = findings.record, ratio_mark(axis, item.ratio, item.interval)
    base = findings.summary(item.baseline, METRICS[item.metric].name).median
    shared, apart = _stated(record.cell(item.candidate), record.cell(item.baseline))
    return Ratio(
        **vars(mark), index=index, item=item, candidate=known[item.candidate], baseline=known[item.baseline],
        goal=goal(record.cell(item.candidate).choices),
        reached=(_reached(record, item.candidate), _reached(record, item.baseline)),
        margin=f"{100 * record.plan.suite.margin:.3g}\N{NO-BREAK SPACE}%",
        base_median=in_unit(base, METRICS[item.metric]), pairs=_pairs(record, item, axis), words=_words(item, mark),
        factors=factors(item, axis), statistics=side_figures(item),
        in_both=shared, apart=apart,
    )


def _stated(candidate: Cell, baseline: Cell) -> tuple[str, str]:
    """Return the settings that two cells share, and those in which they differ beyond their labels, as texts."""
    sides = [(cell, _settings(cell)) for cell in (candidate, baseline)]
    ours, theirs = (found for _, found in sides)
    shared = {key for key in ours.keys() & theirs.keys() if ours[key] == theirs[key]}
    named = [set(cell.factors if cell.differs_in is None else cell.differs_in) for cell, _ in sides]
    both = [text for key, text in ours.items() if key in shared and key not in named[0]]
    other = [(cell, [text for key, text in found.items() if key not in shared and key not in names])
             for (cell, found), names in zip(sides, named, strict=True)]
    return ", ".join(both), "; ".join(f"{cell.label}: {', '.join(texts)}" for cell, texts in other if texts)


def _settings(cell: Cell) -> dict[str, str]:
    """Return setting -> its text in a label, of those that are stated and are not left out."""
    data = cell.choices.stated()
    texts = shown_factors(cell.choices, [key for key in STATED if pattern.get(data, key) is not None])
    found = {key: cell.choices.phrase(key, text) for key, text in texts.items() if text != STATED[key]}
    if isinstance(cell.choices, TrainingConfig):  # with defaults, which are other ones elsewhere
        rule = cell.choices.optimizer
        options = ", ".join(f"{name}={as_text(value)}" for name, value in rule.options.items() if value)
        found["optimizer"] = without_users(f"{rule.kind} ({options})")
        found["schedule"] = f"{cell.choices.schedule.kind} learning rate"
    return found


def _reached(record: Record, cell_id: str) -> str:
    found = record.of_cell(cell_id)
    return f"{sum(result.status == 'ok' for result in found)} of {plural(len(found), 'trial')}"


def _pairs(record: Record, item: Comparison, axis: Axis) -> tuple[PairRow, ...]:
    names = {(result.cell_id, result.repeat): result.trial_id for result in record.results}
    spec = METRICS[item.metric]
    return tuple(
        PairRow(pair.repeat, in_unit(pair.candidate, spec), names[item.candidate, pair.repeat],
                in_unit(pair.baseline, spec), names[item.baseline, pair.repeat],
                ratios([pair.candidate / pair.baseline])[0], axis.at(pair.candidate / pair.baseline))
        for pair in item.pairs
    )


def _words(item: Comparison, mark: RatioMark) -> str:
    if mark.ratio is None:
        return f"no {'result' if item.refused else 'ratio'}: {item.because}"
    if mark.interval is None or item.interval is None:
        return f"ratio {mark.ratio}, no interval, {plural(item.n, 'pair')}"
    low, high = mark.interval
    return f"ratio {mark.ratio}, {item.coverage} interval {low} to {high}, {plural(item.n, 'pair')}"


def sentence(row: Ratio) -> str:
    """Return the verdict as one sentence, with interval, pairs and the origin of the figures."""
    candidate, baseline = (visible(without_paths(mark.label)) for mark in (row.candidate, row.baseline))
    goal = f" to reach {row.goal}" if row.spec.to_target else ""
    clock = f" by the {row.clock}" if row.by_clock else ""
    ends = f", {row.level} interval {row.interval[0]} to {row.interval[1]}" if row.interval else ""
    origin = " and ".join(dict.fromkeys((row.candidate.origin, row.baseline.origin)))
    facts = f"({plural(row.item.n, 'pair')}{ends}; {origin})"
    if row.ratio is None and row.spec.to_target and row.item.n and not row.item.refused:
        return (f"{candidate} reached {row.goal} in {row.reached[0]}, {baseline} in {row.reached[1]}{clock} {facts}. "
                f"The ratio of their {row.amount}s is unknown: {row.item.spoken}.")
    if row.ratio is None:
        what = f"result for {candidate} against" if row.item.refused else f"ratio of {candidate} to"
        return f"No {what} {baseline}{goal}{clock} {facts}: {row.item.verdict}."
    if row.open:
        return (f"{row.opening} between {candidate} and {baseline}{goal}{clock}: ratio {row.ratio} {facts}, "
                f"{row.item.verdict}.")
    return (f"{candidate} {row.spec.says[0]} {row.ratio} times {row.spec.says[1]} {baseline}{goal}{clock} {facts}: "
            f"{row.item.verdict}{f' within {row.margin}' if row.item.verdict == 'same' else ''}{row.item.qualifier}.")


def quotation(row: Ratio, machine: str, cautions: Sequence[str]) -> str:
    """Return the sentence with the settings of both cells, the machine and all cautions.

    Args:
        cautions: of the run, besides those of the comparison.
    """
    both = ", ".join(filter(None, (row.in_both, *([machine] if row.candidate.origin != "simulated" else []))))
    facts = [f"Both: {both}"] if both else []
    facts += [text for text in (row.apart, f"{row.item.also[:1].upper()}{row.item.also[1:]}") if text]
    facts += [f"Caution: {text}" for text in dict.fromkeys((*cautions, *row.item.cautions))]
    return limited(visible(without_paths(" ".join([sentence(row), *(f"{text}." for text in facts)]))))
