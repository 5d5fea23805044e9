"""The sentences of a verdict: its reason, and the cautions for its reader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from repro import stats
from repro.compare.evidence.evidence import Evidence
from repro.compare.evidence.late import Late
from repro.compare.evidence.missed import Missed, sign_test
from repro.compare.evidence.pairing import on_other_samples
from repro.compare.verdict.family import ALPHA, FamilyShare
from repro.core.numbers import plain_sum
from repro.suite.design import LEAST_REPEATS
from repro.suite.kinds.program import SAME_PROGRAM

VISIBLE = 0.005
"""Relative distance between evaluations below which it is not worth a word."""
STARTUP_SHARE = 0.1
"""Share of a time up to which start-up is not worth a word."""
OWN_CLOCK_SHARE, OWN_CLOCK_SLACK = 0.1, 0.05
"""Share and seconds of a run up to which what one program's clock leaves out beyond the other is not worth a word."""
SEES_ONE_IN_TEN = 29
"""Fewest trials that hold, in 95 of 100 runs, one of a kind that is one in ten."""
UNSEEDED = "its command takes no {seed}, so it is unknown whether its trials have different seeds"


def why_different(item: Evidence, share: FamilyShare, word: str) -> str:
    """Return why the candidate is `word`, of figures that show a difference."""
    assert item.ratio is not None
    if not item.asked.paired:
        why = f"the 95 % interval of the unpaired ratio excludes 1, {p_words(item, share)}; {item.ours.n} trials " \
              f"against {item.theirs.n}"
        return why + _small(item) + _slow_unseen(item)
    start = "every pair has the same ratio, so there is no spread and no interval" if item.interval is None \
        else f"{_interval_name(item)} excludes 1"
    return f"{start}, {p_words(item, share)}; {item.agreeing} of {item.counted} were {word}{_small(item)}" \
           f"{_slow_unseen(item)}"


def _small(item: Evidence) -> str:
    if item.equivalence is None or not item.equivalence.equivalent:
        return ""
    return (f"; the {100 * item.equivalence.interval.level:.3g} % interval is inside the margin of {_margin(item)}, "
            f"which the {'suite' if item.asked.margin_declared else 'question'} calls too small to matter")


def _margin(item: Evidence) -> str:
    return f"{100 * item.asked.margin:.3g} %"


def _interval_name(item: Evidence) -> str:
    """`the 95 % interval`; at a look of a sequential design the repeated one, which all looks together keep."""
    stage, found = item.asked.stage, item.interval
    if stage is None or found is None:
        return "the 95 % interval"
    return f"the {100 * found.level:.3g} % confidence sequence" if stage.anytime else \
        f"the repeated interval ({100 * found.level:.4g} % alone, 95 % over all looks)"


def p_words(item: Evidence, share: FamilyShare) -> str:
    """`exact sign-flip p = 0.0312, 0.0312 after Holm over 3 contrasts`."""
    count = len(item.units) if item.asked.counts_nodes else item.n
    name = "Welch" if not item.asked.paired else "exact sign-flip" if count <= stats.EXACT_PAIRS else "paired t"
    name = "e-process" if item.asked.stage is not None and item.asked.stage.anytime else name
    at_least = item.p is not None and math.isclose(item.p, 2 / 2**count, rel_tol=1e-9)
    least = f" (the least of {item.counted})" if name == "exact sign-flip" and at_least else ""
    holm = f", {share.p:.3g} after Holm over {share.family} contrasts" if share.family > 1 else ""
    return f"{name} p = {item.p:.3g}{least}{holm}"


def why_same(item: Evidence, share: FamilyShare) -> str:
    """Return why the two cells are equivalent."""
    assert item.equivalence is not None
    holm = f" after Holm over {share.family} contrasts" if share.family > 1 else ""
    inside = item.equivalence.interval
    p = share.equivalence_p if item.asked.stage is None else item.equivalence.p
    what = "" if not item.asked.paired else " of the geometric mean of the ratios of pairs"
    return (f"the {100 * inside.level:.3g} % interval {inside.low:.3f} to {inside.high:.3f}{what}, that of two "
            f"one-sided tests, is inside the margin of {_margin(item)} "
            f"{'declared beforehand' if item.asked.margin_declared else 'of the question'} (p = {p:.3g}{holm})"
            f"{_unseen(item)}")


