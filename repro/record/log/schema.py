"""Every event of a trial's log: its key, its fields, their units.

The worker, the supervisor of a program and the monitor write these models, and everything that reads a log reads them.
Keys are MLPerf's own if MLPerf has one (docs/method.md section 2); ours start with `x_`. Counts and hashes are of all
ranks together unless a docstring says otherwise; times are of rank 0's clock.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model

from repro.core.frozen import Frozen, Lenient
from repro.record.log.event import LogEvent, Series, Start, Stop, ValueEvent
from repro.record.log.facts import FinalFacts, RankLedger, StepsAgain
from repro.record.result.parts import Checked, Figured, Formula, Frames, LayerCost, Model, Protocol, RankTraffic
from repro.record.result.result_warnings import Resumed


class Bar(Frozen):
    """Least value with which a trial goes on: judged once, at the first evaluation from `samples` on."""

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

# ---- the trial, as requested


class CacheClear(ValueEvent):
    """The first event of a log; true: the processes started without cached data."""

    key = "cache_clear"
    value: bool


class Launched(ValueEvent):
    """Request of the launch, monotonic nanoseconds of the log's clock."""

    key = "x_launch_ns"
    value: int


class SubmissionBenchmark(ValueEvent):
    """The task: workload, measurement or task of a program."""

    key = "submission_benchmark"
    value: str


class Seed(ValueEvent):
    """Number of the repeat, and the run's seed from which all streams are drawn."""

    key = "seed"
    value: int
    master_seed: int


def _requested(key: str, kind: type[str | int | float], text: str) -> type[ValueEvent]:
    found = create_model(key.title().replace("_", ""), __base__=ValueEvent, __doc__=text, value=(kind, ...))
    found.key = key
    return found


REQUESTED: dict[str, type[ValueEvent]] = {key: _requested(key, kind, text) for key, kind, text in (
    ("submission_division", str, "MLPerf's division."),
    ("submission_org", str, "The submitter."),
    ("submission_platform", str, "The kind of device."),
    ("submission_status", str, "MLPerf's status of the system."),
    ("global_batch_size", int, "Samples of an optimizer step on all ranks."),
    ("gradient_accumulation_steps", int, "Micro-batches of a step on one rank."),
    ("train_samples", int, "Samples of an epoch."),
    ("eval_samples", int, "Samples of an evaluation."),
    ("opt_name", str, "The optimizer's name in the registry."),
    ("opt_base_learning_rate", float, "The learning rate after scaling to the batch, before the schedule."),
    ("opt_learning_rate_warmup_epochs", float, "Epochs in which the learning rate rises."),
    ("opt_weight_decay", float, "The optimizer's weight decay."),
    ("opt_momentum", float, "The optimizer's momentum."),
)}
"""What a trial declares in MLPerf's keys besides the classes here; no figure uses it."""


def requested(key: str, value: str | float) -> ValueEvent:
    """Return an event of `REQUESTED`."""
    return REQUESTED[key].model_validate({"value": value})


class TrialStated(ValueEvent):
    """The content of trial.json: kept as text, because its plug-ins need not be installed where the log is read."""

    key = "x_trial"
    value: dict[str, Any]


class EngineStated(ValueEvent):
    """The engine's name in the registry, and the library that it runs."""

    key = "x_engine"
    value: str
    library: str | None = None


class Target(ValueEvent):
    """Target of the metric, and the direction in which it improves."""

    key = "x_target"
    value: float
    metric: str
    direction: str


class HopelessBar(ValueEvent):
    """The bar of a tuning trial that may be abandoned."""

    key = "x_hopeless"
    value: Bar


class MeasurementStated(LogEvent):
    """The amount of data that an operation of a measurement processes."""

    key = "x_measurement"
    items: str
    """Plural noun."""
    items_each: int
    """Items of one operation of all ranks."""


# ---- the surroundings, as found


class Hashes(ValueEvent):
    """sha256 by subject: init_weights, final_weights, weights_step_N, data, data_order, augmentation, program."""

    key = "x_hashes"
    value: dict[str, str]


class Settings(ValueEvent):
    """Environment variables that affect training, as rank 0 read them."""

    key = "x_settings"
    value: dict[str, str]


class Build(ValueEvent):
    """Build of the library that trains, as rank 0 read it."""

    key = "x_build"
    value: dict[str, str]


class GradientPlan(ValueEvent):
    """The way in which each layer's gradient is sent."""

    key = "x_gradient_plan"
    value: tuple[LayerCost, ...]


class Compiled(Lenient):
    """The code that one rank compiled in a part of its trial."""

    seconds: float
    graphs: int
    graph_breaks: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    uncached: int = 0


