"""The twelve rules of Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems (SC 2015)."""

from __future__ import annotations

import math

from repro import stats
from repro.audit.rules.facts import Facts
from repro.audit.rules.rule import ALWAYS, Judged, Rule, count, join, lacks, many, untold
from repro.compare import DECIDED, Comparison
from repro.stats.interval import shapiro_p

SOURCE = "Hoefler & Belli, SC 2015, Rule"
ALPHA = 0.05
COSTS, RATES = ("arithmetic mean", "median"), ("harmonic mean", "median")


def base_case(facts: Facts) -> Judged:
    """HB1."""
    if facts.contrasts is None or len(facts.cells) < 2:
        return "not applicable", "no speed-up is stated"
    if not facts.contrasts:
        return lacks(facts, f"{many(facts.cells, 'cell')} and no named base case")
    bases = [facts.cell(name) for name in dict.fromkeys(baseline for _, baseline in facts.contrasts)]
    if never := [cell.label for cell in bases if cell.median is None]:
        return lacks(facts, f"no absolute time of the base case (its median is not reached): {join(never)}")
    if any(cell.workers is None for cell in bases):
        return "cannot tell", "the number of processes of the base case is not stated"
    return "pass", join(f"{cell.label}: {cell.median:.4g} {cell.unit} on "
                        f"{count(cell.workers or 0, 'process', 'processes')}" for cell in bases)


def subsets(facts: Facts) -> Judged:
    """HB2."""
    if facts.skipped is None or facts.missing is None or facts.excluded is None:
        return "cannot tell", "exclusions are not in this source"
    if facts.missing:
        return "fail", f"{count(facts.missing, 'planned run')} without a result, and no reason"
    if unexplained := [label for label, reason in facts.skipped if not reason]:
        return "fail", f"excluded without a reason: {join(unexplained)}"
    if facts.excluded:
        return "cannot tell", f"{count(facts.excluded, 'exclusion')} in the suite; a reader must check whether its " \
                              "description gives the reason"
    reasons = f", each with its reason: {join(dict.fromkeys(reason for _, reason in facts.skipped))}" \
        if facts.skipped else ""
    return "pass", f"all planned runs have a result; {many(facts.skipped, 'combination')} skipped{reasons}"


def means(facts: Facts) -> Judged:
    """HB3."""
    if facts.means is None or not {"costs", "rates"} & facts.means.keys():
        return "cannot tell", "the summary of runs is not stated"
    costs, rates = facts.means.get("costs"), facts.means.get("rates")
    summaries = ", ".join(f"{what} by the {how}" for what, how in facts.means.items())
    if (costs is not None and costs not in COSTS) or (rates is not None and rates not in RATES):
        return "fail", f"{summaries}; times require the arithmetic mean or the median, rates the harmonic mean or " \
                       "the median"
    return "pass", summaries


def ratios(facts: Facts) -> Judged:
    """HB4."""
    shown = [item for item in facts.comparisons or () if item.ratio is not None]
    how = (facts.means or {}).get("ratios")
    if not shown and how is None:
        return "not applicable", "no ratios are summarised"
    if how is None:
        return "cannot tell", "the summary of ratios is not stated"
    if how != "geometric mean":
        return "fail", f"ratios are summarised by the {how}; only the geometric mean is valid"
    bare = [item.candidate_label for item in shown if not item.pairs
            and None in (facts.cell(item.candidate).median, facts.cell(item.baseline).median)]
    if bare:
        return lacks(facts, f"ratios without their times: {join(bare)}")
    return "pass", f"{many(shown, 'ratio')}, each the geometric mean, with the figures of both sides"


