"""The parts of a comparison, as they are written to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import Field, computed_field

from repro import stats
from repro.compare.qualifiers import Failures, Levels, OneSearch
from repro.core.frozen import Frozen
from repro.record.environment.placement import host_of
from repro.record.result.remarks import Worded
from repro.suite.design import claim_text
from repro.suite.metrics import METRICS
from repro.suite.model import Unit

AdviceKind = Literal["missing_pairs", "lost_trials", "not_run_again", "more_pairs", "declare_pairs", "parted_pairs",
                     "equal_grids", "timely", "next_look", "tested", "tested_in_a_contest", "looks_used_up",
                     "own_seeds"]


class Guide(NamedTuple):
    """The words of a kind of advice, and what to run for it."""

    words: str
    command: str = ""
    """"": there is nothing to run."""


GUIDES: Mapping[AdviceKind, Guide] = {
    "missing_pairs": Guide("run the missing pairs", "repro run --resume RUN"),
    "lost_trials": Guide("mend the cause and start another run, or, if it lay outside of the suite, run them again",
                         "repro run --resume RUN --rerun-failed"),
    "not_run_again": Guide("report it as undecided. Trials that ended so do not run again; mend what their reasons "
                           "name and start another run"),
    "more_pairs": Guide("run at least {n} pairs, with new seeds", "repro run SUITE --seeds {n}"),
    "declare_pairs": Guide("declare at least {n} pairs in a suite before its first run"),
    "parted_pairs": Guide("pairs are left out whose trials did not run in one block: after a pause, a trial that ran "
                          "again, or a move. Declare more than {n} pairs in a suite before its first run, or run one "
                          "without a pause"),
    "equal_grids": Guide("evaluate both after the same steps, and let a program state them, in a new experiment"),
    "timely": Guide("let the programs print each evaluation at once, or report it through repro.watch, in a new "
                    "experiment"),
    "next_look": Guide("the next look is at {n} pairs"),
    "tested": Guide("report it as undecided. Adding pairs until a verdict appears would err in more than 5 % of cases, "
                    "and so would another run"),
    "tested_in_a_contest": Guide("report it as undecided. Adding runs until a verdict appears would err in more than "
                                 "5 % of cases, and so would another contest"),
    "looks_used_up": Guide("report it as undecided. Its looks are used up, and running it again until a verdict "
                           "appears would err in more than 5 % of cases"),
    "own_seeds": Guide("let every trial train with its own seed (a program's command takes {{seed}}), then run at "
                       "least {n} pairs", "repro run SUITE --seeds {n}"),
}


class Advice(Worded):
    """A step that settles an open comparison without more errors than stated.

    Every further test of one contrast at 5 % errs in up to 5 % again: somebody who repeats an experiment until a
    verdict appears finds one where there is none. So no kind asks for another test of a contrast that was tested, and
    `python -m benchmarks verdicts` follows every kind. It asks for what was missing: a trial, a grid, a seed, enough
    pairs for any verdict.
    """

    kind: AdviceKind
    n: int = 0
    """Pairs of `more_pairs`, `declare_pairs`, `parted_pairs`, `next_look` and `own_seeds`."""

    @property
    def command(self) -> str:
        """The command to run; "" if there is none."""
        return GUIDES[self.kind].command.format(n=self.n)

    def _words(self) -> str:
        words = GUIDES[self.kind].words.format(n=self.n)
        return f"{words}: {self.command}" if self.command else words


class Repeated(Worded):
    """A cell with fewer trainings than trials: some trials are one training that was repeated."""

    kind: Literal["repeated_training"] = "repeated_training"
    cell_id: str
    label: str
    trials: int
    trainings: int
    """Different ones among the trials."""

    @property
    def short(self) -> str:
        """`train.py: one training repeated 6 times`."""
        what = f"one training repeated {self.trials} times" if self.trainings == 1 else \
            f"{self.trials} trials of only {self.trainings} different trainings"
        return f"{self.label}: {what}"

    def _words(self) -> str:
        return f"{self.short}; says nothing about other seeds"


Verdict = Literal["faster", "slower", "higher", "lower", "same", "inconclusive", "exploratory"]
"""faster, slower: times, samples to the target, throughput. higher, lower: final quality. same: equivalence was shown.
exploratory: no verdict was possible at this n with this many contrasts."""
DECIDED: tuple[Verdict, ...] = ("faster", "slower", "higher", "lower", "same")


class Bounds(Frozen):
    """A confidence interval."""

    low: float
    high: float
    level: float


class Estimate(Frozen):
    """A figure with its interval."""

    value: float
    interval: Bounds | None = None
    steady: bool = False
    """All pairs have this value, so that it has no interval."""


ADVICE = "; wash_out: true in a suite keeps out what one trial leaves behind, if that is alike for both cells"


class CarryOver(Worded):
    """The effect of a trial on the time of the next one (carry-over), estimated from the pairs of two cells.

    The verdict is not adjusted for it: adjusting only where it looks clear would err in far more than 5 %.
    """

    kind: Literal["carry_over"] = "carry_over"
    after_baseline: Estimate
    """Time of a trial right after one of the baseline / right after one of the candidate."""
    contained: float
    """The factor by which the ratio of the comparison contains it."""
    ratio: Estimate
    """The ratio with a term for it in the model: free of it, and much less certain."""
    washed: bool = False
    """The suite declares `wash_out`."""

    @property
    def clear(self) -> bool:
        """Its interval excludes 1."""
        found = self.after_baseline.interval
        return found is not None and not found.low <= 1 <= found.high

    def _words(self) -> str:
        found, free = self.after_baseline, self.ratio
        assert found.interval is not None and free.interval is not None, "made with both"
        return (f"carry-over: a trial took {found.value:.3f} x as long right after the baseline as right after the "
                f"candidate (95 % interval {found.interval.low:.3f} to {found.interval.high:.3f}), so the ratio is "
                f"about {self.contained:.3f} x what the cells alone give; with a term for it the ratio is "
                f"{free.value:.3f} ({free.interval.low:.3f} to {free.interval.high:.3f})"
                f"{'' if self.washed else ADVICE}")


class Pair(Frozen):
    """Two trials with one seed, in the metric's own unit."""

    repeat: int
    candidate: float
    baseline: float


