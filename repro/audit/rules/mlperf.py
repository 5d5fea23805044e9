"""MLPerf Training's rules, as far as a record can show that they were kept.

Source: mlcommons/training_policies, training_rules.adoc; seeds: `mlperf_logging.package_checker.seed_checker`.
"""

from __future__ import annotations

from collections import Counter

from repro.audit.rules.facts import CellFacts, Facts
from repro.audit.rules.rule import ALWAYS, Judged, Rule, count, join, lacks, many, untold
from repro.record.result.result_warnings import CONSERVATION_TOLERANCE
from repro.record.result.status import INTERRUPTED, LOST, meaning

SOURCE = "MLPerf Training rules"
LEAST_RUNS = 3
"""The fastest and the slowest are dropped, and one must remain."""
LEAST_REPEATS = 5
"""Fewest runs for vision; a fixed number of them for every benchmark."""


def fixed_target(facts: Facts) -> Judged:
    """MLP1."""
    if not facts.cells:
        return "cannot tell", "there is no cell"
    if unstated := [cell.label for cell in facts.cells if cell.target is None]:
        return lacks(facts, f"no target known for {len(unstated)} of {many(facts.cells, 'cell')}: {join(unstated)}")
    by_model: dict[str, set[str]] = {}
    for cell in facts.cells:
        by_model.setdefault(cell.model or "", set()).add(cell.target or "")
    if several := [sorted(targets) for targets in by_model.values() if len(targets) > 1]:
        return "fail", f"one model, several targets: {join(several[0])}"
    found = sorted({target for targets in by_model.values() for target in targets})
    return "pass", f"one target for each of {many(by_model, 'model')}: {join(found)}"


def fixed_repeats(facts: Facts) -> Judged:
    """MLP2."""
    if not facts.cells:
        return "cannot tell", "there is no cell"
    if any(cell.planned is None for cell in facts.cells):
        return "cannot tell", "the number of planned runs is not known for every cell"
    short = [f"{cell.label} ({len(cell.runs)} of {cell.planned})" for cell in facts.cells
             if len(cell.runs) < (cell.planned or 0)]
    if short:
        return "fail", f"fewer runs than planned in {len(short)} of {many(facts.cells, 'cell')}: " \
                       f"{join(short)}"
    least = min(cell.planned or 0 for cell in facts.cells)
    if facts.whole and least < LEAST_REPEATS:
        return "fail", f"{count(least, 'repeat')} make a smoke test; a result requires at least {LEAST_REPEATS}"
    return "pass", f"all planned runs: {many(facts.runs, 'run')} of {many(facts.cells, 'cell')}, " \
                   f"{least} or more each"


def drop_rule(facts: Facts) -> Judged:
    """MLP3."""
    if not facts.cells:
        return "cannot tell", "there is no cell"
    if faults := [f"{cell.label}: {cell.fault}" for cell in facts.cells if cell.fault]:
        return "fail", f"no valid score for {len(faults)} of {many(facts.cells, 'cell')}: {join(faults)}"
    if facts.origin == "mlperf":
        return "pass", f"fastest and slowest dropped, valid scores for all {many(facts.cells, 'cell')}"
    missed = [f"{cell.label} ({len(cell.runs) - cell.reached} of {len(cell.runs)} missed)" for cell in facts.cells
              if len(cell.runs) - cell.reached > 1]
    if missed:
        return "fail", f"more than one run without a time, so no score: {join(missed)}"
    if few := [cell.label for cell in facts.cells if len(cell.runs) < LEAST_RUNS]:
        return "fail", f"fewer than {LEAST_RUNS} runs, so none remains without the fastest and slowest: {join(few)}"
    return "pass", f"every one of {many(facts.cells, 'cell')} has at most one run without a time, which is " \
                   "dropped as the slowest"


def distinct_seeds(facts: Facts) -> Judged:
    """MLP4."""
    if not facts.runs:
        return lacks(facts, "there is no run")
    if twice := [cell.label for cell in facts.cells if _repeated(cell)]:
        return "fail", f"two runs of one cell share their seed or the numbers drawn from it: {join(twice)}"
    if repeated := [cell.repeated for cell in facts.cells if cell.repeated]:
        return "fail", join(repeated)
    if unstated := sum(run.seed is None for _, run in facts.runs):
        return untold(facts, f"no seed logged in {unstated} of {many(facts.runs, 'run')}")
    drawn = sum(run.drawn is not None for _, run in facts.runs)
    rest = f"; {drawn} with a hash of the weights and the order drawn from them" if drawn else ""
    return "pass", f"{many(facts.runs, 'run')} with seeds that differ inside every cell{rest}"


