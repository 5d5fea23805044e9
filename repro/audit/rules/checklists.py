"""The NeurIPS paper checklist on experiments, ACM's artifact badges 1.1 as far as a record can show them (people award
badges), and the rules of AlgoPerf (Dahl et al. 2023) on tuning: equal budgets, seeds apart, spaces stated."""

from __future__ import annotations

from repro.audit.rules.facts import Facts
from repro.audit.rules.firecaffe import hyperparameters
from repro.audit.rules.rule import ALWAYS, Judged, Rule, count, join, lacks, many, untold
from repro.record.result.status import meaning

NEURIPS = "NeurIPS paper checklist"
ACM = "ACM Artifact Review and Badging 1.1"
ALGOPERF = "AlgoPerf (arXiv:2306.07179), section 4"


def claims(facts: Facts) -> Judged:
    """NEU1."""
    if facts.contrasts is None or len(facts.cells) < 2:
        return "not applicable", "no claim compares two cells"
    if facts.declared is None:
        return "cannot tell", "the claims made beforehand are not stated"
    if not facts.declared:
        return "fail", f"{many(facts.contrasts, 'contrast')} and none declared: exploratory"
    if facts.comparisons is None:
        return "cannot tell", "stated as declared; its outcome is not in this source"
    found = [item for item in facts.comparisons if item.primary]
    if not found and facts.declared_effects:
        return "pass", f"declared in the suite, tested together (Holm): main effects of {join(facts.declared_effects)}"
    if not found:
        return "fail", "the declared contrast is not among those shown"
    return "pass", f"declared in the suite: {found[0].candidate_label} against {found[0].baseline_label}, by " \
                   f"{found[0].metric}; answered: {found[0].spoken}"


def setting(facts: Facts) -> Judged:
    """NEU2."""
    if not facts.data:
        return untold(facts, "no data set is named")
    if unsplit := [item.name for item in facts.data if item.train_samples is None or item.eval_samples is None]:
        return lacks(facts, f"sizes of the split unknown: {join(unsplit)}")
    verdict, evidence = hyperparameters(facts)
    splits = join(f"{item.name}: {item.train_samples} to train, {item.eval_samples} to evaluate"
                   for item in facts.data)
    return verdict, f"{splits}; hyper-parameters: {evidence}"


def error_bars(facts: Facts) -> Judged:
    """NEU3."""
    ran = [cell for cell in facts.cells if cell.runs]
    if not ran:
        return lacks(facts, "there is no run")
    if single := [cell.label for cell in ran if len(cell.runs) < 2]:
        return "fail", f"a single run gives no error bar: {join(single)}"
    if any(run.seed is None for cell in ran for run in cell.runs):
        return untold(facts, "what varies between the runs of a cell (their seed?) is not stated")
    if same := [cell.label for cell in ran if len({run.seed for run in cell.runs}) < 2]:
        return "fail", f"all runs have one seed, so nothing varies that an error bar could show: {join(same)}"
    if repeated := [cell.repeated for cell in ran if cell.repeated]:
        return "fail", f"an error bar would be that of repeated trainings: {join(repeated)}"
    least = min(len(cell.runs) for cell in ran)
    if any(cell.interval is None for cell in ran):
        return "cannot tell", f"{least} runs or more of different seeds in each of {many(ran, 'cell')}; whether an " \
                              "error bar is given is not in this source"
    compared = {name for item in facts.comparisons or () if item.interval is not None
                for name in (item.candidate, item.baseline)}
    if bare := [cell.label for cell in ran if not cell.interval and cell.cell_id not in compared]:
        return "fail", f"no interval of the cell and none of a ratio for {len(bare)} of {many(ran, 'cell')}: " \
                       f"{join(bare)}"
    drawn = ": initial weights, order, augmentation" if all(run.drawn for cell in ran for run in cell.runs) else ""
    return "pass", f"{least} runs or more in each of {many(ran, 'cell')}; what varies is the seed{drawn}"


def compute(facts: Facts) -> Judged:
    """NEU4."""
    if facts.hardware is None:
        return lacks(facts, facts.no_hardware)
    if facts.attempts is None:
        return "cannot tell", f"{facts.hardware}; the time of failed and preliminary runs is not in this source"
    listed = {item.trial_id for item in facts.attempts}
    if unlisted := [run.name for _, run in facts.runs if run.name not in listed]:
        return lacks(facts, f"no time in the ledger for {len(unlisted)} of {many(facts.runs, 'run')}")
    total = sum(item.seconds for item in facts.attempts)
    failed = [item for item in facts.attempts if not meaning(item.status).completed]
    lost = sum(item.seconds for item in failed)
    return "pass", f"{facts.hardware}: {many(facts.attempts, 'attempt')}, {total:.4g} s in all, of which " \
                   f"{len(failed)} failed ({lost:.4g} s)"


def available(facts: Facts) -> Judged:
    """ACM1. The archive itself, a DOI, is outside every record."""
    if facts.dirty:
        return "fail", f"the code had uncommitted changes to {str(facts.commit)[:12]}, so no archive can hold them"
    if facts.data is not None and (loose := [item.name for item in facts.data if item.source is None]):
        return lacks(facts, f"data without a source: {join(loose)}")
    without_data = not facts.data and not facts.measurements
    if facts.commit is None or without_data:
        lacking = ["the commit"] * (facts.commit is None) + ["the data"] * without_data
        judge = untold if lacking == ["the data"] else lacks
        return judge(facts, f"not identified: {' and '.join(lacking)}")
    return "pass", f"identified: commit {facts.commit[:12]}, {many(facts.data or (), 'data set')}, " \
                   f"{many(facts.software, 'library', 'libraries')}; whether an archive holds them is not in a " \
                   "record"


