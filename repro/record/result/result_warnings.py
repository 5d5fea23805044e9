"""Warnings about a result, and the limits that they are given at."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from repro.core.numbers import percent_above
from repro.record.result.remarks import Stated, Worded

OTHER_SHARE = 0.1
"""Largest share of the wall clock that may go to neither training, evaluation, checkpoints nor logging."""
CONSERVATION_TOLERANCE = 0.01
"""Largest share of the wall clock that the phases may leave unexplained (method.md 1.2)."""
LOGGING_LIMIT = 0.005
"""Share of the run that logging may take without a warning."""
OBSERVER_LIMIT = 0.005
"""Share of one core that the energy tracker may use during the trial without a warning (as for logging)."""
GAP_SHARE = 0.05
"""Largest share of the wall clock that blocks of steps may last longer than their steps, without a warning."""
INIT_SECONDS = 1800.0
"""Initialisation time off the clock; the excess is charged to the time to the target (MLPerf)."""


class Unexplained(Worded):
    """Phases that do not add up to the wall clock."""

    kind: Literal["unexplained"] = "unexplained"
    share: float
    sentence = f"phases explain the wall clock only to {{share:.1%}} (limit {CONSERVATION_TOLERANCE:.0%})"


class SlowLogging(Worded):
    """Logging that took too large a share of the run."""

    kind: Literal["slow_logging"] = "slow_logging"
    share: float

    def _words(self) -> str:
        return f"logging took {percent_above(self.share, LOGGING_LIMIT)} of the run (limit {100 * LOGGING_LIMIT:.1f} %)"


class BusyTracker(Worded):
    """Energy tracking that took too large a share of a core."""

    kind: Literal["busy_tracker"] = "busy_tracker"
    share: float

    def _words(self) -> str:
        share = percent_above(self.share, OBSERVER_LIMIT)
        return f"energy tracking took {share} of a core (limit {100 * OBSERVER_LIMIT:.1f} %)"


class EnergyOfLastAttempt(Worded):
    """Energy of a resumed trial, which was tracked from its last start on."""

    kind: Literal["energy_of_last_attempt"] = "energy_of_last_attempt"
    sentence = "its energy covers the last attempt only; that of earlier attempts is not included"


class StepsMissing(Worded):
    """Step records that do not cover the samples of the evaluations or, without these, of the run."""

    kind: Literal["steps_missing"] = "steps_missing"
    counted: int
    wanted: int
    sentence = "step records cover {counted} samples, evaluations {wanted}"


class ClockBackwards(Worded):
    """An evaluation that is dated before its predecessor."""

    kind: Literal["clock_backwards"] = "clock_backwards"
    sentence = "the clock went backwards between evaluations"


class LongInitialisation(Worded):
    """Seconds of initialisation beyond `INIT_SECONDS`."""

    kind: Literal["long_initialisation"] = "long_initialisation"
    excess_seconds: float
    sentence = (f"initialisation took {{excess_seconds:.0f}} s more than its {INIT_SECONDS:.0f} s; they are charged "
                "to the time to the target")


class Resumed(Worded):
    """Resumption of a trial from a checkpoint of an earlier attempt."""

    kind: Literal["resumed"] = "resumed"
    attempt: int
    """The one that wrote it."""
    step: int
    samples: int
    lost_seconds: float
    """From the checkpoint to the point of resumption: lost computation, the failure, the new start. On every
    clock."""
    clock: Literal["monotonic", "wall"]
    """The clock that measured the loss: the wall clock if the machine was restarted in between."""

    def _words(self) -> str:
        by = "" if self.clock == "monotonic" else ", measured by the wall clock because the machine was rebooted"
        return (f"resumed from the checkpoint of attempt {self.attempt} at step {self.step}; the "
                f"{self.lost_seconds:.1f} s since the checkpoint are on all its clocks{by}")


class CheckpointsSkipped(Worded):
    """Checkpoints that were not written; the step and the problem are of the first."""

    kind: Literal["checkpoints_skipped"] = "checkpoints_skipped"
    count: int
    step: int
    problem: str
    sentence = "{count} checkpoint(s) were not written, the first at step {step}: {problem}"


class Unassigned(Worded):
    """Share of the wall clock in no phase."""

    kind: Literal["unassigned"] = "unassigned"
    share: float
    sentence = ("{share:.0%} of the wall clock went to neither training, evaluation, checkpoints nor logging "
                f"(limit {OTHER_SHARE:.0%})")


class CompiledLate(Worded):
    """Graphs that were compiled after the warm-up, on the clock."""

    kind: Literal["compiled_late"] = "compiled_late"
    graphs: int
    seconds: float
    sentence = ("{graphs} graph(s) were compiled after the warm-up, which put {seconds:.1f} s on its clocks: a shape "
                "came that the warm-up has not shown")


class WorkersLost(Worded):
    """Workers that ended during the run, and how many were left."""

    kind: Literal["workers_lost"] = "workers_lost"
    ranks: tuple[int, ...]
    left: int

    def _words(self) -> str:
        return (f"went on without rank {', '.join(map(str, self.ranks))}, which ended during the run: its work was "
                f"dealt to the other {self.left}")


class NotChecked(Worded):
    """Facts that the harness could not gather at the end; with a number: an evaluation that it could not repeat."""

    kind: Literal["not_checked"] = "not_checked"
    evaluation: int | None = None
    problem: str

    def _words(self) -> str:
        if self.evaluation is None:
            return self.problem
        return f"the harness could not repeat evaluation {self.evaluation}: {self.problem}"


class SlowEvaluation(Worded):
    """Evaluations that take longer than evaluating can take: seconds of a sample there over those in training."""

    kind: Literal["slow_evaluation"] = "slow_evaluation"
    ratio: float
    limit: float
    sentence = ("a sample took {ratio:.1f} times as long in an evaluation as in training (limit {limit:g}): an "
                "engine may have left training to it")


class BlockGap(Worded):
    """Blocks of steps whose steps do not explain their time; the share of the wall clock, below 0: shorter."""

    kind: Literal["block_gap"] = "block_gap"
    share: float

    def _words(self) -> str:
        than = "longer" if self.share > 0 else "shorter"
        return (f"blocks of steps took {abs(self.share):.0%} of the wall clock {than} than their steps "
                f"(limit {GAP_SHARE:.0%})")


Warned = Annotated[
    Stated | Unexplained | SlowLogging | BusyTracker | EnergyOfLastAttempt | StepsMissing | ClockBackwards
    | LongInitialisation | Resumed | CheckpointsSkipped | Unassigned | CompiledLate | WorkersLost | NotChecked
    | SlowEvaluation | BlockGap, Field(discriminator="kind")]
"""A warning about a result."""
FAULTS = (Unexplained, StepsMissing, ClockBackwards)
"""Warnings that time or samples are not conserved; an unmodified log never causes the last two."""


def init_excess(init_seconds: float | None) -> float:
    """Return the seconds of initialisation that are charged to the time to the target."""
    return max(0.0, (init_seconds or 0.0) - INIT_SECONDS)