def _slow_unseen(item: Evidence) -> str:
    """Return the same of a speed, which a few slow trials can turn round."""
    return _unseen(item) if item.asked.scale.speed else ""


def _unseen(item: Evidence) -> str:
    """Return which slow trials could be missing from so few; "" if even rare ones would probably have been seen."""
    if item.n >= SEES_ONE_IN_TEN:
        return ""
    kind = "slower than" if "slower" in (item.asked.scale.above, item.asked.scale.below) else "far from"
    return f"; trials {kind} the rest could go unseen if rarer than {100 * (1 - ALPHA ** (1 / item.n)):.0f} %"


def why_open(item: Evidence, share: FamilyShare) -> str:
    """Return why the figures show neither a difference nor equivalence."""
    assert item.ratio is not None
    if not item.is_apart(1 - share.level) and share.p is not None and share.p <= ALPHA:
        if not item.is_timely(1 - share.level):
            return f"{_late_words(item.late)}; what this leaves open could produce this ratio alone"
        assert item.grid is not None
        return (f"{item.grid.unlike}; the grids alone could produce this ratio, because a crossing can be anywhere "
                "between two evaluations")
    if item.interval is None:
        if item.less or item.more:
            return f"every pair has the same ratio and {p_words(item, share)}"
        grid = "" if item.grid is None or item.grid.share is None or item.grid.share < VISIBLE else (
            f"; evaluations are {per_cent(item.grid.share)} apart there; to show more, evaluate more often")
        return f"both have exactly the same figure in all {item.n} pairs: there is no spread to judge by{grid}"
    word = item.asked.scale.below if item.ratio < 1 else item.asked.scale.above
    counted = f"{item.agreeing} of {item.counted} were {word}" if item.asked.paired else \
        f"{item.ours.n} trials against {item.theirs.n}"
    contains = item.interval.low <= 1 <= item.interval.high
    if contains and item.equivalence is not None and item.equivalence.equivalent and item.grid is not None \
            and not item.is_fine(1 - 2 * share.same_level):
        return too_coarse(item)
    if contains:
        return f"{_interval_name(item)} contains 1, {p_words(item, share)}; {counted}"
    if item.is_torn:
        return (f"{_interval_name(item)} is {'below' if item.interval.high < 1 else 'above'} 1, but the geometric mean "
                f"of the ratios is {item.ratio:.3f}: a few pairs are far from the rest; {counted}")
    if share.family > 1 and item.p is not None and item.p <= ALPHA:
        return f"the 95 % interval excludes 1, but not after correction ({p_words(item, share)}); {counted}"
    if not item.asked.paired:
        return f"{item.ours.n} trials against {item.theirs.n}; a result needs at least {LEAST_REPEATS} of each"
    test = "exact sign-flip test" if len(item.units) <= stats.EXACT_PAIRS else "test"
    return f"the t interval excludes 1, but the {test} does not agree (p = {item.p:.3g}); {counted}"


def too_coarse(item: Evidence) -> str:
    """Return why crossings cannot be shown to be the same on this evaluation grid."""
    assert item.grid is not None
    share = item.grid.share
    if share is not None and share < item.asked.margin / 2:
        return (f"{_apart_words(share)}, and {item.n} pairs are too few to show the crossings within the margin of "
                f"{_margin(item)} in addition")
    return f"{_apart_words(share)}, too far to resolve a margin of {_margin(item)}"


def _late_words(late: Late | None) -> str:
    assert late is not None
    return (f"{late.trials} {'time is' if late.trials == 1 else 'times are'} known to bounds only, at most "
            f"{per_cent(late.share)} apart: an evaluation was read together with later output, or in a file that is "
            "looked at every 0.25 s")