class MarginTest(Frozen):
    """Two one-sided tests against a margin that was declared beforehand."""

    margin: float
    """Relative: 0.05 tests for a ratio between 1 / 1.05 and 1.05."""
    p: float
    p_adjusted: float | None = None
    """Holm over the family; None for the primary contrast, which is not corrected."""
    interval: Bounds
    """Interval of the ratio, at 1 - 2 alpha: inside the margin if the two tests reject."""
    equivalent: bool


class Restricted(Frozen):
    """Times cut at a horizon, so that runs that never reached the target count with the time they were given."""

    horizon: float
    """Seconds; samples for metric `samples`."""
    declared: bool
    """False: the suite names none, and it is as far as every run was watched."""
    ratio: float
    """Restricted mean of the candidate / of the baseline."""
    interval: Bounds | None
    candidate_mean: float
    baseline_mean: float


class TimeSplit(Frozen):
    """The two parts of a ratio of times: times = samples to the target / samples a second, so ratio = samples /
    throughput, exactly."""

    samples: Estimate
    throughput: Estimate
    """Samples a second up to the target, by the clock compared."""

    @property
    def words(self) -> str:
        """The result of each factor by its own interval without correction: exploratory, never a verdict."""
        return f"{_factor_words(self.samples, 'samples to the target')}; " \
               f"{_factor_words(self.throughput, 'samples a second')}"


def _factor_words(found: Estimate, what: str) -> str:
    if found.interval is None:
        return f"{what} {found.value:.3g} x {'in every pair' if found.steady else '(no interval at a look)'}"
    if found.interval.low > 1:
        return f"more {what}"
    return f"fewer {what}" if found.interval.high < 1 else f"{what}: no difference shown"


