"""The checkpoints of a run's trials: the one to resume from, the payload for the ranks, the removal of useless ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.core.errors import OutputError
from repro.record.folder.checkpoint import Checkpoints, Resumption
from repro.record.folder.store import Record
from repro.record.result.status import meaning
from repro.runner.context import RunContext
from repro.suite.model import Trial


@dataclass(frozen=True, slots=True)
class TrialCheckpoints:
    """The checkpoints of one trial, as its starts use them."""

    context: RunContext
    trial: Trial

    @property
    def stored(self) -> Checkpoints:
        return Checkpoints(self.context.folder.checkpoints(self.trial.trial_id))

    @property
    def wanted(self) -> bool:
        """True if the suite requires checkpoints and the engine can write them."""
        return self.context.plan.suite.keeps_checkpoints and not self.trial.choices.why_no_checkpoints()

    def newest(self) -> tuple[Resumption | None, tuple[str, ...]]:
        """Find the checkpoint to resume from (None: start from the beginning) and why newer ones were passed over."""
        if not self.wanted:
            return None, ()
        self.stored.tidy()
        point, passed = self.stored.newest(self.trial.trial_id, self.trial.choices.processes)
        for text in passed:
            self.context.warn("checkpoint", text, self.trial.trial_id)
        return point, tuple(passed)

    def payload(self, point: Resumption | None) -> dict[str, Any] | None:
        """Return the checkpoint settings for the ranks; None: they write none."""
        if not self.wanted:
            return None
        return {
            "folder": self.stored.root.name, "every": self.context.plan.suite.checkpoint_every,
            "resume": point.path.name if point else None, "shift_ns": point.shift_ns if point else 0,
            "clock": point.clock if point else "monotonic",
        }


def spent_seconds(trial: Trial, point: Resumption | None) -> float:
    """Return how much of its time limit a trial has used before it is resumed; 0 on a simulated clock."""
    if point is None or trial.choices.origin == "simulated":
        return 0.0
    return max(0.0, point.spent_seconds())


def remove_useless(context: RunContext, record: Record, trials: Sequence[Trial], elsewhere: bool) -> None:
    """Remove the checkpoints that no trial may be resumed from.

    Args:
        trials: the trials to run.
        elsewhere: machine or code differ, or differed at an earlier start, from those the run began with. No trial is
            measured half there and half here, so all trials to run start from the beginning.

    Raises:
        OutputError: a checkpoint of another machine cannot be removed.
    """
    for trial in trials if elsewhere else ():
        _remove_foreign(context, trial)
    waiting = {trial.trial_id for trial in trials}
    for result in record.results:
        # A run that was killed right after it wrote a result could not remove the trial's checkpoints.
        if result.trial_id not in waiting and not meaning(result.status).reruns:
            Checkpoints(context.folder.checkpoints(result.trial_id)).remove()


def _remove_foreign(context: RunContext, trial: Trial) -> None:
    stored = TrialCheckpoints(context, trial).stored
    names = stored.names()
    stored.remove()
    if left := stored.names():
        raise OutputError(f"{stored.root / left[0]}: may be of another machine or other code, and cannot be removed")
    if names:
        context.warn("checkpoint", f"{names[0]} may be of another machine or other code: the trial starts from the "
                                   "beginning", trial.trial_id)
