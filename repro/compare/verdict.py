"""Evidence -> Comparison: the verdict, corrected for the family it is shown in, and one sentence that says why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from repro import stats
from repro.compare import drift
from repro.compare.evidence import EXACT_PAIRS, Evidence, claimed
from repro.compare.figures import Comparison, Equivalence, Verdict, bounds

ALPHA = 0.05
LEAST = 5
"""Trials of each cell below which nothing is a result (method.md section 3)."""
FORECASTS = 100
"""Contrasts in a family up to which each gets a forecast of what would settle it; it takes longer than the verdict."""
CLOCKED = ("s", "samples/s")
"""Units of figures that a clock is in."""
RESUMED = "went on from a checkpoint"
"""In the caution of a comparison with trials that did."""


@dataclass(frozen=True, slots=True)
class Share:
    """A contrast's place in its family."""

    family: int = 1
    p: float | None = None
    """Adjusted."""
    floor: float = 1.0
    """What p could come to at the best, adjusted: if every contrast of the family were as clear as can be."""
    equivalence_p: float | None = None


def judged(found: Sequence[Evidence]) -> list[Comparison]:
    """Verdicts in the order given: the primary contrast stands alone at 5 %, the others under Holm over all of them.

    A contrast that gives no p counts in the family with p = 1: leaving it out would make the others easier. So does one
    that was refused, whatever its figures would have been.
    """
    found = [_withheld(item) if item.refusal and item.asked.withhold else item for item in found]
    shares = iter(family_shares([item for item in found if not item.asked.primary]))
    return [_judge(item, _alone(item) if item.asked.primary else next(shares)) for item in found]


def _withheld(item: Evidence) -> Evidence:
    """Without any figure that could be taken for a result; the pairs themselves, what was measured, stay."""
    return replace(item, ratio=None, interval=None, p=None, floor=1.0, equivalence=None, less=0, more=0, welch=None,
                   split=None, probability_less=None, missed=None, grid=None, grid_interval=None, grids="", apart=True)


def family_shares(family: Sequence[Evidence]) -> list[Share]:
    """Holm over the family: significance and equivalence each."""
    if not family:
        return []
    adjusted = stats.holm([1.0 if item.p is None else item.p for item in family])
    floors = stats.holm([item.floor for item in family])
    same = stats.holm([item.equivalence.p if item.equivalence else 1.0 for item in family])
    return [
        Share(len(family), None if item.p is None else p, floor, q if item.equivalence else None)
        for item, p, floor, q in zip(family, adjusted, floors, same, strict=True)
    ]


def _alone(item: Evidence) -> Share:
    return Share(1, item.p, item.floor, item.equivalence.p if item.equivalence else None)


def _judge(item: Evidence, share: Share) -> Comparison:
    verdict, because, settles = _verdict(item, share)
    adjusted = not item.asked.primary
    test = item.equivalence
    return Comparison(
        candidate=item.candidate.cell_id, baseline=item.baseline.cell_id, candidate_label=item.candidate.label,
        baseline_label=item.baseline.label, metric=item.asked.metric, primary=item.asked.primary, pairs=item.pairs,
        n=item.n, ratio=item.ratio, interval=bounds(item.interval), verdict=verdict, because=because,
        paired=item.asked.paired, p=item.p, p_adjusted=share.p if adjusted else None, family=share.family,
        welch=item.welch, split=item.split, restricted=item.restricted,
        log_rank_p=item.missed.log_rank_p if item.missed else None, probability_less=item.probability_less,
        equivalence=_equivalence(test, item.asked.margin, share.equivalence_p if adjusted else None), settles=settles,
        cautions=(*item.asked.cautions, *_cautions(item)), refused=bool(item.refusal),
    )


def _equivalence(test: stats.Equivalence | None, margin: float, adjusted: float | None) -> Equivalence | None:
    if test is None:
        return None
    interval = bounds(test.interval)
    assert interval is not None
    return Equivalence(margin=margin, p=test.p, p_adjusted=adjusted, interval=interval, equivalent=test.equivalent)