class Adjusted(Frozen):
    """The adjustment of a ratio of times for a machine that drifted during the run."""

    per_place: float
    """Relative change of the time from one place in the order of execution to the next."""
    places: float
    """Mean place of the candidate's trials less that of the baseline's."""
    unadjusted: float
    """The ratio without the adjustment."""
    shifts: tuple[float, ...] = ()
    """Part of the log ratio of each pair that the machine explains, in the order of the pairs."""


class GridFacts(Frozen):
    """The uncertainty that evaluation grids add: a target is seen at evaluations only."""

    share: float | None
    """Largest excess of first hits over crossings, relative; None: unknown, or a first evaluation hit."""
    unlike: str
    """Difference between the two grids; "" if they are equal."""
    candidate_first_hits: int
    """Trials that reached the target at their first evaluation: their time is one distance between evaluations."""
    baseline_first_hits: int
    interval: Bounds | None
    """95 % interval of the ratio of crossings, wherever they are between two evaluations; None: no bound."""


class Difference(Frozen):
    """A setting that differs between two cells, as their trials read it back, although no factor asked for it."""

    name: str
    candidate: str
    baseline: str

    @property
    def words(self) -> str:
        """`overlap off against on`."""
        return f"{self.name} {self.candidate} against {self.baseline}"


class LookPlace(Frozen):
    """A look of a sequential design."""

    number: int
    of: int
    n: int
    """Pairs at this look."""
    nominal: float
    """Level that p is compared with here; 0.05 for an e-process, whose p is valid at every n."""
    same_nominal: float
    """The same for each side of sameness."""
    anytime: bool = False
    next_n: int | None = None
    """Pairs at the next look; None: the run has ended."""


class NodeRatio(Frozen):
    """The ratio on one node of a pool, or on one lane."""

    name: str
    pairs: int
    ratio: float
    interval: Bounds | None = None
    """Student's at 95 %; None: one pair."""


class ByNode(Frozen):
    """The ratio by node, of pairs that ran in a pool."""

    unit: Unit
    """What the verdict counts: pairs, on these nodes; or one mean for each node, on all of their class."""
    nodes: tuple[NodeRatio, ...]
    """With unit block the lanes, each a node or a part of one."""
    statistic: float | None
    """F of a one-way analysis: does the ratio differ between nodes? None: one pair on each, or no spread."""
    p: float | None
    between: float | None
    """Standard deviation between nodes of the log ratio, without the noise of pairs."""
    ratio: float
    """Geometric mean over nodes, each counted once."""
    interval: Bounds | None
    """Of it, at 95 %, with nodes as the units."""
    prediction: Bounds
    """Of the mean ratio on another node of the class."""

    @property
    def noun(self) -> str:
        """`nodes`, or `lanes` if several of them are parts of one."""
        return "nodes" if len({host_of(item.name) for item in self.nodes}) == len(self.nodes) else "lanes"

    @property
    def scope(self) -> str:
        """The computers that a verdict is about: ` on these 4 nodes`, ` on nodes of this class (6 of them)`."""
        return f" on nodes of this class ({len(self.nodes)} of them)" if self.unit == "node" else \
            f" on these {len(self.nodes)} {self.noun}"

    @property
    def differs(self) -> bool:
        """The test finds at 5 % that the ratio differs between nodes."""
        return self.p is not None and self.p <= 0.05

    @property
    def words(self) -> str:
        """The test of the nodes and the figures over them."""
        ends = self.interval
        limits = f" (95 % interval {ends.low:.3f} to {ends.high:.3f})" if ends else ""
        test = "one pair on each, so whether they differ in the ratio cannot be tested" if self.p is None else (
            f"the ratio {'differs' if self.differs else 'does not show a difference'} between them (F test of "
            f"{self.noun} x candidate, p = {self.p:.2g}; standard deviation {100 * (self.between or 0.0):.2g} %)")
        return (f"{len(self.nodes)} {self.noun}: {test}; with one mean for each it is {self.ratio:.3f}{limits}, and on "
                f"another {self.noun[:-1]} {self.prediction.low:.3f} to {self.prediction.high:.3f}")