class Compilation(LogEvent):
    """Compilation in the warm-up."""

    key = "x_compile"
    filling_seconds: float
    """Spent to fill a cache that should have been warm: on no clock."""
    ranks: tuple[Compiled, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the slowest rank."""
        return max(rank.seconds for rank in self.ranks)


class CompiledLate(ValueEvent):
    """Compilation after the warm-up, by rank."""

    key = "x_compiled_late"
    value: tuple[Compiled, ...]


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
    counted: bool = True
    """False: a program states no position, and `samples_count` is the number of its evaluations."""
    epochs_known: bool = False
    """`epoch_num` follows from what a program states."""


class EvalAccuracy(Evaluation):
    """Quality that improves upwards."""

    key = "eval_accuracy"


class EvalError(Evaluation):
    """Quality that improves downwards."""

    key = "eval_error"


class StepBlock(LogEvent):
    """Steps of rank 0, up to `worker.steps.STEPS_A_LINE` of them; written when the last of them has ended."""

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


class RankSteps(LogEvent):
    """Seconds of the slowest and of the fastest rank, by step."""

    key = "x_rank_steps"
    slowest_seconds: Series
    """Without input, as is the next."""
    fastest_seconds: Series
    whole_seconds: Series
    """Of the slowest rank, with input."""


class Operations(LogEvent):
    """Seconds of the slowest and of the fastest rank, by operation of a measurement."""

    key = "x_operations"
    slowest_seconds: Series
    fastest_seconds: Series


class InputWaits(ValueEvent):
    """Seconds that a rank's timed steps waited for input, and those of the steps themselves; by rank."""

    key = "x_input"
    value: tuple[tuple[float, float], ...]


class TrafficCounted(ValueEvent):
    """Communication between `run_start` and `run_stop`, by rank; None: the rank counted none."""

    key = "x_traffic"
    value: tuple[RankTraffic | None, ...]


class FormulaTraffic(ValueEvent):
    """The traffic that the algorithm's schedules require for the collectives that ran."""

    key = "x_formula"
    value: Formula


class ControllerReading(Frozen):
    """One rank's counters at one moment: TCP payload and segments of its connections to the store, and its log."""

    connections: int
    sent_bytes: int
    received_bytes: int
    sent_segments: int
    received_segments: int
    log_bytes: int
    interfaces: dict[str, Frames]
    """Frames by network, control or data."""


class ControllerReadings(Frozen):
    """One rank's counters at `run_start` and at `run_stop`."""

    start: ControllerReading
    stop: ControllerReading


class ControllerCounted(ValueEvent):
    """Exchange with the controller, by rank."""

    key = "x_controller"
    value: tuple[ControllerReadings, ...]


class MemoryPeaks(LogEvent):
    """Largest memory of every rank, bytes; None: unknown."""

    key = "x_memory"
    kind: Literal["resident", "allocated"]
    init: tuple[int | None, ...]
    """Until `run_start`."""
    training: tuple[int | None, ...]
    """From then on; of a measurement in its operations."""


class StateMemory(ValueEvent):
    """Modelled bytes of the model's states on one rank: weights, gradients, masters, optimizer and their `total`."""

    key = "x_state_memory"
    value: dict[str, int]


class ServerProtocol(ValueEvent):
    """The work of the servers of the weights."""

    key = "x_protocol"
    value: Protocol


class FactsGathered(ValueEvent):
    """The facts about the finished trial."""

    key = "x_checked"
    value: FinalFacts


class LedgerKept(ValueEvent):
    """The ledgers of all ranks."""

    key = "x_ledger"
    value: tuple[RankLedger, ...]


class Checking(ValueEvent):
    """The begin of a check after the clock has stopped, in words, so that the log grows: `stall_seconds`."""

    key = "x_checking"
    value: str


class StepsRepeated(ValueEvent):
    """The steps after the trial."""

    key = "x_again"
    value: StepsAgain


class Seeded(Frozen):
    """The comparison of the data that a trial consumed with those of its seed."""

    data_order: bool
    augmentation: bool = True
    """True also without augmentation."""


class Fed(LogEvent):
    """Tallies of the consumed samples and of the drawn augmentation (hexadecimal)."""

    key = "x_fed"
    samples: int
    order: str
    augmentation: str
    as_seeded: Seeded


class ModelStated(ValueEvent):
    """Size and arithmetic of the model."""

    key = "x_model"
    value: Model


class MeasurementFindings(LogEvent):
    """The findings of a measurement, over ranks."""

    key = "x_findings"
    checks: tuple[Checked, ...]
    figures: tuple[Figured, ...]


class ClocksCompared(LogEvent):
    """A program's clock against ours; None: nothing could be compared."""

    key = "x_clocks"
    own_share: float | None
    """Its seconds over ours."""
    steps_share: float | None
    """The same over stretches of steps alone."""
    judged_seconds: float
    """Our seconds of these stretches."""
    late: tuple[tuple[int, int], ...] = ()
    """Of evaluations whose arrival may be late: their number, from 0, and the earliest monotonic nanoseconds."""
    startup_seconds: float | None = None
    """On our clock before any sign of training; None: our clock begins when the program says so."""
    start_since_ns: int | None = None
    """The same of the statement with which training began; None: it came when it was made."""


class EffectiveSettings(ValueEvent):
    """The settings that ran, read back from the running objects; the last event of a log."""

    key = "x_effective"
    value: dict[str, str]


KINDS: dict[str, type[LogEvent]] = REQUESTED | {
    kind.key: kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, LogEvent) and "key" in vars(kind)}
"""Every event by its key."""
