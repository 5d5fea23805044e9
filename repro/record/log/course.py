"""Events while a trial runs: initialisation, steps, evaluations, checkpoints, its end; and the load of the machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from repro.record.log.event import LogEvent, Series, Start, Stop, ValueEvent
from repro.record.result.warned import Resumed

TrialOutcome = Literal["success", "missed", "diverged", "abandoned"]
"""How the loop of a trial ended it; abandoned: by the declared rule of a tuning."""


class InitStart(Start):
    """Initialisation begins."""

    key = "init_start"


class InitStop(Stop):
    """Initialisation ends."""

    key = "init_stop"


class RunStart(Start):
    """The clock of the trial starts; from here on training data may be touched."""

    key = "run_start"


class RunStop(Stop):
    """The clock stops. A trial without this event has failed."""

    key = "run_stop"
    status: Literal["success", "aborted"]
    """In the words of MLPerf."""
    outcome: TrialOutcome
    reason: str
    samples_count: int
    """Training samples so far; of a measurement its operations."""


class BlockStart(Start):
    """The steps up to the next evaluation begin."""

    key = "block_start"
    first_step: int
    steps: int


class BlockStop(Stop):
    """They end; training samples so far."""

    key = "block_stop"
    samples_count: int


class EvalStart(Start):
    """An evaluation begins; training samples and epochs so far."""

    key = "eval_start"
    epoch_num: float
    samples_count: int


class EvalStop(Stop):
    """It ends."""

    key = "eval_stop"
    epoch_num: float
    samples_count: int


class Evaluation(ValueEvent):
    """Base of the two events with the quality of an evaluation."""

    value: float | None
    """None: it was not finite, or the loss of a rank."""
    samples_count: int
    """Training samples so far."""
    epoch_num: float
    metric: str = ""
    train_loss: float | None = None
    """Mean over ranks and steps since the last evaluation."""
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds so far, by phase."""
    eval_stop_ns: int | None = None
    """End of the evaluation, monotonic nanoseconds; None: the time of this event."""
    evaluated: float | None = None
    """Evaluated samples, if they are not as many as declared."""
    step: int | None = None
    """The step that a program states."""
    own_seconds: float | None = None
    """A program's own clock."""
    read: int | None = None
    """Number of the read in which a program's statement arrived."""
    epochs_known: bool = False
    """`epoch_num` follows from what a program states."""


class EvalAccuracy(Evaluation):
    """Quality that improves upwards."""

    key = "eval_accuracy"


class EvalError(Evaluation):
    """Quality that improves downwards."""

    key = "eval_error"


class StepBlock(LogEvent):
    """Steps of rank 0, up to `worker.step_log.STEPS_A_LINE` of them; written when the last of them has ended."""

    key = "x_steps"
    first: int
    """Number of the first, from 0."""
    seconds: Series
    """Without input."""
    input_seconds: Series
    loss: Series


class Phases(LogEvent):
    """Seconds between `run_start` and `run_stop`, by phase."""

    key = "x_phases"
    train: float = 0.0
    eval: float = 0.0
    checkpoint: float = 0.0
    logging: float = 0.0
    other: float = 0.0
    lost: float | None = None
    """From a checkpoint to the point of resumption; None: the trial was not resumed."""


class CheckpointWritten(LogEvent):
    """A checkpoint after `step` steps, or why there is none."""

    key = "x_checkpoint"
    step: int
    seconds: float
    bytes: int | None = None
    """Of all ranks; None: it was skipped."""
    skipped: str = ""
    """The reason."""


class ResumedFrom(ValueEvent):
    """Resumption from a checkpoint of an earlier attempt."""

    key = "x_resumed"
    value: Resumed


class Updates(LogEvent):
    """Updates of weights that servers hold, since the last block; one item an update."""

    key = "x_updates"
    first: int
    """Number of the first update, from 0."""
    worker: tuple[int, ...]
    """The rank that computed it."""
    read: tuple[int, ...]
    """Version of the weights that its gradient was computed with."""
    applied: tuple[int, ...]
    """Version that it was applied to."""
    staleness: tuple[int, ...]
    """The difference of the two."""
    ahead: tuple[int, ...]
    """Clocks that its worker was ahead of the slowest."""
    rate: tuple[float, ...]


class Operated(ValueEvent):
    """Operations of a measurement so far; written now and then to say that it goes on."""

    key = "x_operated"
    value: int


class Progress(LogEvent):
    """A program has stated something or printed; its last step and samples."""

    key = "x_progress"
    step: int | None = None
    samples: int | None = None


class ProgramFinding(LogEvent):
    """Something wrong with a program's run."""

    key = "x_finding"
    kind: str
    text: str
    void: bool
    """It makes the trial invalid."""


class SystemSample(LogEvent):
    """Load of the machine over the last second, in the names of MLflow."""

    key = "x_system"
    cpu_utilization_percentage: float
    system_memory_usage_megabytes: float
    system_memory_usage_percentage: float