def _repeated(cell: CellFacts) -> bool:
    seeds = Counter(run.seed for run in cell.runs if run.seed is not None)
    drawn = Counter(run.drawn for run in cell.runs if run.drawn is not None)
    return any(number > 1 for number in (*seeds.values(), *drawn.values()))


def no_pausing(facts: Facts) -> Judged:
    """MLP5."""
    timed = [run for _, run in facts.runs if run.reached]
    if not timed:
        return "not applicable", "no run has a time"
    if back := [run.name for run in timed if run.backwards]:
        return "fail", f"the clock went backwards in {many(back, 'run')}: {join(back)}"
    if any(run.stamped is None for run in timed):
        return "cannot tell", "the start and stop of the clock are not stated"
    if lost := [run for run in timed if (run.unexplained or 0) > CONSERVATION_TOLERANCE]:
        worst = max(run.unexplained or 0 for run in lost)
        return "fail", f"up to {worst:.1%} of the clock is missing from its parts in {many(lost, 'run')} (limit " \
                       f"{CONSERVATION_TOLERANCE:.0%})"
    if loose := [run.name for run in timed if not run.stamped]:
        return lacks(facts, f"no start and stop of the clock in {many(loose, 'run')}: {join(loose)}")
    known = [run.unexplained for run in timed if run.unexplained is not None]
    rest = f"; at most {max(known):.2%} of it not accounted for" if known else ""
    return "pass", f"one clock from start to stop in {many(timed, 'run')}, with nothing subtracted{rest}"


def no_picking(facts: Facts) -> Judged:
    """MLP6."""
    if facts.deleted:
        return "fail", f"{count(facts.deleted, 'run')} of this experiment deleted"
    if facts.attempts is None:
        return "cannot tell", "this source does not show which runs were started"
    shown = {run.name for _, run in facts.runs}
    if unlisted := shown - {item.trial_id for item in facts.attempts}:
        return "fail", f"{many(unlisted, 'result')} without a line in the ledger: {join(sorted(unlisted))}"
    last: dict[str, int] = {}
    for item in facts.attempts:
        last[item.trial_id] = max(last.get(item.trial_id, 0), item.attempt)
    repeated = [item for item in facts.attempts if item.attempt < last[item.trial_id]]
    if again := [item.trial_id for item in repeated if meaning(item.status).counts]:
        return "fail", f"run again although they had a result: {join(dict.fromkeys(again))}"
    if lost := [item.trial_id for item in repeated if item.status == LOST]:
        return "cannot tell", f"run again because their result was damaged or missing: {join(dict.fromkeys(lost))}"
    cut = sum(item.status == INTERRUPTED for item in repeated)
    hidden = sorted(last.keys() - shown)
    by_hand = f", {cut} because it was interrupted" if cut else ""
    rest = f"; no result yet from {join(hidden)}" if hidden else ""
    return "pass", f"{many(facts.attempts, 'start')} listed, {len(repeated) - cut} of them repeated after a crash" \
                   f"{by_hand}, and no result replaced{rest}"


def reference_convergence(facts: Facts) -> Judged:
    """MLP7. The reference of a batch size is the baseline of the record at this size."""
    if facts.agreements is None:
        return "cannot tell", "reference convergence points are not in this source"
    if not facts.agreements:
        return "not applicable", "no two cells share workload, batch and precision"
    early = [f"{item.candidate_label}{f' ({item.ratio:.3f} x the samples)' if item.ratio else ''}"
             for item in facts.agreements if item.verdict == "faster"]
    if early:
        return "fail", f"fewer samples to the target than the reference at the same batch: {join(early)}"
    counts = Counter(item.verdict for item in facts.agreements)
    counts_text = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    if counts["inconclusive"]:
        return "cannot tell", f"samples to the target against the reference at the same batch: {counts_text}"
    return "pass", f"no cell needs fewer samples than the reference at its batch: {counts_text}"


RULES = (
    Rule("MLP1", f"{SOURCE}, Quality measure", "One fixed target", fixed_target, ALWAYS, of_target=True),
    Rule("MLP2", f"{SOURCE}, Benchmark results", "A fixed number of runs", fixed_repeats, ALWAYS),
    Rule("MLP3", f"{SOURCE}, Benchmark results", "Valid under the drop rule", drop_rule, ("mlperf",), of_target=True),
    Rule("MLP4", f"{SOURCE}, Random numbers; seed checker", "Seeds are logged and distinct", distinct_seeds, ALWAYS),
    Rule("MLP5", f"{SOURCE}, Run results", "The clock is never paused", no_pausing, ALWAYS),
    Rule("MLP6", f"{SOURCE}, Benchmark results", "No picking of N out of M runs", no_picking, ALWAYS),
    Rule("MLP7", f"{SOURCE}, Reference convergence points", "Convergence as the reference at that batch size",
         reference_convergence, of_target=True),
)
