"""Rules of AlgoPerf (Dahl et al. 2023, arXiv:2306.07179) on tuning: equal budgets, seeds apart, spaces stated."""

from __future__ import annotations

from repro.audit.rules.facts import Facts, TuningFacts
from repro.audit.rules.rule import Judged, Rule, count, join, many
from repro.compare.ranking.tuning_check import Budget, width

SOURCE = "AlgoPerf (arXiv:2306.07179), section 4"


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
            f"{count(one.seeds, 'seed')} by search {found.search}")
    if not found.here:
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
    if not found.here:
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
    parts = [f"{item.label}: {', '.join(f'{name} {width(axis)}' for name, axis in sorted(item.space.space.items()))} "
             f"({' '.join(item.space.origin.split())})" for item in _different(found)]
    return "pass", f"every space with its origin and width; {join(parts)}"


def _different(found: TuningFacts) -> list[Budget]:
    """Return one contender of every space."""
    return list({item.space.model_dump_json(): item for item in reversed(found.budgets)}.values())[::-1]


RULES = (
    Rule("AP1", SOURCE, "Contenders were tuned with the same budget", budgets, ("record",)),
    Rule("AP2", SOURCE, "Tuning trials have seeds of their own", seeds, ("record",)),
    Rule("AP3", SOURCE, "Every search space with its origin and width", spaces),
)
