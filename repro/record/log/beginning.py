"""Events before the clock of a trial starts: what was requested, and the surroundings as found."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from repro.core.frozen import Frozen
from repro.record.hopeless import Bar
from repro.record.log.event import LogEvent, ValueEvent
from repro.record.result.layer_cost import LayerCost

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


class SubmissionDivision(ValueEvent):
    """MLPerf's division."""

    key = "submission_division"
    value: str


class SubmissionOrg(ValueEvent):
    """The submitter."""

    key = "submission_org"
    value: str


class SubmissionPlatform(ValueEvent):
    """The kind of device."""

    key = "submission_platform"
    value: str


class SubmissionStatus(ValueEvent):
    """MLPerf's status of the system."""

    key = "submission_status"
    value: str


class Seed(ValueEvent):
    """Number of the repeat, and the run's seed from which all streams are drawn."""

    key = "seed"
    value: int
    master_seed: int


class GlobalBatchSize(ValueEvent):
    """Samples of an optimizer step on all ranks."""

    key = "global_batch_size"
    value: int


class AccumulationSteps(ValueEvent):
    """Micro-batches of a step on one rank."""

    key = "gradient_accumulation_steps"
    value: int


class TrainSamples(ValueEvent):
    """Samples of an epoch."""

    key = "train_samples"
    value: int


class EvalSamples(ValueEvent):
    """Samples of an evaluation."""

    key = "eval_samples"
    value: int


class OptName(ValueEvent):
    """The optimizer's name in the registry."""

    key = "opt_name"
    value: str


class OptBaseLearningRate(ValueEvent):
    """The learning rate after scaling to the batch, before the schedule."""

    key = "opt_base_learning_rate"
    value: float


class OptWarmupEpochs(ValueEvent):
    """Epochs in which the learning rate rises."""

    key = "opt_learning_rate_warmup_epochs"
    value: float


class OptWeightDecay(ValueEvent):
    """The optimizer's weight decay."""

    key = "opt_weight_decay"
    value: float


class OptMomentum(ValueEvent):
    """The optimizer's momentum."""

    key = "opt_momentum"
    value: float


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
    """What an operation of a measurement processes."""

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
    """How each layer's gradient travels."""

    key = "x_gradient_plan"
    value: tuple[LayerCost, ...]


class Compiled(Frozen):
    """What one rank compiled in a part of its trial."""

    model_config = ConfigDict(extra="ignore")

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
