"""Comparisons as the page shows them: the headline, the forest plot and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from repro.compare import DECIDED, Bounds, Comparison
from repro.compare.evidence.time_split import in_words
from repro.compare.findings import Findings
from repro.record.folder.store import Record
from repro.suite.metrics import DEFAULT, METRICS
from repro.tables.text import Number, number, plural, ratios, seconds, visible, without_paths

from ..paper.latex_text import breakable_text
from .axis import Axis, around_one
from .cells import CellMark, goal, marks

Kind = Literal["samples", "throughput", "restricted"]
PATHS: dict[Kind, str] = {"samples": "split.samples", "throughput": "split.throughput", "restricted": "restricted"}
"""Path of the value of each kind in the comparison as JSON."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One value with its interval below a comparison."""

    name: str
    """On the page: `samples to the target`."""
    kind: Kind
    shown: Number
    ends: tuple[Number, Number] | None
    inverse: bool
    """True if it is drawn as 1 / value, so that on the logarithmic axis the factors add up to the ratio."""
    dot: float
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    words: str

    @property
    def path(self) -> str:
        """Path of the value in the comparison as JSON."""
        return PATHS[self.kind]


def factors(item: Comparison, axis: Axis) -> tuple[Factor, ...]:
    """Return samples to the target and throughput of a ratio of times, or the restricted means if there is no ratio."""
    found: list[Factor] = []
    if item.split is not None:
        samples, throughput = item.split.samples, item.split.throughput
        found = [_factor("samples to the target", "samples", samples.value, samples.interval, axis),
                 _factor("throughput up to the target", "throughput", throughput.value, throughput.interval, axis)]
    if item.restricted is not None and item.ratio is None:
        mean, scale = item.restricted, METRICS[item.metric]
        unit = seconds(mean.horizon) if scale.timed else number(mean.horizon, 4, scale.unit)
        found.append(_factor(f"mean up to the horizon of {unit}", "restricted", mean.ratio, mean.interval, axis))
    return tuple(found)


def drawn_values(item: Comparison) -> list[float]:
    """Return the positions of `factors` on the axis, as ratios."""
    values = [item.split.samples.value, 1 / item.split.throughput.value] if item.split else []
    return values + ([item.restricted.ratio] if item.restricted and item.ratio is None else [])