def _apart_words(share: float | None) -> str:
    if share is None:
        return "the record does not say between which evaluations the target was crossed"
    if math.isinf(share):
        return "the target was crossed before the first evaluation, at an unknown time"
    return f"evaluations are {per_cent(share)} apart at the target"


def missed_figures(item: Evidence, missed: Missed, share: FamilyShare, word: str) -> str:
    """Return the order of the pairs and the mean time, which follow how the trials ended."""
    counted = f"the candidate was first in {missed.first} of {missed.n} pairs and the baseline in {missed.second}"
    if unknown := missed.n - missed.first - missed.second:
        both = "neither trial reached the target, or " if item.ours.without and item.theirs.without else ""
        counted += (f"; the order of {unknown} is unknown, because {both}one trial ended without the target before the "
                    "other reached it")
    holm = f", {share.p:.3g} after Holm over {share.family} contrasts" if share.family > 1 else ""
    name = "e-process" if item.asked.stage is not None and item.asked.stage.anytime else "exact sign test"
    test = f"({name} p = {item.p:.3g}{holm})"
    ours, theirs = missed.alone
    if ours + theirs:
        test += (f"; the candidate alone reached the target in {ours} of {missed.n} pairs and the baseline alone in "
                 f"{theirs} (exploratory: exact sign test p = {sign_test(ours, theirs):.3g})")
    if missed.all_of:
        return (f": no trial of {missed.all_of} reached the target, so it is unknown how many times {word} the "
                f"candidate is; {counted} {test}")
    mean = missed.restricted
    if mean is None:
        return f", so there is no ratio of times, and no mean time either: {missed.no_mean}; {counted} {test}"
    limits = f" ({mean.interval.low:.3f} to {mean.interval.high:.3f})" if mean.interval else ""
    return (f", so there is no ratio of times; {counted} {test}; the mean up to {amount(mean.horizon)} "
            f"{item.asked.scale.unit} is {mean.ratio:.3f} x the baseline's{limits}")


def per_cent(share: float) -> str:
    """Return a relative distance between evaluations in words."""
    if not math.isfinite(share):
        return "up to the first of them"
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2g} %"