def _verdict(item: Evidence, share: Share) -> tuple[Verdict, str, str]:
    """(verdict, because, what would settle it)."""
    if item.refusal:
        return "inconclusive", item.refusal, item.settles
    if item.missed is not None:
        return _of_missed(item, share)
    if share.p is None or item.ratio is None:
        return "inconclusive", "there is no figure to judge", ""
    if _significant(item, share):
        return _different(item, share)
    if _same(item, share):
        return "same", _why_same(item, share), ""
    if share.floor > ALPHA:
        return _out_of_reach(item, share)
    return "inconclusive", _why_open(item, share), _what_settles(item, share) if share.family <= FORECASTS else ""


def _significant(item: Evidence, share: Share) -> bool:
    """The interval and the test must agree. The t interval leans on normal logs, the exact test on nothing."""
    if share.p is None or share.p > ALPHA or (not item.asked.paired and _smallest(item) < LEAST):
        return False
    if not item.apart:
        return False
    return item.interval is None or not item.interval.low <= 1 <= item.interval.high


def _smallest(item: Evidence) -> int:
    return min(item.ours.n, item.theirs.n)


def _different(item: Evidence, share: Share) -> tuple[Verdict, str, str]:
    assert item.ratio is not None
    scale = item.asked.scale
    word = scale.below if item.ratio < 1 else scale.above
    if not item.asked.paired:
        why = f"the 95 % interval of the unpaired ratio leaves 1 out, {_p_words(item, share)}; {item.ours.n} trials " \
              f"against {item.theirs.n}"
        return word, why + _small(item), ""
    agree = item.less if item.ratio < 1 else item.more
    start = "every pair has the same ratio, so there is no spread to make an interval of" if item.interval is None \
        else "the 95 % interval leaves 1 out"
    return word, f"{start}, {_p_words(item, share)}; {agree} of {item.n} pairs were {word}{_small(item)}", ""


def _small(item: Evidence) -> str:
    if item.equivalence is None or not item.equivalence.equivalent:
        return ""
    return f"; the difference is real but smaller than the margin of {item.asked.margin:.2g}"


def _p_words(item: Evidence, share: Share) -> str:
    """`exact sign-flip p = 0.0312, 0.0312 after Holm over 3 contrasts`."""
    name = "Welch" if not item.asked.paired else "exact sign-flip" if item.n <= EXACT_PAIRS else "paired t"
    holm = f", {share.p:.3g} after Holm over {share.family} contrasts" if share.family > 1 else ""
    return f"{name} p = {item.p:.3g}{holm}"


def _same(item: Evidence, share: Share) -> bool:
    """Two one-sided t tests inside the margin, at an n where a test without assumptions could say so too."""
    if item.equivalence is None or share.equivalence_p is None or _smallest(item) < LEAST:
        return False
    reachable = 0.5 ** min(item.n, 1000) * share.family <= ALPHA
    return share.equivalence_p <= ALPHA and item.equivalence.equivalent and reachable and _fine(item)


def _fine(item: Evidence) -> bool:
    """Whether the evaluation grid is fine enough: samples count as the same only where their crossings do."""
    if item.asked.metric != "samples" or item.grid is None:
        return True
    edge, found = 1 + item.asked.margin, item.grid_interval
    return found is not None and 1 / edge <= found.low and found.high <= edge


def _why_same(item: Evidence, share: Share) -> str:
    assert item.equivalence is not None
    holm = f" after Holm over {share.family} contrasts" if share.family > 1 else ""
    inside = item.equivalence.interval
    return (f"the {inside.level:.0%} interval {inside.low:.3f} to {inside.high:.3f} lies inside the margin of "
            f"{item.asked.margin:.2g} declared beforehand (two one-sided tests, p = {share.equivalence_p:.3g}{holm})"
            ).replace("% interval", " % interval")


