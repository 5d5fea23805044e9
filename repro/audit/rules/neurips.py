"""The NeurIPS paper checklist's questions about experiments: claims, setting, error bars, compute."""

from __future__ import annotations

from repro.audit.rules.facts import Facts
from repro.audit.rules.firecaffe import hyperparameters
from repro.audit.rules.rule import ALWAYS, Judged, Rule, join, lacks, many, untold
from repro.record.result.status import meaning

SOURCE = "NeurIPS paper checklist"


def claims(facts: Facts) -> Judged:
    """NEU1."""
    if facts.contrasts is None or len(facts.cells) < 2:
        return "not applicable", "no claim compares two cells"
    if facts.declared is None:
        return "cannot tell", "the claims made beforehand are not stated"
    if not facts.declared:
        return "fail", f"{many(facts.contrasts, 'contrast')} and none declared beforehand: exploratory"
    if facts.comparisons is None:
        return "cannot tell", "stated as declared beforehand; its outcome is not in this source"
    found = [item for item in facts.comparisons if item.primary]
    if not found and facts.declared_effects:
        return "pass", f"declared beforehand, tested together (Holm): main effects of {join(facts.declared_effects)}"
    if not found:
        return "fail", "the declared contrast is not among those shown"
    return "pass", f"declared beforehand: {found[0].candidate_label} against {found[0].baseline_label}, by " \
                   f"{found[0].metric}; answered: {found[0].verdict}"


def setting(facts: Facts) -> Judged:
    """NEU2."""
    if not facts.data:
        return untold(facts, "no data set is named")
    unsplit = [item.name for item in facts.data if item.train_samples is None or item.eval_samples is None]
    if unsplit:
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
    single = [cell.label for cell in ran if len(cell.runs) < 2]
    if single:
        return "fail", f"a single run gives no error bar: {join(single)}"
    if any(run.seed is None for cell in ran for run in cell.runs):
        return lacks(facts, "what varies between the runs of a cell (their seed?) is not stated")
    same = [cell.label for cell in ran if len({run.seed for run in cell.runs}) < 2]
    if same:
        return "fail", f"all runs have one seed, so nothing varies that an error bar could show: {join(same)}"
    least = min(len(cell.runs) for cell in ran)
    if any(cell.interval is None for cell in ran):
        return "cannot tell", f"{least} runs or more of different seeds in each of {many(ran, 'cell')}; whether an " \
                              "error bar is given is not in this source"
    compared = {name for item in facts.comparisons or () if item.interval is not None
                for name in (item.candidate, item.baseline)}
    if bare := [cell.label for cell in ran if not cell.interval and cell.cell_id not in compared]:
        return "fail", f"no interval of the cell and none of a ratio for {len(bare)} of {many(ran, 'cell')}: " \
                       f"{join(bare)}"
    return "pass", f"{least} runs or more in each of {many(ran, 'cell')}; what varies is the seed: initial weights, " \
                   "order, augmentation"


def compute(facts: Facts) -> Judged:
    """NEU4."""
    if facts.hardware is None:
        return lacks(facts, facts.no_hardware)
    if facts.attempts is None:
        return "cannot tell", f"{facts.hardware}; the time of failed and preliminary runs is not in this source"
    listed = {item.run for item in facts.attempts}
    if unlisted := [run.name for _, run in facts.runs if run.name not in listed]:
        return lacks(facts, f"no time in the ledger for {len(unlisted)} of {many(facts.runs, 'run')}")
    if any(item.seconds is None for item in facts.attempts):
        return lacks(facts, "the duration of some attempts is not stated")
    total = sum(item.seconds or 0 for item in facts.attempts)
    failed = [item for item in facts.attempts if not meaning(item.status).completed]
    lost = sum(item.seconds or 0 for item in failed)
    return "pass", f"{facts.hardware}: {many(facts.attempts, 'attempt')}, {total:.4g} s in all, of which " \
                   f"{len(failed)} failed ({lost:.4g} s)"


RULES = (
    Rule("NEU1", f"{SOURCE}, Claims", "What is claimed was declared and is answered", claims),
    Rule("NEU2", f"{SOURCE}, Experimental setting", "Splits and hyper-parameters are given", setting, ALWAYS,
         of_training=True),
    Rule("NEU3", f"{SOURCE}, Statistical significance", "Error bars, and what varies", error_bars, ALWAYS),
    Rule("NEU4", f"{SOURCE}, Compute resources", "Compute, failed runs included", compute, ("record",)),
)