def amount(value: float) -> str:
    """Return four digits, without an exponent for large values: 13,440 samples."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def cautions(item: Evidence) -> list[str]:
    """Return the cautions that no interval shows."""
    # Fewer trainings than trials need no caution if they are why there is no verdict.
    found = [*(each.words for each in item.repeated if each.short not in item.refusal), *dict.fromkeys(_ungated(item)),
             *_unseeded(item), *_same_program(item), *describe_resumed_trials(item), *_missed_cautions(item),
             *_order_cautions(item), *_grid_cautions(item), *_late_cautions(item), *_startup_cautions(item),
             *_before_start_cautions(item), *_own_clock_cautions(item), *_drift_cautions(item)]
    if (nodes := item.by_node) is not None and nodes.unit == "block" and nodes.differs:
        found.append(f"{nodes.words}; the verdict is on these {nodes.noun} and no others")
    if (load := item.by_load) is not None and load.differs:
        found.append(f"{load.words}; the verdict is on ratios under the load of all lanes")
    if item.missed is not None and item.missed.restricted is not None and not item.missed.restricted.declared:
        found.append("the suite declares no horizon for this metric: the limit up to which all trials were observed "
                     "is used")
    if item.ours.n and item.theirs.n and not item.refusal and item.smallest < LEAST_REPEATS:
        found.append(f"{item.smallest} trials are a smoke test, not a result; a result needs at least {LEAST_REPEATS}")
    if item.interval is not None and item.interval.high > 4 * item.interval.low:
        found.append("the interval spans more than a factor of 4: the size of the difference is poorly known")
    return found


def _missed_cautions(item: Evidence) -> list[str]:
    """Return a caution for each side whose trials missed their target, if the figure is a speed that does not ask."""
    scale = item.asked.scale
    if item.ratio is None or not scale.speed or scale.to_target or scale.at_end:
        return []
    missed = [(cell, sum(each.bracket is None for each in side.results.values()), side.n)
              for cell, side in item.sides
              if (stop := getattr(cell.choices, "stop", None)) and stop.judges == "trial"]
    return [f"{cell.label}: {count} of {n} trials missed the target; {scale.noun} says nothing about the time to it"
            for cell, count, n in missed if count]


def _ungated(item: Evidence) -> Iterator[str]:
    """Yield what the parity gate did not check of a cell, or the stated reason why it left it out; published cells have
    no gate."""
    sides = (*item.ours.results.values(), *item.theirs.results.values())
    # A trial that crashed has read nothing back.
    effective = [each for result in sides if (each := getattr(result, "effective", {}))]
    together = bool(effective) and all(each.get("gated") for each in effective) and len(
        {each.get("gated_against") for each in effective}) == 1
    limits = dict.fromkeys(each["gated_limits"] for each in effective if "gated_limits" in each)
    for cell in (item.candidate, item.baseline):
        if unverified := getattr(cell.choices, "unverified", ""):
            yield "; ".join((cell.choices.gated, *limits)) if together else unverified
        if reason := getattr(getattr(cell.choices, "gate", None), "skip", None):
            yield f"not gated: {reason} (that {cell.label} trains like the reference was not checked)"


def _unseeded(item: Evidence) -> list[str]:
    """Return a caution for each program that is not given a seed, if the figure depends on its training."""
    if not (item.asked.scale.to_target or item.asked.scale.by_training):
        return []
    repeated = {each.cell_id for each in item.repeated}
    return [f"{cell.label}: {UNSEEDED}" for cell in (item.candidate, item.baseline)
            if not getattr(cell.choices, "takes_seed", True) and cell.cell_id not in repeated]


def _same_program(item: Evidence) -> list[str]:
    """Return a caution for two cells of one program that differ only in numbers that it does not get."""
    ours, theirs = item.candidate.choices, item.baseline.choices
    if ours == theirs or getattr(ours, "given", None) is None or ours.given != getattr(theirs, "given", None):
        return []
    return [SAME_PROGRAM]


def _order_cautions(item: Evidence) -> list[str]:
    streamed = [side.name for side in (item.ours, item.theirs) if side.streamed]
    if not streamed:
        return ["unpaired by order: the two train on different samples of the data (dedup); a seed gives both the same "
                "initial weights only"] if on_other_samples(item.ours, item.theirs) else []
    verb = "read" if len(streamed) > 1 else "reads"
    return [f"unpaired by order: {' and '.join(streamed)} {verb} the data in their own order (input.order stream), "
            "which no seed varies, so the result is that of this order"]


def _grid_cautions(item: Evidence) -> list[str]:
    if item.grid is None:
        return []
    found = [item.grid.unlike] if item.grid.unlike else []
    for (cell, side), first in zip(item.sides, item.grid.first, strict=True):
        if first and first == side.n:
            found.append(f"{cell.label}: all {first} trials reached the target at their first evaluation, so its "
                         f"{item.asked.scale.noun} is one distance between evaluations, however early the target was "
                         "crossed; to show it, evaluate more often")
    if item.interval is None and item.ratio not in (None, 1.0) and item.asked.scale.watched == "samples" \
            and item.grid.share is not None:
        found.append("all trials reached the target at the same evaluation: counts are known to "
                     f"{per_cent(item.grid.share)} only")
    return found


def _late_cautions(item: Evidence) -> list[str]:
    if item.late is None or item.ratio is None or item.late.share < VISIBLE:
        return []
    found = item.late.interval(0.95)
    ratio = f"; within them the interval is {found.low:.3f} to {found.high:.3f}" if found is not None else ""
    return [f"{_late_words(item.late)}{ratio}"]


def _startup_cautions(item: Evidence) -> list[str]:
    """Return how much of each side's time a program had not begun to train, if that is much and on the clock."""
    if item.asked.scale.path != "tta_wall":
        return []
    found: dict[str, tuple[float, float]] = {}
    for cell, side in item.sides:
        known = [(seconds, value) for repeat, value in side.values.items()
                 if value > 0 and (seconds := side.results[repeat].startup_seconds) is not None]
        if known:
            found[cell.label] = median(seconds for seconds, _ in known), median(one / all_ for one, all_ in known)
    if max((share for _, share in found.values()), default=0.0) <= STARTUP_SHARE:
        return []
    each = "; ".join(f"{label} {seconds:.3g} s, {share:.0%} of it".replace("%", " %")
                     for label, (seconds, share) in found.items())
    own = all(side.results[repeat].at("tta_train") for side in (item.ours, item.theirs) for repeat in side.values)
    return [f"start-up is on the clock before the first output or step ({each}): imports and data, which hide a "
            "difference in training; let evaluation.start name the line with which training begins"
            + (f", or compare by {item.asked.metric.replace('wall', 'train')}" if own else "")]