def functional(facts: Facts) -> Judged:
    """ACM2."""
    if facts.missing is None:
        return "cannot tell", "the source does not state the planned runs"
    if facts.missing:
        return "fail", f"not complete: {count(facts.missing, 'planned run')} without a result"
    if facts.parity == "failed":
        return "fail", "not consistent: the parity gate found engines that train differently"
    if broken := [run.name for _, run in facts.runs if run.reached is None]:
        return "fail", f"not exercisable: {many(broken, 'run')} crashed or was invalid: " \
                       f"{join(broken)}"
    if facts.ungated:
        left_out = join(f"{label}: {reason}" for label, reason in facts.ungated.items())
        return lacks(facts, f"{many(facts.runs, 'run')} complete, but the parity gate left out "
                            f"{count(len(facts.ungated), 'cell')}: {left_out}")
    if facts.parity is None:
        return lacks(facts, f"{many(facts.runs, 'run')} complete, but no verification: there was no parity gate")
    if facts.programs and facts.parity != "passed":
        return untold(facts, f"{many(facts.runs, 'run')} complete, but not known to be consistent: not gated")
    gate = "passed" if facts.parity == "passed" else "not needed"
    return "pass", f"complete and exercised: {many(facts.runs, 'run')}; parity gate {gate}"


def reproduced(facts: Facts) -> Judged:
    """ACM3."""
    if facts.reproduced is None:
        return "cannot tell", "one record is one study; this badge requires one by another team"
    if facts.reproduced:
        return "pass", "stated: another party obtained the results with these artifacts"
    return "fail", "stated: another party did not obtain the results"


def _without(facts: Facts) -> Judged:
    """Judge an experiment that states no tuning."""
    if not facts.whole:
        return "cannot tell", "whether and how contenders were tuned is not in this source"
    if facts.untuned_optimizers:
        return "cannot tell", ("optimizers are compared with settings of unknown origin: another search could rank "
                               "them differently; tune them in the suite, with equal budgets (tune:)")
    return "not applicable", "no optimizers are compared and nothing was tuned"


def budgets(facts: Facts) -> Judged:
    """AP1."""
    found = facts.tuning
    if found is None:
        return _without(facts)
    if found.budget_problems:
        return "fail", join(found.budget_problems)
    one = found.budgets[0]
    said = (f"{many(found.budgets, 'contender')}, each {count(one.settings, 'setting')} x "
            f"{count(one.seeds, 'seed')} by search {found.tune.search}")
    if found.tuning is None:
        return "cannot tell", f"declared: {said}, and the scored settings are among those drawn; the trials of the " \
                              "tuning are not in this record"
    return "pass", f"{said}; {count(sum(item.trials or 0 for item in found.budgets), 'trial')} in a separate record"


def seeds(facts: Facts) -> Judged:
    """AP2."""
    found = facts.tuning
    if found is None:
        return _without(facts)
    if found.seed_problems:
        return "fail", join(found.seed_problems)
    if found.scored_seed is None:
        return "not applicable", "the record is a tuning; nothing is scored in it"
    apart = f"tuned with master seed {found.tuning_seed}, scored with {found.scored_seed}"
    if found.tuning is None:
        return "cannot tell", f"stated: {apart}; the trials of the tuning are not in this record"
    return "pass", f"{apart}; no scored trial has the initial weights and data order of a tuning trial"


def spaces(facts: Facts) -> Judged:
    """AP3. That an origin is stated can be checked; whether it is a good reason, a reader must judge."""
    found = facts.tuning
    if found is None:
        return _without(facts)
    fixed = [item.label for item in found.budgets if all(
        axis.choices is not None and len(axis.choices) == 1 for axis in item.space.space.values())]
    if fixed:
        return "fail", f"no search: the space has one setting for {join(fixed)}"
    different = list({item.space.model_dump_json(): item for item in reversed(found.budgets)}.values())[::-1]
    parts = [f"{item.label}: {', '.join(f'{name} {axis.width}' for name, axis in sorted(item.space.space.items()))} "
             f"({' '.join(item.space.origin.split())})" for item in different]
    return "pass", f"every space with its origin and width; {join(parts)}"


RULES = (
    Rule("NEU1", f"{NEURIPS}, Claims", "What is claimed was declared and is answered", claims),
    Rule("NEU2", f"{NEURIPS}, Experimental setting", "Splits and hyper-parameters are given", setting, ALWAYS,
         of_training=True),
    Rule("NEU3", f"{NEURIPS}, Statistical significance", "Error bars, and what varies", error_bars, ALWAYS),
    Rule("NEU4", f"{NEURIPS}, Compute resources", "Compute, failed runs included", compute, ("record",)),
    Rule("ACM1", f"{ACM}, Artifacts Available", "What would be archived is identified", available),
    Rule("ACM2", f"{ACM}, Functional", "Complete, consistent, exercised", functional),
    Rule("ACM3", f"{ACM}, Results Reproduced", "Obtained again by another team", reproduced),
    Rule("AP1", ALGOPERF, "Contenders were tuned with the same budget", budgets, ("record",)),
    Rule("AP2", ALGOPERF, "Tuning trials have seeds of their own", seeds, ("record",)),
    Rule("AP3", ALGOPERF, "Every search space with its origin and width", spaces),
)