def determinism(facts: Facts) -> Judged:
    """HB5."""
    ran = [cell for cell in facts.cells if cell.runs]
    if not ran:
        return lacks(facts, "there is no run")
    if without := [f"{cell.label} ({many(cell.runs, 'run')})" for cell in ran if cell.interval is False]:
        return "fail", f"no 95 % interval for {len(without)} of {many(ran, 'cell')} (the median needs 6 runs): " \
                       f"{join(without)}"
    if unstated := [cell.label for cell in ran if cell.determinism is None and facts.whole]:
        return untold(facts, f"the level of determinism is not stated: {join(unstated)}")
    if any(cell.interval is None for cell in ran):
        return "cannot tell", "whether intervals are given is not stated"
    levels = {cell.determinism or "not stated" for cell in ran}
    return "pass", f"determinism {join(sorted(levels))}; an interval for all {many(ran, 'cell')}"


def normality(facts: Facts) -> Judged:
    """HB6. The Shapiro-Wilk test of the values that each t interval assumes normal, with Holm's correction."""
    if not facts.comparisons:
        return "not applicable", "nothing is compared"
    relying = [item for item in facts.comparisons if item.interval is not None]
    if not relying:
        return "pass", f"0 of {many(facts.comparisons, 'comparison')} with a t interval"
    if unpaired := [item.candidate_label for item in relying if not item.paired]:
        return "cannot tell", f"Welch's interval without a diagnostic: {join(unpaired)}"
    found = [(item, p) for item in relying if (p := _normal_p(item)) is not None]
    if len(found) < len(relying):
        bare = {id(item) for item, _ in found}
        few = [item.candidate_label for item in relying if id(item) not in bare]
        return "cannot tell", f"too few pairs to check log ratios for normality (at least 3 are required): {join(few)}"
    adjusted = stats.holm([p for _, p in found])
    rejected = [item.candidate_label for (item, _), p in zip(found, adjusted, strict=True) if p <= ALPHA]
    test = f"Shapiro-Wilk over the log ratios of {many(found, 'comparison')}, smallest p {min(adjusted):.3g} (Holm)"
    if rejected:
        return "fail", f"{test}: not normal in {join(rejected)}, where the interval relies on it"
    return "pass", f"{test}; verdicts require an exact test as well"


def _normal_p(item: Comparison) -> float | None:
    try:
        return shapiro_p([math.log(ratio) for ratio in item.judged_ratios])
    except ValueError:
        return None


def sound_test(facts: Facts) -> Judged:
    """HB7."""
    if facts.contrasts is None or len(facts.cells) < 2:
        return "not applicable", "nothing is compared"
    if facts.comparisons is None:
        return "cannot tell", "tests of differences are not in this source"
    if not facts.comparisons:
        return lacks(facts, f"{many(facts.cells, 'cell')} side by side and no test between any two")
    bare = [item.candidate_label for item in facts.comparisons
            if item.verdict in DECIDED and item.interval is None and item.p is None]
    if bare:
        return "fail", f"a verdict without an interval or a test: {join(bare)}"
    if untested := [item for item in facts.comparisons if item.interval is None and item.p is None]:
        return "fail", f"{len(untested)} of {many(facts.comparisons, 'comparison')} with neither interval nor " \
                       f"test: {untested[0].candidate_label}: {untested[0].because}"
    family = max(item.family for item in facts.comparisons)
    return "pass", f"{many(facts.comparisons, 'comparison')} with interval or exact test, Holm over up to {family}"


def percentiles(facts: Facts) -> Judged:
    """HB8."""
    runs = facts.ended
    if not runs:
        return lacks(facts, "there is no run")
    if any(run.steps is None for run in runs):
        return "cannot tell", "step times are not stated"
    if bare := sum(not run.steps for run in runs):
        return untold(facts, f"no percentiles of step times in {bare} of {many(runs, 'run')}")
    return "pass", f"median and 95th percentile of {facts.timed} times in all {many(runs, 'run')}"