class ByLoad(Frozen):
    """The ratio in blocks that ran with no other lane of their pool busy, and in those of the same seeds in the pool.
    """

    alone: NodeRatio
    pooled: NodeRatio
    ratio: float
    """In the pool over alone: geometric mean over seeds."""
    interval: Bounds | None
    """Student's at 95 %, paired by seed; None, as p: fewer than five seeds ran both ways, or there is no spread."""
    p: float | None
    """Two-sided, that the load changes nothing."""

    @property
    def differs(self) -> bool:
        """The interval excludes 1."""
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high

    @property
    def words(self) -> str:
        """The comparison of the two."""
        ends = self.interval
        test = "too few seeds, or no spread, for an interval" if ends is None else (
            f"95 % interval {ends.low:.3f} to {ends.high:.3f}, p = {self.p:.2g}")
        return (f"{self.alone.pairs} blocks also ran alone: the ratio is {self.alone.ratio:.3f} there and "
                f"{self.pooled.ratio:.3f} in the pool with the same seeds, {self.ratio:.3f} times as large ({test})")


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
    """Pairs; where trials are not paired, the smaller of the two counts."""
    ratio: float | None
    """Geometric mean of candidate / baseline over pairs; below 1: less time, fewer samples, lower throughput or
    quality."""
    interval: Bounds | None
    """At 95 %, not corrected for the family."""
    verdict: Verdict
    because: str
    paired: bool = True
    p: float | None = None
    """Two-sided: exact sign-flip up to 20 pairs, beyond that t; the sign test of who was first where runs missed; of an
    open-ended design the e-process."""
    p_adjusted: float | None = None
    """Holm over the family; None for the primary contrast, which is not corrected."""
    family: int = 1
    """Contrasts that p was corrected for."""
    corrected: Bounds | None = None
    """Interval of the ratio at 1 - 0.05 / family: those of a family contain their ratios all together in 95 %. If the
    evaluation grids differ, of the ratio of crossings; if times were read late, of all times within their bounds."""
    reachable: bool = True
    """False: this many pairs and contrasts cannot be significant, whatever the figures."""
    grid: GridFacts | None = None
    """For a metric known at evaluations only."""
    welch: Estimate | None = None
    """The same ratio with the pairing ignored."""
    split: TimeSplit | None = None
    restricted: Restricted | None = None
    log_rank_p: float | None = None
    probability_less: Estimate | None = None
    """P(a candidate trial's figure < a baseline trial's), ties half."""
    equivalence: MarginTest | None = None
    advice: Advice | None = None
    """Way to settle an open comparison, as far as it can be said without inviting more errors."""
    cautions: tuple[str, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    """The cells of the two that have fewer trainings than trials; also among the cautions."""
    carry_over: CarryOver | None = None
    """What the trial before a trial does to its time; also among the cautions if it is clear. None: no clock is in the
    metric, or the order cannot show it."""
    left_out: tuple[int, ...] = ()
    """Repeats whose two trials did not run in one block, which no figure with a clock counts."""
    adjusted: Adjusted | None = None
    """Adjustment of ratio, interval and p on a machine that drifted; the pairs are as measured."""
    differs: tuple[Difference, ...] = ()
    """Further differences, read back: part of the comparison, next to the factors that were varied."""
    look: LookPlace | None = None
    """Of a sequential design: the look at which it was judged last."""
    unbiased: Estimate | None = None
    """Of a sequential design that ended at a look: the median-unbiased ratio, corrected for the stop."""
    failures: Failures | None = None
    """None: every trial reached its target."""
    failed_starts: Failures | None = None
    """Trials of which a start failed and ran again; also among the cautions. None: none did."""
    levels: Levels | None = None
    by_node: ByNode | None = None
    """None: not in a pool, all pairs on one node, or no clock is in the metric."""
    by_load: ByLoad | None = None
    """None: no block ran alone, or no clock is in the metric. No figure of the verdict counts these trials."""
    one_search: OneSearch | None = None
    """The settings of the two come from one search each; also among the cautions."""
    refused: bool = False
    """There is no result, for the reason in `because`: no condition passes, and no figure is given but the pairs (of
    published results those that docs/published.md names)."""

    @computed_field  # type: ignore[prop-decorator]  # mypy#14461
    @property
    def settles(self) -> str:
        """The advice in words; "" if there is none."""
        return self.advice.words if self.advice else ""

    @property
    def qualifier(self) -> str:
        """The words after the verdict, without which it would say too much; "" if it needs none."""
        if self.verdict not in DECIDED:
            return ""
        settings = " with these settings" if self.one_search else ""
        failed = [text for item in (self.failures, self.failed_starts) if item and (text := item.of(self.verdict))]
        return settings + (self.by_node.scope if self.by_node else "") + "".join(failed[:1])

    @property
    def units(self) -> int:
        """Number of values that its test counts: pairs, or nodes."""
        return len(self.by_node.nodes) if self.by_node and self.by_node.unit == "node" else self.n

    @property
    def spoken(self) -> str:
        """The verdict as it is said: `faster when it succeeds; failures 3 of 20 against 0 of 20`."""
        return self.verdict + self.qualifier

    @property
    def goes_on(self) -> bool:
        """The run has not taken its last look."""
        return self.look is not None and self.look.next_n is not None

    @property
    def coverage(self) -> str:
        """`95 %`; of a sequential design, for all looks, `repeated 95 %` or `anytime 95 %`; "": no interval."""
        if self.interval is None:
            return ""
        if self.look is not None:
            return f"{'anytime' if self.look.anytime else 'repeated'} 95 %"
        return f"{100 * self.interval.level:.3g} %"

    @property
    def also(self) -> str:
        """One line on what else differs; "" if nothing that was read back does."""
        if not self.differs:
            return ""
        return (f"also differs between the two, as read back: {'; '.join(item.words for item in self.differs)}; the "
                "ratio includes its effect")

    @property
    def judged_ratios(self) -> list[float]:
        """The ratios of the pairs that the verdict is on: as measured, or adjusted for the drift of the machine; or of
        the nodes."""
        if self.by_node and self.by_node.unit == "node":
            return [item.ratio for item in self.by_node.nodes]
        shifts = self.adjusted.shifts if self.adjusted else (0.0,) * len(self.pairs)
        return [pair.candidate / pair.baseline * math.exp(-shift)
                for pair, shift in zip(self.pairs, shifts, strict=True)]

    @computed_field  # type: ignore[prop-decorator]  # mypy#14461
    @property
    def speedup(self) -> float | None:
        """The speed of the candidate relative to the baseline; None for quality, which has no speed."""
        return None if self.ratio is None else METRICS[self.metric].speedup(self.ratio)


def bounds(interval: stats.Interval | None) -> Bounds | None:
    """An interval of the statistics as part of a record."""
    return None if interval is None else Bounds(low=interval.low, high=interval.high, level=interval.level)


ClaimVerdict = Literal["supported", "not supported", "cannot be tested"]


class Claim(Frozen):
    """The claim of quality of one cell, with its figures."""

    cell_id: str
    label: str
    metric: str
    direction: Literal["higher", "lower"]
    target: float
    alpha: float
    declared: int
    """Runs that the plan declares."""
    n: int
    """Runs with a finite quality at their end."""
    verdict: ClaimVerdict
    because: str
    mean: float | None = None
    """None, as the figures below: it was not tested, because the figures of a part would be taken for those of all."""
    deviation: float | None = None
    """Standard deviation of a run's quality (n - 1)."""
    interval: Bounds | None = None
    """95 % interval of the mean."""
    p: float | None = None
    """One-sided, of Student's t test."""
    cautions: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        return self.verdict == "supported"

    @property
    def statement(self) -> str:
        """Return the claim: `mean val_loss of at most 3.28 over all runs, p < 0.01`."""
        return claim_text(self.metric, self.direction, self.target, self.alpha)

    @property
    def in_short(self) -> str:
        """`not supported (mean val_loss of at most 3.28 over all runs, p < 0.01; mean 3.2901 ...)`."""
        verdict = "untested" if self.verdict == "cannot be tested" else self.verdict
        return f"{verdict} ({self.statement}; {self.because})"

    @property
    def sentence(self) -> str:
        """`train.py, 2 processes: supported: mean 3.2789 ...`."""
        return f"{self.label}: {self.verdict}: {self.because}"
