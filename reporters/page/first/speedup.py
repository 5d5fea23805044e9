"""Comparisons as the page shows them: the headline, the forest plot and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare import DECIDED, METRICS, Comparison
from repro.compare.evidence.time_split import in_words
from repro.compare.findings import Findings
from repro.record.folder.store import Record
from repro.suite.metrics import DEFAULT
from repro.tables.text import Number, number, plural, ratios, seconds

from ..axis import Axis, around_one
from ..cells import CellMark, goal, marks
from .factors import Factor, SideFigure, drawn_values, factors, side_figures


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
