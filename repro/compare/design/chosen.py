"""Which contrasts are between settings that a tuning chose, one search for each contender."""

from __future__ import annotations

from collections.abc import Mapping

from repro.compare.cells import tuned_levels
from repro.compare.figures import Comparison
from repro.compare.qualifiers import OneSearch
from repro.suite.planning.plan import Plan
from repro.suite.tune import Setting


class Chosen:
    """The tuned settings of the cells of a plan."""

    def __init__(self, plan: Plan) -> None:
        levels = tuned_levels(plan)
        self._settings: Mapping[str, Setting] = {
            cell_id: item for cell_id, given in levels.items() for item in plan.suite.settings
            if all(given.get(key) == level for key, level in item.where.items())}

    def qualified(self, found: Comparison, pairs: tuple[tuple[str, str], ...] = ()) -> Comparison:
        """Return a comparison with the statement that its settings come from one search each, if they do.

        Two cells of one contender have one setting from one search, which cannot decide between them.

        Args:
            pairs: cells that a main effect is over; () for those of the comparison.
        """
        for one, other in pairs or ((found.candidate, found.baseline),):
            ours, theirs = self._settings.get(one), self._settings.get(other)
            if ours is not None and theirs is not None and ours.where != theirs.where:
                search = OneSearch(candidate=ours.values, baseline=theirs.values)
                return found.model_copy(update={"one_search": search, "cautions": (*found.cautions, search.words)})
        return found


def one_of_searches(plan: Plan) -> tuple[str, ...]:
    """Return why a run has no verdict of its own: it is one of several searches that its suite declares."""
    if plan.searches == 1:
        return ()
    return (f"this run is one of {plan.searches} independent searches and gives one figure; compare all of them "
            "together: repro compare RUN RUN ...",)
