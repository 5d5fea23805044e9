"""Tunings, planned and done, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repro.cli.workflows.progress import duration
from repro.record.tuning import RULE, TunedContender, Tuning, TuningCost
from repro.suite.contenders import contender_label
from repro.suite.field_problem import as_text
from repro.suite.metrics import METRICS
from repro.suite.model import Suite
from repro.suite.planning.plan import estimate
from repro.suite.tune import Space, Tune

if TYPE_CHECKING:
    from repro.cli.workflows.tuning import Phases


def suite_lines(suite: Suite) -> list[str]:
    """Return what a suite declares about its tuning, or where its settings come from, for `repro show`."""
    tune = suite.tune or (suite.tuned.tune if suite.tuned else None)
    lines = [f"{'setting:':<13}{contender_label(item.where, item.values)}: "
             f"{settings_text(item.set_) if item.set_ is not None else 'none, not scored'}" for item in suite.settings]
    if tune is None:
        return lines
    name = "tuning:" if suite.tune else "tuned by:"
    who = "every cell" if tune.contenders is None else f"the levels of {', '.join(tune.contenders)}"
    lines.append(f"{name:<13}{who}, each with {tune.trials} settings by search {tune.search}, "
                 f"{tune.seeds} seed{'s' if tune.seeds > 1 else ''}, ranked by {METRICS[tune.metric].noun}")
    for space in tune.spaces:
        axes = "; ".join(f"{key}: {axis.text()}" for key, axis in sorted(space.space.items()))
        own = f", {space.trials} settings: {space.unequal}" if space.trials is not None else ""
        lines.append(f"{'space:':<13}{axes} (origin: {' '.join(space.origin.split())}{own})")
    return lines


def phases_text(phases: Phases) -> str:
    """Return the tuning of a suite before it runs: trials, contenders with their spaces, the rule, the cost."""
    plan, tune = phases.tuning, phases.declared.suite.tune
    assert tune is not None
    settings = [len(item.settings) for item in phases.contenders]
    budget = f"{settings[0]} settings" if len(set(settings)) == 1 else f"{min(settings)} to {max(settings)} settings"
    many = "s" if len(settings) > 1 else ""
    lines = [f"phase 1, tuning: {len(plan.order)} trials = {len(settings)} contender{many} x {budget} x {tune.seeds} "
             f"seed{'s' if tune.seeds > 1 else ''}, search {tune.search}, by {METRICS[tune.metric].noun}",
             f"rule: {RULE}", *hopeless_lines(tune)]
    for item in phases.contenders:
        lines += ["", f"  {item.label}: {len(item.settings)} settings", *_space_lines(item.space)]
    if plan.skipped:
        lines += ["", "skipped:", *(f"  {item.label}: {item.reason}" for item in plan.skipped)]
    cost = estimate(plan)
    both = cost.full_budget_seconds + estimate(phases.draft).full_budget_seconds
    lines += ["", f"about {duration(cost.full_budget_seconds)} for the tuning and {duration(both)} for both phases if "
              f"every trial uses its whole budget ({cost.label})", "", "phase 2, scored:"]
    return "\n".join(lines)


def hopeless_lines(tune: Tune) -> list[str]:
    """Return the rule by which trials are abandoned, if there is one."""
    if tune.hopeless is None:
        return []
    return [f"hopeless: a trial is abandoned if after {tune.hopeless.at:.0%} of its budget its quality is worse than "
            f"the median of its contender's earlier trials at that point, once {tune.hopeless.after} have ended"]


def _space_lines(space: Space) -> list[str]:
    lines = [f"    {key}: {axis.text()}  ({axis.width})" for key, axis in sorted(space.space.items())]
    lines.append(f"    origin: {' '.join(space.origin.split())}")
    return [*lines, *([f"    another budget: {' '.join(space.unequal.split())}"] if space.unequal else [])]


def tuning_lines(tuning: Tuning) -> list[str]:
    """Return the chosen setting of every contender, and what the choice took."""
    lines = [f"tuned:  {item.label}: {_choice(tuning, item)} ({_cost(item.cost)})" for item in tuning.contenders]
    return [*lines, f"tuning: {_cost(tuning.cost)}, in a separate record: {tuning.record.folder.root}"]


def settings_text(values: Mapping[str, Any]) -> str:
    """Return a setting as people read it: `optimizer.lr 0.1, batch.global 64`."""
    return ", ".join(f"{key} {as_text(value)}" for key, value in sorted(values.items()))


def _choice(tuning: Tuning, item: TunedContender) -> str:
    best, spec = item.chosen, METRICS[tuning.tune.metric]
    if best is None:
        return f"not scored: none of its {item.budget} settings could be judged ({item.ends})"
    chosen = f"{settings_text(best.values)}, the best of {item.budget} settings"
    if best.figure is not None:
        return f"{chosen}, {spec.noun} {best.figure:,.6g}"
    return f"{chosen}; no setting reached the target with every seed; best quality {best.quality:.4g}"


def _cost(cost: TuningCost) -> str:
    given_up = f", {cost.abandoned} abandoned" if cost.abandoned else ""
    return (f"{cost.trials} trials{given_up}, {duration(cost.wall_seconds)}, {cost.processor_seconds:,.0f} processor "
            "seconds held")
