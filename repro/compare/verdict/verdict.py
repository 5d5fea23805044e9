"""Evidence -> Comparison: the verdict, corrected for the family it is shown in, and one sentence that says why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from repro import stats
from repro.compare.evidence.evidence import Evidence
from repro.compare.evidence.missed import Missed
from repro.compare.figures import Advice, AdviceKind, Comparison, GridFacts, MarginTest, Verdict, bounds
from repro.compare.verdict import sentences
from repro.compare.verdict.family import ALPHA, FamilyShare, can_be_same, shares_of
from repro.suite.design import JUDGES, LEAST_REPEATS

Decision = tuple[Verdict, str, Advice | None]
"""(verdict, because, what would settle it)."""


def judged(found: Sequence[Evidence]) -> list[Comparison]:
    """Return verdicts in the order given: the primary contrast alone at 5 %, the others under Holm over all of them."""
    # Without a verdict no figure stays that could be taken for a result; the pairs, which were measured, do.
    found = [replace(item, ratio=None, interval=None, p=None, floor=1.0, equivalence=None, less=0, more=0, welch=None,
                     split=None, probability_less=None, missed=None, grid=None, late=None)
             if item.refusal and item.asked.withhold else item for item in found]
    return [_comparison(item, share) for item, share in zip(found, shares_of(found), strict=True)]


def _comparison(item: Evidence, share: FamilyShare) -> Comparison:
    verdict, because, advice = _decide(item, share)
    adjusted = not item.asked.primary
    return Comparison(
        candidate=item.candidate.cell_id, baseline=item.baseline.cell_id, candidate_label=item.candidate.label,
        baseline_label=item.baseline.label, metric=item.asked.metric, primary=item.asked.primary, pairs=item.pairs,
        n=item.n, ratio=item.ratio, interval=bounds(item.interval), verdict=verdict, because=because,
        paired=item.asked.paired, p=item.p, p_adjusted=share.p if adjusted else None, family=share.family,
        welch=item.welch, split=item.split, restricted=item.missed.restricted if item.missed else None,
        log_rank_p=item.missed.log_rank_p if item.missed else None, probability_less=item.probability_less,
        equivalence=_margin_test(item, share.equivalence_p if adjusted else None), advice=advice,
        cautions=(*item.asked.cautions, *sentences.cautions(item)), refused=bool(item.refusal),
        repeated=item.repeated, carry_over=item.carry_over, left_out=item.left_out, failures=item.failures,
        levels=item.levels, by_node=item.by_node, by_load=item.by_load,
        adjusted=item.adjusted, corrected=bounds(item.corrected(1 - share.level)),
        reachable=share.floor <= ALPHA, grid=_grid_facts(item),
    )


def _grid_facts(item: Evidence) -> GridFacts | None:
    grid = item.grid
    if grid is None:
        return None
    share = grid.share if grid.share is not None and math.isfinite(grid.share) else None
    return GridFacts(share=share, unlike=grid.unlike, candidate_first_hits=grid.first[0],
                     baseline_first_hits=grid.first[1], interval=bounds(grid.interval(0.95)))


def _margin_test(item: Evidence, adjusted: float | None) -> MarginTest | None:
    test, interval = item.equivalence, bounds(item.equivalence.interval if item.equivalence else None)
    return None if test is None or interval is None else MarginTest(
        margin=item.asked.margin, p=test.p, p_adjusted=adjusted, interval=interval, equivalent=test.equivalent)


def _decide(item: Evidence, share: FamilyShare) -> Decision:
    if item.refusal:
        return "inconclusive", item.refusal, item.advice
    if item.missed is not None:
        return _of_missed(item, item.missed, share)
    if share.p is None or item.ratio is None:
        return "inconclusive", "there is no figure to judge", None
    if _is_excluded(item, share) and item.is_apart(1 - share.level):
        word = item.asked.scale.below if item.ratio < 1 else item.asked.scale.above
        return word, sentences.why_different(item, share, word), None
    if _is_same(item, share):
        return "same", sentences.why_same(item, share), None
    if item.asked.paired and share.floor > ALPHA:
        return _out_of_reach(item, share)
    return "inconclusive", sentences.why_open(item, share), Advice(kind=_open_kind(item, share))


def _open_kind(item: Evidence, share: FamilyShare) -> AdviceKind:
    """Return what settles a comparison that was tested and is open: another test at most where only unlike grids
    or late reads withheld a difference, which equal cells with fine grids reach as rarely as a verdict.
    """
    if _is_excluded(item, share) and not item.is_apart(1 - share.level):
        return "equal_grids" if item.is_timely(1 - share.level) else "timely"
    return "tested_in_a_contest" if JUDGES.get(item.design) == "mean" else "tested"


def _is_excluded(item: Evidence, share: FamilyShare) -> bool:
    """Return True if the figures, wherever the crossings are between two evaluations, show a difference.

    The interval and the test must agree. The t interval assumes normal logs, the exact test assumes nothing. A
    confidence sequence must leave out 1 on the side of the ratio.
    """
    if share.p is None or share.p > ALPHA or (not item.asked.paired and item.smallest < LEAST_REPEATS):
        return False
    return item.interval is None or not (item.is_torn or item.interval.low <= 1 <= item.interval.high)


def _is_same(item: Evidence, share: FamilyShare) -> bool:
    """Two one-sided t tests and, of pairs, sign-flip tests inside the margin, at an n at which these can show it."""
    if item.equivalence is None or share.equivalence_p is None or item.smallest < LEAST_REPEATS:
        return False
    edge, inside = math.log1p(item.asked.margin), item.equivalence.interval
    # The ratio is in every interval but a confidence sequence.
    known = [math.log(value) for value in (inside.low, inside.high, item.ratio) if value is not None]
    if min(known) < -edge or max(known) > edge:
        return False
    count = len(item.units) if item.asked.paired else item.n
    return share.equivalence_p <= ALPHA and item.equivalence.equivalent and (
        can_be_same(count, share.family) and item.is_fine(1 - 2 * share.same_level))


def _out_of_reach(item: Evidence, share: FamilyShare) -> Decision:
    """Decide where so many pairs cannot be significant, for any figures."""
    alone = item.floor > ALPHA
    needed = stats.pairs_to_survive(share.family, ALPHA)
    # Where the primary contrast of the run was tested, a new run would test it again.
    advice = Advice(kind=_out_of_reach_kind(item, share, needed), n=needed)
    counted = f"{item.counted} (and {len(item.left_out)} left out)" if item.left_out else item.counted
    if not alone:
        text = f"{counted} cannot be significant after Holm over the {share.family} contrasts shown; {needed} can"
        return "exploratory", text, advice
    text = f"{counted} cannot be significant at 5 % (exact floor p = {item.floor:.3g})"
    if item.asked.primary:
        return "inconclusive", f"{text}; 6 can", advice
    together = f"{share.family} contrasts together need {needed}" if share.family > 1 else f"{needed} can"
    return "exploratory", f"{text}; {together}", advice


def _out_of_reach_kind(item: Evidence, share: FamilyShare, needed: int) -> AdviceKind:
    if item.repeated:
        return "own_seeds"
    alone = item.floor > ALPHA
    if alone and item.equivalence is not None and can_be_same(item.n, share.family):
        return _open_kind(item, share)  # five pairs show no difference, but sameness was tested
    if item.is_parted(needed):
        return "parted_pairs"
    return "more_pairs" if alone else "declare_pairs"


def _of_missed(item: Evidence, missed: Missed, share: FamilyShare) -> Decision:
    """Decide by the exact sign test of which trial of each pair was first; the restricted mean stands next to it."""
    ends = [side.without_words() for side in (item.ours, item.theirs) if side.without]
    if not item.asked.paired:
        return "inconclusive", f"{' and '.join(ends)}; without pairs of one seed there is no verdict", None
    start = "; ".join(ends)
    if share.floor > ALPHA:
        verdict, text, advice = _out_of_reach(item, share)
        return verdict, f"{start}, so there is no ratio of times; {text}", advice
    clear = share.p is not None and share.p <= ALPHA
    word: Verdict = item.asked.scale.below if missed.first > missed.second else item.asked.scale.above
    text = f"{start}{sentences.missed_figures(item, missed, share, word)}"
    if clear and (doubt := _missed_doubt(item, missed)):
        text, clear = f"{text}; {doubt}", False
    unlike = item.grid is not None and bool(item.grid.unlike)
    return (word, text, None) if clear else ("inconclusive", text, Advice(kind="equal_grids" if unlike else "tested"))


def _missed_doubt(item: Evidence, missed: Missed) -> str:
    """Return why the order of the pairs is no verdict, however clear it is.

    The cell that is first more often is called quicker although it fails more often only if its mean time, misses
    included, is certainly the smaller one, and no exact test finds that it fails more often.
    """
    unlike = item.grid is not None and bool(item.grid.unlike)
    if unlike and item.asked.stage is not None and item.asked.stage.anytime:
        return "the evaluation grids differ, and this alone can decide which is first"
    if missed.less is not None and (missed.first - missed.second) * (1 if missed.less else -1) <= 0:
        return "the e-process, in which the sizes of ratios count, is on the other side than most pairs"
    mean, failures, ahead = missed.restricted, item.failures, missed.first > missed.second
    ends = mean.interval if mean is not None else None
    # Which of the two restricted means is certainly the smaller one.
    candidate_less, baseline_less = ends is not None and ends.high < 1, ends is not None and ends.low > 1
    if failures is not None and failures.more == ("candidate" if ahead else "baseline"):
        start = f"the {failures.more} is first more often, but fails more often ({failures.words}"
        if failures.p <= ALPHA:
            return f"{start}, exact p = {failures.p:.3g})"
        if unlike or not (candidate_less if ahead else baseline_less):
            return f"{start}), and the mean time, misses included, does not show that it costs less"
    if mean is None or not (candidate_less or baseline_less) or (mean.ratio < 1) == ahead:
        return ""
    return "the mean time, misses included, is clearly on the other side: one is first more often, but misses more"