def _factor(name: str, kind: Kind, value: float, interval: Bounds | None, axis: Axis) -> Factor:
    inverse = kind == "throughput"
    ends = (interval.low, interval.high) if interval else None
    texts = ratios([value, *(ends or ())])
    at = 1 / value if inverse else value
    drawn = ((1 / ends[1], 1 / ends[0]) if inverse else ends) if ends else None
    limits = f", interval {texts[1]} to {texts[2]}" if ends else ""
    return Factor(
        name=name, kind=kind, shown=texts[0], ends=(texts[1], texts[2]) if ends else None, inverse=inverse,
        dot=axis.at(at), whisker=(axis.at(drawn[0]), axis.at(drawn[1])) if drawn else None,
        clipped=(not axis.holds(drawn[0]), not axis.holds(drawn[1])) if drawn else (False, False),
        words=f"{name}: ratio {texts[0]}{limits}" + ("; drawn inverted, as time per sample" if inverse else ""),
    )


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
    texts = ratios(values) if path == "welch" else [shown for x in values if (shown := number(x, 2)) is not None]
    return SideFigure(name, f"{path}.value", texts[0], (texts[1], texts[2]) if interval else None)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison: a row of the forest plot and of its table."""

    index: int
    """Index in the list of comparisons of `repro compare --json`."""
    candidate: CellMark
    baseline: CellMark
    primary: bool
    metric: str
    clock: str
    by_clock: bool
    """The headline names the clock: it is not the wall clock."""
    amount: str
    """time or samples."""
    said: tuple[str, str]
    """Words before and after the ratio: `takes`, `as long as`."""
    to_target: bool
    goal: str
    n: int
    reached: tuple[str, str]
    """Trials of the candidate and of the baseline that reached the target, of those that ran: `7 of 8 trials`."""
    margin: str
    """Largest difference that counts as the same: `5 %`."""
    ratio: Number | None
    interval: tuple[Number, Number] | None
    level: str
    speedup: Number | None
    base_median: Number | None
    verdict: str
    open: bool
    """No verdict was reached: the sentence begins with that."""
    because: str
    settles: str
    """Way to settle it; empty if it is settled or unknown."""
    unsettled: str
    """Reason for missing advice; empty if there is some or it is settled."""
    also: str
    """Further differences between the two, as read back; empty: none."""
    cautions: tuple[str, ...]
    refused: bool
    dot: float | None
    """Per cent of the width, as are the ends of the whisker."""
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    """True for ends of the interval beyond the axis, drawn as arrows."""
    pairs: tuple[tuple[float, float, str], ...]
    """(x per cent, y pixels, tooltip)."""
    words: str
    factors: tuple[Factor, ...]
    factors_in_words: str
    """What the two factors of a ratio of times show; "" without them."""
    statistics: tuple[SideFigure, ...]
    trials: tuple[PairRow, ...]


@dataclass(frozen=True, slots=True)
class PairRow:
    """One seed of a comparison: both values and their trials."""

    repeat: int
    candidate: Number | None
    candidate_trial: str
    baseline: Number | None
    baseline_trial: str
    ratio: Number


@dataclass(frozen=True, slots=True)
class Forest:
    """All comparisons on one axis."""

    axis: Axis
    one: float
    """Position of 1, per cent."""
    primary: Ratio | None
    others: tuple[Ratio, ...]
    """Not declared in advance, so corrected for multiple testing."""
    what: str
    """The quantity of the ratios: `times`."""
    relative: str
    """The title of the axis: `relative time`."""
    sides: tuple[str, str]
    """Words for a candidate left and right of 1."""
    drawn: bool
    """False if no pair of trials has run."""
    level: str
    """Nominal coverage of the intervals; empty without intervals."""
    errors: str
    """Spending of the 5 % for wrong verdicts."""

    @property
    def split(self) -> bool:
        """True if any ratio has factors."""
        return any(part.kind != "restricted" for row in self.rows for part in row.factors)

    @property
    def missed(self) -> bool:
        """True if a ratio of restricted means is drawn."""
        return any(part.kind == "restricted" for row in self.rows for part in row.factors)

    @property
    def rows(self) -> tuple[Ratio, ...]:
        return (*((self.primary,) if self.primary else ()), *self.others)


def forest(findings: Findings) -> Forest:
    """Place every comparison of the plan on one axis."""
    found = findings.comparisons
    axis = around_one(_extent(found))
    known = marks(findings.record)
    built = [_ratio(findings, index, item, known, axis) for index, item in enumerate(found)]
    return Forest(
        axis=axis, one=axis.at(1.0), primary=next((item for item in built if item.primary), None),
        others=tuple(item for item in built if not item.primary),
        what=_what(found), relative=_relative(found), sides=_sides(found),
        drawn=any(item.pairs or item.factors for item in built),
        level=next((item.level for item in built if item.level), ""), errors=findings.error_budget,
    )


def _what(found: Sequence[Comparison]) -> str:
    scale = METRICS[found[0].metric if found else DEFAULT]
    return "times" if scale.clock else scale.noun


def _relative(found: Sequence[Comparison]) -> str:
    scale = METRICS[found[0].metric if found else DEFAULT]
    return f"relative {'time' if scale.clock else scale.noun}"


def _sides(found: Sequence[Comparison]) -> tuple[str, str]:
    scale = METRICS[found[0].metric if found else DEFAULT]
    return scale.below, scale.above


def _extent(found: Sequence[Comparison]) -> list[float]:
    """Return the values that the axis must hold: ratios, pairs, and intervals up to four times beyond them."""
    values = [pair.candidate / pair.baseline for item in found for pair in item.pairs]
    values += [item.ratio for item in found if item.ratio is not None]
    values += [value for item in found for value in drawn_values(item)]
    low, high = min(values, default=1.0), max(values, default=1.0)
    ends = [end for item in found if item.interval for end in (item.interval.low, item.interval.high)]
    return values + [min(max(end, low / 4), high * 4) for end in ends]


def _ratio(
    findings: Findings, index: int, item: Comparison, known: dict[str, CellMark], axis: Axis
) -> Ratio:
    record, scale = findings.record, METRICS[item.metric]
    base = findings.summary(item.baseline, scale.name)
    interval = item.interval
    texts = ratios([item.ratio, *([interval.low, interval.high] if interval else [])]) if item.ratio else []
    return Ratio(
        index=index, candidate=known[item.candidate], baseline=known[item.baseline], primary=item.primary,
        metric=item.metric, clock=scale.clock or scale.noun,
        by_clock=bool(scale.clock) and scale.name != DEFAULT, amount="time" if scale.timed else scale.unit,
        said=scale.says,
        to_target=scale.to_target, goal=goal(record.cell(item.candidate).choices), n=item.n,
        margin=f"{100 * record.plan.suite.margin:.3g}\N{NO-BREAK SPACE}%",
        reached=(_reached(record, item.candidate), _reached(record, item.baseline)),
        ratio=texts[0] if texts else None, interval=(texts[1], texts[2]) if len(texts) == 3 else None,
        level=item.coverage.replace(" %", "\N{NO-BREAK SPACE}%"),
        speedup=number(item.speedup), base_median=_figure(base.median, item), verdict=item.verdict,
        open=item.verdict not in DECIDED,
        because=item.because, settles=item.settles, unsettled=_unsettled(item), cautions=item.cautions,
        also=item.also, refused=item.refused,
        dot=axis.at(item.ratio) if item.ratio else None,
        whisker=(axis.at(interval.low), axis.at(interval.high)) if interval else None,
        clipped=(not axis.holds(interval.low), not axis.holds(interval.high)) if interval else (False, False),
        pairs=tuple(
            (axis.at(pair.candidate / pair.baseline), 8.0 + 6.0 * (index % 3),
             f"seed {pair.repeat}: {_figure(pair.candidate, item)} / {_figure(pair.baseline, item)} = "
             f"{ratios([pair.candidate / pair.baseline])[0]}")
            for index, pair in enumerate(item.pairs)
        ),
        words=_words(item, [text.text for text in texts]), factors=factors(item, axis),
        factors_in_words=in_words(item.split) if item.split else "", statistics=side_figures(item),
        trials=_pair_rows(record, item),
    )


def _reached(record: Record, cell_id: str) -> str:
    found = record.of_cell(cell_id)
    return f"{sum(result.status == 'ok' for result in found)} of {plural(len(found), 'trial')}"


def _unsettled(item: Comparison) -> str:
    if item.verdict not in ("inconclusive", "exploratory") or item.settles or item.refused or item.ratio is not None:
        return ""
    return "Next: give the trials a larger budget (stop.max_epochs), so that more of them reach the target"


def _pair_rows(record: Record, item: Comparison) -> tuple[PairRow, ...]:
    names = {(result.cell_id, result.repeat): result.trial_id for result in record.results}
    return tuple(
        PairRow(pair.repeat, _figure(pair.candidate, item), names[item.candidate, pair.repeat],
                _figure(pair.baseline, item), names[item.baseline, pair.repeat],
                ratios([pair.candidate / pair.baseline])[0])
        for pair in item.pairs
    )


def _figure(value: float | None, item: Comparison) -> Number | None:
    scale = METRICS[item.metric]
    return seconds(value) if scale.timed else number(value, 4, scale.unit)


def _words(item: Comparison, texts: Sequence[str]) -> str:
    """Describe the drawing in one sentence."""
    if not texts:
        return f"no {'result' if item.refused else 'ratio'}: {item.because}"
    if len(texts) < 3 or item.interval is None:
        return f"ratio {texts[0]}, no interval, {plural(item.n, 'pair')}"
    level = f"{100 * item.interval.level:.0f}\N{NO-BREAK SPACE}%"
    return f"ratio {texts[0]}, {level} interval {texts[1]} to {texts[2]}, {plural(item.n, 'pair')}"


def sentence(row: Ratio) -> str:
    """Return the verdict as one sentence, with interval, pairs and the origin of the figures."""
    candidate, baseline = (visible(without_paths(mark.label)) for mark in (row.candidate, row.baseline))
    goal = f" to reach {row.goal}" if row.to_target else ""
    clock = f" by the {row.clock}" if row.by_clock else ""
    ends = f", {row.level} interval {row.interval[0]} to {row.interval[1]}" if row.interval else ""
    origin = " and ".join(dict.fromkeys((row.candidate.origin, row.baseline.origin)))
    facts = f"({plural(row.n, 'pair')}{ends}; {origin})"
    if row.ratio is None and row.to_target and row.n and not row.refused:
        return (f"{candidate} reached {row.goal} in {row.reached[0]}, {baseline} in {row.reached[1]}{clock} {facts}. "
                f"The ratio of their {row.amount}s is unknown: {row.verdict}.")
    if row.ratio is None:
        what = f"result for {candidate} against" if row.refused else f"ratio of {candidate} to"
        return f"No {what} {baseline}{goal}{clock} {facts}: {row.verdict}."
    if row.open:
        return f"Undecided between {candidate} and {baseline}{goal}{clock}: ratio {row.ratio} {facts}, {row.verdict}."
    return (f"{candidate} {row.said[0]} {row.ratio} times {row.said[1]} {baseline}{goal}{clock} {facts}: "
            f"{row.verdict}{f' within {row.margin}' if row.verdict == 'same' else ''}.")


def latex(row: Ratio) -> str:
    """Return the same sentence for LaTeX; a long word of a label may be broken after a mark."""
    return breakable_text(sentence(row))