def _out_of_reach(item: Evidence, share: Share) -> tuple[Verdict, str, str]:
    """This n cannot be significant, whatever the figures are."""
    if not item.asked.paired:
        return "inconclusive", f"{item.ours.n} trials against {item.theirs.n} cannot be significant at 5 %", ""
    alone = item.floor > ALPHA
    needed = 6 if alone and share.family == 1 else stats.pairs_to_survive(share.family, ALPHA)
    settles = _reach(item, share, needed)
    if alone and item.asked.primary:
        text = f"{item.n} pairs cannot be significant at 5 % (exact floor p = {item.floor:.3g}); 6 can"
        return "inconclusive", text, settles
    if alone:
        text = f"{item.n} pairs cannot be significant at 5 % (exact floor p = {item.floor:.3g})"
        return "exploratory", f"{text}; {share.family} contrasts together need {needed}", settles
    text = f"{item.n} pairs cannot be significant after Holm over the {share.family} contrasts shown; {needed} can"
    return "exploratory", text, settles


def _why_open(item: Evidence, share: Share) -> str:
    assert item.ratio is not None
    scale = item.asked.scale
    if not item.apart and share.p is not None and share.p <= ALPHA:
        return f"{item.grids}; that alone can make this ratio, wherever between two evaluations the crossings lie"
    if item.interval is None:
        if item.less == item.more == 0:
            grid = "" if item.grid is None else f"; evaluations lie {_per_cent(item.grid)} apart there, and a finer " \
                                                "evaluate_every could tell more"
            return f"both have exactly the same figure in all {item.n} pairs: no spread to judge by{grid}"
        return f"every pair has the same ratio and {_p_words(item, share)}"
    holds = item.interval.low <= 1 <= item.interval.high
    word = scale.below if item.ratio < 1 else scale.above
    agree = item.less if item.ratio < 1 else item.more
    counted = f"{agree} of {item.n} pairs were {word}" if item.asked.paired else \
        f"{item.ours.n} trials against {item.theirs.n}"
    if holds and item.equivalence is not None and item.equivalence.equivalent and item.grid is not None \
            and not _fine(item):
        return (f"evaluations lie {_per_cent(item.grid)} apart at the target, too far to tell a margin of "
                f"{item.asked.margin:.2g}: what lies between them is not seen")
    if holds:
        return f"the 95 % interval holds 1; {counted}"
    if share.family > 1 and item.p is not None and item.p <= ALPHA:
        return f"the 95 % interval leaves 1 out but not after correction ({_p_words(item, share)}); {counted}"
    if not item.asked.paired:
        return f"{item.ours.n} trials against {item.theirs.n}; {LEAST} of each are the least for a result"
    test = "exact sign-flip test" if item.n <= EXACT_PAIRS else "test"
    return f"the t interval leaves 1 out but the {test} does not agree (p = {item.p:.3g}); {counted}"


def _per_cent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if math.isfinite(share) else "up to the first of them"


def _what_settles(item: Evidence, share: Share) -> str:
    """At the level of the first of Holm's steps, as `repro plan --pilot` reckons."""
    if not item.apart:
        return "one evaluate_every for both would"
    if not item.asked.paired:
        return "pairs of one seed, run interleaved, would say more than unpaired trials"
    if item.interval is None:
        return ""
    forecast = _forecast(item, share)
    if forecast is None or forecast <= item.n:
        return ""
    return f"about {_more_pairs(item.n, forecast)} would, run afresh with --seeds {forecast}"


def _forecast(item: Evidence, share: Share) -> int | None:
    """Pairs in all that would find a difference or none, were the pairs so far typical; None: nothing to tell it by."""
    level = ALPHA / share.family
    return claimed(lambda: stats.pairs_to_settle(item.logs, item.asked.margin, level))


def _reach(item: Evidence, share: Share, least: int) -> str:
    """So many pairs make a verdict possible; they bring one only where the figures so far say so too."""
    if item.interval is None or item.missed is not None or share.family > FORECASTS:
        return f"it takes at least {_more_pairs(item.n, least)}, run afresh with --seeds {least}"
    forecast = _forecast(item, share)
    if forecast is None:
        return f"it takes at least {_more_pairs(item.n, least)}, and by the figures so far more than 10,000 in all"
    needed = max(least, forecast)
    return f"about {_more_pairs(item.n, needed)} would, run afresh with --seeds {needed}"