def _before_start_cautions(item: Evidence) -> list[str]:
    """Return how long each program ran before it said that its training begins, if the quicker one ran longer: what it
    does there is off the clock."""
    if item.asked.scale.path not in ("tta_wall", "tta_train"):
        return []
    found = []
    for cell, side in item.sides:
        known = [(value, seconds) for repeat, value in side.values.items()
                 if (seconds := side.results[repeat].init_seconds) is not None]
        if not known or not getattr(cell.choices, "unverified", ""):
            return []
        found.append((median(value for value, _ in known), median(seconds for _, seconds in known), cell.label))
    (time, quick, _), (_, slow, _) = sorted(found)
    if quick - slow <= STARTUP_SHARE * time + OWN_CLOCK_SLACK:
        return []
    each = "; ".join(f"{label} {seconds:.3g} s" for _, seconds, label in found)
    return [f"the quicker program runs longer before it says that its training begins ({each}), which its time leaves "
            f"out; compare by {item.asked.metric.partition('_')[0]}_cold, too"]


def _own_clock_cautions(item: Evidence) -> list[str]:
    """Return the share of our clock that the programs' own clocks count, if one leaves out more between evaluations."""
    if item.asked.scale.path != "tta_train":
        return []
    shares, left_out, tolerated = [], [], []
    for cell, side in item.sides:
        curves = [side.results[repeat].curve for repeat in side.values]
        known = [(last.train_seconds - first.train_seconds, last.wall_seconds - first.wall_seconds, len(between) + 1)
                 for first, *between, last in (curve for curve in curves if len(curve) > 1)
                 if last.wall_seconds > first.wall_seconds]
        if not known or not getattr(cell.choices, "unverified", ""):  # ours is checked
            return []
        shares.append(f"{cell.label} {median(own / wall for own, wall, _ in known):.0%}".replace("%", " %"))
        left_out.append(median((wall - own) / count for own, wall, count in known))
        tolerated.append(median((OWN_CLOCK_SHARE * own + OWN_CLOCK_SLACK) / count for own, _, count in known))
    if abs(left_out[0] - left_out[1]) <= min(tolerated):
        return []
    return ["the programs' own clocks count unequal shares of the time between their evaluations by the clock of repro "
            f"({'; '.join(shares)}): one leaves out more, or runs slow; compare by "
            f"{item.asked.metric.replace('train', 'wall')}, too"]


def _drift_cautions(item: Evidence) -> list[str]:
    found = item.adjusted
    if found is None or item.ratio is None:
        return []
    when = "later" if found.places > 0 else "earlier"
    return [f"adjusted for drift: the candidate ran {abs(found.places):.2f} places {when} on average, and times "
            f"changed by {100 * found.per_place:.2f} % a place; without the adjustment the ratio is "
            f"{found.unadjusted:.3f}"]


def describe_resumed_trials(item: Evidence) -> list[str]:
    """Return a caution for each side with resumed trials: their clocks include the time lost."""
    found = []
    for cell, side in item.sides:
        lost = [plain_sum(part.lost_seconds for part in each.resumed) for each in side.results.values() if each.resumed]
        if lost and item.asked.scale.has_lost_time:
            found.append(f"{cell.label}: {len(lost)} of {side.n} trials were resumed from a checkpoint; their clocks "
                         f"include the time lost, up to {max(lost):.1f} s")
    return found
