"""The rule by which hopeless trials of a tuning are abandoned: the bar that a trial is given before it starts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from repro.core.frozen import Frozen
from repro.record.results import Result
from repro.record.status import meaning
from repro.suite.matrix import tried_cells
from repro.suite.model import Trial
from repro.suite.plan import Plan
from repro.suite.tune import Hopeless

EVENT = "x_hopeless"
"""The log of a trial that has a bar states it."""


class Bar(Frozen):
    """What a trial must reach to go on: judged once, at the first evaluation from `samples` on."""

    samples: int
    value: float
    """A trial whose metric is worse there is abandoned; an equal one goes on."""
    direction: str
    """higher or lower: which values of the metric are better."""
    of: tuple[str, ...]
    """The trials whose median the value is."""

    def hopeless(self, value: float) -> bool:
        """Return whether a trial with this value is abandoned."""
        return value < self.value if self.direction == "higher" else value > self.value


@dataclass(frozen=True, slots=True)
class HopelessRule:
    """The rule of one plan."""

    declared: Hopeless
    contender_of: Mapping[str, int]
    """Cell id -> number of its contender."""
    places: Mapping[str, int]
    """Trial id -> place in the order of the plan."""

    @classmethod
    def of(cls, plan: Plan) -> HopelessRule | None:
        """Return the rule of a plan; None if it abandons no trial."""
        if plan.kind != "tuning" or plan.suite.tune is None or plan.suite.tune.hopeless is None:
            return None
        found = tried_cells(plan.suite, plan.device)
        numbers = {name: number for number, (_, ids) in enumerate(found) for name in ids}
        return cls(plan.suite.tune.hopeless, numbers, {
            trial.trial_id: place for place, trial in enumerate(plan.trials())})

    def bar(self, trial: Trial, results: Iterable[Result]) -> Bar | None:
        """Return the bar of a trial, from the results of its contender's earlier trials; None if they are too few.

        A trial that diverged had the worst value; one that ended before that point keeps its last value.
        """
        stop = trial.training.stop
        direction = stop.direction or "higher"
        samples = math.ceil(self.declared.at * trial.training.budget_steps * trial.training.batch.global_)
        mine, here = self.contender_of.get(trial.cell_id), self.places[trial.trial_id]
        earlier = sorted((item for item in results if self.contender_of.get(item.cell_id) == mine
                          and self.places[item.trial_id] < here and meaning(item.status).logged
                          and item.status != "invalid"), key=lambda item: self.places[item.trial_id])
        if len(earlier) < self.declared.after:
            return None
        value = statistics.median(_value_at(item, samples, direction) for item in earlier)
        if not math.isfinite(value):
            return None  # nothing is worse
        return Bar(samples=samples, value=value, direction=direction, of=tuple(item.trial_id for item in earlier))


def _value_at(result: Result, samples: int, direction: str) -> float:
    """Return the metric at the first evaluation from `samples` on, else at the last one; the worst if it diverged."""
    worst = -math.inf if direction == "higher" else math.inf
    points: Sequence[float | None] = [point.value for point in result.curve if point.samples >= samples] or [
        point.value for point in result.curve[-1:]]
    return worst if not points or points[0] is None else points[0]