def _more_pairs(n: int, needed: int) -> str:
    more = needed - n
    return f"{more} more pair{'s' if more != 1 else ''}"


def _of_missed(item: Evidence, share: Share) -> tuple[Verdict, str, str]:
    """Who was first, by the exact sign test, and the restricted mean time; both must agree."""
    missed, scale = item.missed, item.asked.scale
    assert missed is not None
    if not item.asked.paired:
        both = " and ".join(side.told() for side in (item.ours, item.theirs) if side.without)
        return "inconclusive", f"{both}; without pairs of one seed that gets no verdict", ""
    told = "; ".join(side.told() for side in (item.ours, item.theirs) if side.without)
    counted = f"the candidate was first in {missed.first} of {missed.n} pairs, the baseline in {missed.second}"
    p = f"sign test p = {item.p:.3g}" + (
        f", {share.p:.3g} after Holm over {share.family} contrasts" if share.family > 1 else "")
    if share.floor > ALPHA:
        verdict, text, settles = _out_of_reach(item, share)
        return verdict, f"{told}, so there is no ratio of times; {text}", settles
    clear = share.p is not None and share.p <= ALPHA
    word: Verdict = scale.below if missed.first > missed.second else scale.above
    if missed.all_of:
        none = f"{told}: not one reached the target, so how many times {word} cannot be said; {counted} ({p})"
        return (word if clear else "inconclusive"), none, ""
    if missed.restricted is None:
        return "inconclusive", f"{told}, so there is no ratio of times, and no mean time either: {missed.no_mean}; " \
                               f"{counted}", ""
    mean = missed.restricted
    limits = f" ({mean.interval.low:.3f} to {mean.interval.high:.3f})" if mean.interval else ""
    text = (f"{told}, so there is no ratio of times; the mean up to {_amount(mean.horizon)} {scale.unit} is "
            f"{mean.ratio:.3f} x the baseline's{limits}, and {counted} ({p})")
    agrees = mean.interval is not None and (
        mean.interval.high < 1 if missed.first > missed.second else mean.interval.low > 1)
    if clear and not agrees:
        text += "; the two do not agree, so neither is believed alone"
    return (word if clear and agrees else "inconclusive"), text, ""


def _amount(value: float) -> str:
    """Four digits, and never an exponent for what is large: 13,440 samples."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _resumed(item: Evidence) -> list[str]:
    """Trials of either side that went on from a checkpoint: what was lost in between is in their times."""
    found = []
    for cell, side in ((item.candidate, item.ours), (item.baseline, item.theirs)):
        lost = [sum(part.lost_seconds for part in each.resumed) for each in side.results.values() if each.resumed]
        if lost and item.asked.scale.unit in CLOCKED:
            found.append(f"{cell.label}: {len(lost)} of {side.n} trials {RESUMED}; what was lost in between, "
                         f"up to {max(lost):.1f} s, is on their clocks")
    return found


def _cautions(item: Evidence) -> list[str]:
    """What a reader must know that no interval shows."""
    found = _resumed(item)
    if item.asked.scale.to_target:
        grids = drift.grid_caution(list(item.ours.results.values()), list(item.theirs.results.values()))
        found += [grids] if grids else []
    if item.missed is not None and item.missed.restricted is not None and not item.missed.restricted.declared:
        found.append("the suite names no horizon: it was taken from the runs, as far as all were watched")
    if item.ours.n and item.theirs.n and not item.refusal and _smallest(item) < LEAST:
        found.append(f"{_smallest(item)} trials make a smoke test, not a result; {LEAST} are the least")
    if item.interval is not None and item.interval.high > 4 * item.interval.low:
        found.append("the interval spans more than a factor of 4: hardly anything is known of the size")
    if item.grid is not None and item.interval is None and item.ratio not in (None, 1.0):
        found.append(f"all trials hit the same evaluation: the counts are known to {_per_cent(item.grid)} only")
    return found
