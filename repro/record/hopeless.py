"""Abandoning hopeless trials of a tuning: the bar that a trial must meet, from its contender's earlier trials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from repro.record.log.schema import Bar
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.model import Trial
from repro.suite.planning.matrix import tried_cells
from repro.suite.planning.plan import Plan
from repro.suite.tune import Hopeless


@dataclass(frozen=True, slots=True)
class HopelessRule:
    """The rule of one plan."""

    declared: Hopeless
    trials: Mapping[str, int]
    """Trial id -> number of its contender, in the order of the plan."""

    @classmethod
    def of(cls, plan: Plan) -> HopelessRule | None:
        """Return the rule of a plan; None if it abandons no trial."""
        if plan.kind != "tuning" or plan.suite.tune is None or plan.suite.tune.hopeless is None:
            return None
        numbers = {name: number for number, (_, ids) in enumerate(tried_cells(plan.suite, plan.device)) for name in ids}
        return cls(plan.suite.tune.hopeless, {trial.trial_id: numbers[trial.cell_id] for trial in plan.trials()})

    def earlier(self, trial: Trial) -> list[str]:
        """Return the ids of the trials of the same contender that come before a trial, in the order of the plan."""
        before = list(self.trials)[:list(self.trials).index(trial.trial_id)]
        return [name for name in before if self.trials[name] == self.trials[trial.trial_id]]

    def bar(self, trial: Trial, results: Iterable[Result]) -> Bar | None:
        """Return the bar of a trial, from the results of its contender's earlier trials; None if they are too few.

        A trial that diverged had the worst value; one that ended before that point keeps its last value.
        """
        stop = trial.training.stop
        direction = stop.direction or "higher"
        samples = math.ceil(self.declared.at * trial.training.budget_steps * trial.training.batch.global_)
        by_id = {item.trial_id: item for item in results}
        earlier = [item for name in self.earlier(trial) if (item := by_id.get(name)) is not None
                   and meaning(item.status).logged and item.status != "invalid"]
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
