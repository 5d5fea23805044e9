"""Comparison of tuned contenders over independent searches: every search is a run of its own and gives one figure.

The trials that score what one search found share its luck. So they say how its settings compare, and nothing about what
another search would find; the search is the unit, as a run is the unit in `two_runs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from repro.compare.cells import CellIndex, contrast_pairs, tuned_levels
from repro.compare.design.standing import Standing, asked_otherwise
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.figures import Comparison
from repro.compare.runs.two_runs import Ran, lacking, run_means, starts_of, with_failed_starts
from repro.compare.verdict.verdict import judged
from repro.core.errors import UsageError
from repro.record.environment.differences import changed_data
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

UNIT = ("each pair is one independent search: the geometric means of the trials that score what it found for either "
        "contender")


def over_searches(runs: Sequence[Ran], metric: Metric | None = None) -> list[Comparison]:
    """Compare tuned contenders over all searches that their suite declares.

    Args:
        runs: one of each search, whose settings and seeds are its own.

    Raises:
        UsageError: they are not all the searches of one declaration, or two share a seed.
    """
    _require_all(runs)
    of_runs = [_cells(run.plan) for run in runs]
    plan = runs[0].plan
    # A contender of which no tuning trial of one search could be judged has no cell in that run.
    known = {levels: cell for cells in reversed(of_runs) for levels, cell in cells.items()}
    chosen = metric or plan.suite.metric
    names = {cell.cell_id: levels for levels, cell in known.items()}
    declared, contrasts = contrast_pairs(CellIndex(tuple(known.values())), plan.suite)
    by_levels = {pair: (names[pair[0]], names[pair[1]]) for pair in contrasts if names.keys() >= set(pair)}
    primary = by_levels.get(declared) if declared else None
    if not by_levels:
        raise UsageError("the runs have no contrast in common")
    found, starts, spec = [], [], METRICS[chosen]
    for pair in by_levels.values():
        scored = [cells.keys() >= set(pair) for cells in of_runs]
        both = [run for run, has in zip(runs, scored, strict=True) if has]
        ours, theirs = ([cells[part] for cells, has in zip(of_runs, scored, strict=True) if has] for part in pair)
        starts.append((starts_of(both, ours, spec), starts_of(both, theirs, spec)))
        found.append(examine(
            known[pair[0]], known[pair[1]], run_means(both, ours, spec), run_means(both, theirs, spec),
            ComparisonRequest(
                metric=chosen, primary=pair == primary and chosen == plan.suite.metric,
                margin=plan.suite.margin, cautions=(UNIT, *asked_otherwise(plan.suite, chosen)),
                refusals=(*(f"one of the two was not scored in {run.name}"
                            for run, has in zip(runs, scored, strict=True) if not has),
                          *lacking(both, ours, spec), *lacking(both, theirs, spec),
                          *(f"{run.name}: {text}" for run, cell in zip(both, ours, strict=True)
                            for text in Standing(run.plan, run.results).unclaimed(cell.cell_id, spec))))))
    return [with_failed_starts(item, *each) for item, each in zip(judged(found), starts, strict=True)]


def _require_all(runs: Sequence[Ran]) -> None:
    first = runs[0].plan.suite
    if other := next((run for run in runs[1:] if _declared(run.plan) != _declared(runs[0].plan)), None):
        raise UsageError(f"{other.name}: is no search of the suite that {runs[0].name} is one of: what they declare "
                         "differs")
    assert first.tuned is not None, "the caller asked"
    wanted = first.tuned.tune.searches
    if len(runs) != wanted:
        raise UsageError(f"the suite declares {wanted} independent searches, and {len(runs)} runs are given; give all "
                         "of them, one run each")
    tuned = [run.plan.suite.tuned for run in runs]
    for what, seeds in (("tuned", [item.master_seed for item in tuned if item is not None]),
                        ("scored", [run.plan.master_seed for run in runs])):
        if twice := next((seed for seed in seeds if seeds.count(seed) > 1), None):
            raise UsageError(f"two of the runs were {what} with the master seed {twice}: they are one search twice; "
                             "leave master_seed out of the suite, and every run draws its own")
    known = [run.environment for run in runs if run.environment is not None]
    if known and (changed := next((text for item in known[1:] for text in changed_data(known[0], item)), "")):
        raise UsageError(f"the searches are not of the same data: {changed}")


def _declared(plan: Plan) -> Mapping[str, Any]:
    apart = {"settings", "tuned", "master_seed", "programs"}
    tuned = plan.suite.tuned
    return plan.suite.model_dump(mode="json", by_alias=True, exclude=apart) | {
        "tune": None if tuned is None else tuned.tune.model_dump(mode="json", by_alias=True), "method": plan.method}


def _cells(plan: Plan) -> dict[str, Cell]:
    """Return the levels of every cell, as text -> the cell."""
    levels = tuned_levels(plan)
    return {json.dumps(levels[cell.cell_id], sort_keys=True): cell for cell in plan.cells if cell.cell_id in levels}