def documented(facts: Facts) -> Judged:
    """HB9."""
    some = f" (for {len(facts.without_hardware)} of {many(facts.cells, 'cell')})" if facts.without_hardware else ""
    known = {"factors": facts.varied is not None, f"hardware{some}": facts.hardware is not None,
             "operating system": facts.system is not None, "libraries": bool(facts.software)}
    if lacking := [name for name, stated in known.items() if not stated]:
        return untold(facts, f"not stated: {', '.join(lacking)}")
    varied = f"varied: {join(facts.varied)}" if facts.varied else "nothing varies"
    return "pass", f"{varied}; {facts.hardware}; {facts.system}; {many(facts.software, 'library', 'libraries')} " \
                   "with versions"


def synchronisation(facts: Facts) -> Judged:
    """HB10."""
    runs = [run for cell, run in facts.runs if (cell.workers is None or cell.workers > 1) and run.reached is not None]
    if not runs:
        return "not applicable", "no run has several workers"
    if any(run.steps is None for run in runs):
        return "cannot tell", "the summary of times over workers is not stated"
    if bare := sum(not run.steps for run in runs):
        return untold(facts, f"no times over ranks in {bare} of {many(runs, 'run')} of several workers")
    where = "before each operation" if facts.measurements else "at evaluations"
    return "pass", f"{many(runs, 'run')} of several workers: all ranks synchronise {where}, a timed " \
                   f"{facts.timed} takes as long as its slowest rank, the rest is straggler time"


def bounds(facts: Facts) -> Judged:
    """HB11."""
    several = facts.several
    if not several:
        return "not applicable", "no cell has several workers"
    if any(run.expected is None for cell in several for run in cell.runs):
        return "cannot tell", "bounds are not stated"
    bare = [cell.label for cell in several if not any(run.expected for run in cell.runs)]
    if bare and all(cell.loopback for cell in several):
        return "not applicable", "all ranks are on one machine: the backend's collectives use no link that bounds them"
    if bare:
        return untold(facts, f"no bound of communication for {len(bare)} of {many(several, 'cell')} of several "
                             f"workers: {join(bare)}")
    return "pass", f"required and actual traffic are both recorded for all {many(several, 'cell')}"


def plots(facts: Facts) -> Judged:
    """HB12."""
    runs = facts.ended
    if not runs:
        return lacks(facts, "there is no run")
    if any(run.points is None for run in runs):
        return "cannot tell", "plots are not stated"
    if bare := sum(not run.points for run in runs):
        return lacks(facts, f"no curve for {bare} of {many(runs, 'run')}")
    points = sum(run.points or 0 for run in runs)
    return "pass", f"every evaluation is recorded: {points} points of {many(runs, 'run')}"


RULES = (
    Rule("HB1", f"{SOURCE} 1", "The base case of every speed-up and its absolute time", base_case, ALWAYS),
    Rule("HB2", f"{SOURCE} 2", "A reason for any subset", subsets),
    Rule("HB3", f"{SOURCE} 3", "The right mean for costs and rates", means, ALWAYS),
    Rule("HB4", f"{SOURCE} 4", "Ratios only by the geometric mean, with their costs", ratios),
    Rule("HB5", f"{SOURCE} 5", "Determinism is stated, intervals are given", determinism, ("record",)),
    Rule("HB6", f"{SOURCE} 6", "No assumed normality without a check", normality),
    Rule("HB7", f"{SOURCE} 7", "Comparisons by a sound test", sound_test, ALWAYS),
    Rule("HB8", f"{SOURCE} 8", "Percentiles where tails matter", percentiles),
    Rule("HB9", f"{SOURCE} 9", "All factors and the setup are documented", documented, ALWAYS),
    Rule("HB10", f"{SOURCE} 10", "Synchronisation, and how ranks are summarised", synchronisation),
    Rule("HB11", f"{SOURCE} 11", "Upper bounds next to the results", bounds),
    Rule("HB12", f"{SOURCE} 12", "Plots with enough to read them", plots, of_target=True),
)
