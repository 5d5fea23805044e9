"""The metrics that cells are compared by: one entry each, with all its words.

The command line offers these names before any model is loaded, so this module needs nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Word = Literal["faster", "slower", "higher", "lower"]
OF_STEPS = frozenset({"step_seconds", "train_samples_per_second", "tokens_per_second", "mfu", "input_wait_seconds",
                      "operation.median_seconds", "operation.items_per_second"})
"""Paths of figures of training steps, or of operations, alone."""
OF_WHOLE_TRIALS = frozenset({"run_seconds", "controller_bytes", "bytes_sent", "busiest_bytes", "final"})
"""Paths of figures that a trial has at its end: one that was cut short has less of them, or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric."""

    name: str
    """In suites, on the command line, in records."""
    path: str
    """Its path in a `Result`: a field, or several joined by dots."""
    noun: str
    """Noun, as in `its time to the target`; also the title of an axis and of a column."""
    times: str
    """Words after a factor, as in `0.8 x the time`."""
    unit: str
    """"" for a ratio or a quality."""
    description: str
    """One sentence; `{start}` is replaced by the event that starts the clock."""
    better: Literal["lower", "higher"] = "lower"
    speed: bool = True
    """A better figure is called faster, and the ratio gives a speed-up; False: higher or lower, without a speed-up."""
    at_end: bool = False
    """A time to the end of a fixed budget, whatever the quality there: of design contest alone. It has the path of the
    time to the target of the other designs, which is the time to the evaluation that ends the trial's clocks."""
    to_target: bool = False
    """Only a trial that reached its target has one. A target is seen at evaluations only, so the metric is known to the
    distance between two evaluations, and comparisons take that grid into account."""
    watched: Literal["", "wall", "cold", "train", "samples"] = ""
    """For a metric with `to_target`: the clock by which a trial without the target was watched."""
    without_target: bool = False
    """A figure of training alone, by which trials of design fixed_steps can be judged."""
    fixed_budget: bool = False
    """Compared only where trials run to the end of a budget: otherwise the target decides the figure."""
    of: Literal["training", "operations", "any"] = "training"
    """operations: only trials of kind measurement have it; training: they do not."""
    says: tuple[str, str] = ("has", "times that of")
    """Words of the headline around a ratio: `A takes 0.8 x as long as B`."""
    clock: str = ""
    """Short name of the clock, for tables of several clocks; "" for a metric that is no time to the target or end."""
    published: bool = False
    """Published results have it."""
    rate: bool = False
    """A clock is in the figure although its unit does not show it."""
    tracked: bool = True
    """Runs of cells in a tracking store have its median. False: they have it under an older name, or none."""

    @property
    def below(self) -> Word:
        """The verdict on a candidate whose ratio is below 1."""
        return "lower" if not self.speed else "faster" if self.better == "lower" else "slower"

    @property
    def above(self) -> Word:
        """The verdict on a candidate whose ratio is above 1."""
        return "higher" if not self.speed else "slower" if self.better == "lower" else "faster"

    @property
    def column(self) -> str:
        """Name of its figure of one trial in tables and tracking stores."""
        return self.name if "." in self.path else self.path

    @property
    def timed(self) -> bool:
        """A duration in seconds."""
        return self.unit == "s"

    @property
    def clocked(self) -> bool:
        """A clock is in the figure: it depends on how fast the machine was at the time."""
        return self.rate or self.unit in ("s", "samples/s", "tokens/s")

    @property
    def by_training(self) -> bool:
        """Training alone decides the figure, so a training that is repeated has it again."""
        return self.fixed_budget or (self.to_target and not self.clocked)

    @property
    def of_whole_trial(self) -> bool:
        """A trial that did not train to its target or through its budget has none."""
        return self.path in OF_WHOLE_TRIALS

    @property
    def drift_sign(self) -> float:
        """1 if a slower machine makes the figure larger, -1 if smaller; of a figure with a clock in it."""
        return 1.0 if self.better == "lower" else -1.0

    @property
    def has_lost_time(self) -> bool:
        """Time lost before a resume is in the figure: all clocks but those of training steps alone."""
        return self.clocked and self.path not in OF_STEPS

    @property
    def title(self) -> str:
        """`time to the target (s)`."""
        return f"{self.noun} ({self.unit})" if self.unit else self.noun

    def speedup(self, ratio: float) -> float | None:
        """Return the speed of a candidate relative to its baseline; None for a metric other than speed."""
        if not self.speed:
            return None
        return 1 / ratio if self.better == "lower" else ratio


DEFAULT = "tta_wall"
"""Compared by where a suite declares no primary contrast."""
DEFAULT_WITHOUT_TARGET = "train_throughput"
"""The same for design fixed_steps."""
DEFAULT_OF_A_CONTEST = "end_wall"
"""The same for design contest."""
DEFAULT_TO_THE_END = "run_time"
"""The same for programs of which only the time counts."""
DEFAULT_OF_A_MEASUREMENT = "operation_time"
"""The same for trials of kind measurement."""
METRICS: dict[str, MetricSpec] = {spec.name: spec for spec in (
    MetricSpec(
        name="tta_wall", path="tta_wall", noun="time to the target", times="the time", unit="s", to_target=True,
        watched="wall", says=("takes", "as long as"), clock="wall clock", published=True,
        description="Time to target by the wall clock: from {start} to the evaluation that establishes the target, "
                    "evaluation on the clock.",
    ),
    MetricSpec(
        name="tta_train", path="tta_train", noun="training time to the target", times="the training time", unit="s",
        to_target=True, watched="train", says=("takes", "as long as"), clock="training clock",
        description="Time to target by the training clock: from {start} to the evaluation that establishes the target, "
                    "without what evaluation, checkpoints and logging took.",
    ),
    MetricSpec(
        name="tta_cold", path="tta_cold", noun="time from a cold start to the target",
        times="the time from a cold start", unit="s", to_target=True, watched="cold", says=("takes", "as long as"),
        clock="cold start to target",
        description="Time to target from a cold start: from the request to launch the trial to the evaluation that "
                    "establishes the target.",
    ),
    MetricSpec(
        name="samples", path="samples_to_target", noun="samples to the target", times="the samples", unit="samples",
        to_target=True, watched="samples", says=("needs", "the samples of"), published=True,
        tracked=False,
        description="Samples that training took up to the evaluation that establishes the target.",
    ),
    MetricSpec(
        name="end_wall", path="tta_wall", noun="time to the end", times="the time", unit="s", at_end=True,
        says=("takes", "as long as"), clock="wall clock",
        description="Time to the end by the wall clock: from {start} to the last evaluation of a fixed budget, "
                    "evaluation on the clock, whatever the quality there.",
    ),
    MetricSpec(
        name="end_train", path="tta_train", noun="training time to the end", times="the training time", unit="s",
        at_end=True, says=("takes", "as long as"), clock="training clock",
        description="Time to the end by the training clock: from {start} to the last evaluation of a fixed budget, "
                    "without what evaluation, checkpoints and logging took.",
    ),
    MetricSpec(
        name="end_cold", path="tta_cold", noun="time from a cold start to the end",
        times="the time from a cold start", unit="s", at_end=True, says=("takes", "as long as"),
        clock="cold start to the end",
        description="Time to the end from a cold start: from the request to launch the trial to the last evaluation "
                    "of a fixed budget.",
    ),
    MetricSpec(
        name="throughput", path="samples_per_second", noun="throughput", times="the throughput", unit="samples/s",
        better="higher", says=("has", "the throughput of"), tracked=False,
        description="Throughput: samples of the run over its wall clock, which the opening of the data and every "
                    "evaluation are on; the training clock (tta_train) has training alone.",
    ),
    MetricSpec(
        name="train_throughput", path="train_samples_per_second", noun="training throughput",
        times="the training throughput", unit="samples/s", better="higher", without_target=True,
        says=("trains", "as many samples a second as"),
        description="Training throughput: samples of the timed steps over their time, waiting for input included; "
                    "without evaluations, the opening of the data and checkpoints.",
    ),
    MetricSpec(
        name="tokens", path="tokens_per_second", noun="tokens a second", times="the tokens a second", unit="tokens/s",
        better="higher", without_target=True, says=("trains", "as many tokens a second as"),
        description="Training throughput in tokens: samples a second in training times the tokens of a sample.",
    ),
    MetricSpec(
        name="step_time", path="step_seconds", noun="step time", times="the step time", unit="s", without_target=True,
        says=("takes", "as long for a step as"),
        description="Step time: the median over timed steps of the slowest rank's optimizer step, waiting for input "
                    "included.",
    ),
    MetricSpec(
        name="peak_memory", path="training_peak_mib", noun="peak memory", times="the peak memory", unit="MiB",
        speed=False, without_target=True, of="any", says=("needs", "the peak memory of"),
        description="Peak memory in training, without initialisation, of the rank that needs most: on a GPU what torch "
                    "allocated, on a processor the resident memory of the process, interpreter and libraries included.",
    ),
    MetricSpec(
        name="run_time", path="run_seconds", noun="run time", times="the time", unit="s", without_target=True,
        tracked=False, says=("takes", "as long as"),
        description="Run time: from {start} to the end of training, or of a program's process, whatever the quality.",
    ),
    MetricSpec(
        name="mfu", path="mfu", noun="model FLOPs utilisation", times="the utilisation", unit="", better="higher",
        speed=False, rate=True, says=("has", "the model FLOPs utilisation of"),
        description="Model FLOPs utilisation (MFU): the operations that the model needs for a second of training, "
                    "three forward passes a sample and nothing computed again, over the stated peak of its devices in "
                    "the format of its matrix products.",
    ),
    MetricSpec(
        name="energy", path="joules_per_sample", noun="energy a sample", times="the energy a sample", unit="J",
        speed=False, rate=True, says=("needs", "the energy a sample of"),
        description="Measured energy of the machine for a training sample, from the launch of the processes to their "
                    "end; none if any part of it is modelled.",
    ),
    MetricSpec(
        name="gpu_energy", path="gpu_joules_per_sample", noun="energy of the GPUs a sample",
        times="the energy of the GPUs a sample", unit="J", speed=False, rate=True,
        says=("needs", "the energy of the GPUs a sample of"),
        description="Measured energy of the GPUs alone for a training sample, by their counters, from the launch of "
                    "the processes to their end; the processor and its memory are not in it.",
    ),
    MetricSpec(
        name="input_wait", path="input_wait_seconds", noun="input wait a step", times="the input wait",
        unit="s a step", speed=False, rate=True, says=("has", "the input wait of"),
        description="Input wait: mean time that a step of the rank that waited most waited for its batch; on a GPU the "
                    "time in which the device was idle until the batch was there.",
    ),
    MetricSpec(
        name="controller_bytes", path="controller_bytes", noun="bytes through the controller", times="the bytes",
        unit="bytes", speed=False, without_target=True, says=("moves through its controller", "the bytes of"),
        description="Bytes through the controller: TCP payload between the store of the rendezvous and all ranks, both "
                    "directions, from the first connection to the end of training, by the kernel's counters.",
    ),
    MetricSpec(
        name="worker_bytes", path="bytes_sent", noun="bytes between workers", times="the bytes", unit="bytes",
        speed=False, without_target=True, of="any", says=("sends between workers", "the bytes of"), tracked=False,
        description="Bytes between workers: sent by all ranks in the algorithm's own collectives, from {start} to the "
                    "end of training.",
    ),
    MetricSpec(
        name="busiest_bytes", path="busiest_bytes", noun="bytes of the busiest rank", times="the bytes", unit="bytes",
        speed=False, without_target=True, of="any", says=("moves through its busiest rank", "the bytes of"),
        description="Bytes of the busiest rank: sent and received in the algorithm's own collectives by the rank with "
                    "most, from {start} to the end of training; of a parameter server that is the server.",
    ),
    MetricSpec(
        name="accuracy", path="final", noun="final quality", times="the final quality", unit="", better="higher",
        speed=False, fixed_budget=True, says=("ends with", "the final quality of"), tracked=False,
        description="Final quality: the quality of the last evaluation.",
    ),
    MetricSpec(
        name="operation_time", path="operation.median_seconds", noun="time of an operation", times="the time",
        unit="s", without_target=True, of="operations", says=("takes", "as long for an operation as"),
        description="Time of an operation of a measurement: the time of the slowest rank, as the median over the timed "
                    "operations.",
    ),
    MetricSpec(
        name="operation_throughput", path="operation.items_per_second", noun="throughput of operations",
        times="the throughput", unit="", better="higher", rate=True, without_target=True, of="operations",
        says=("processes", "as many items a second as"),
        description="Throughput of a measurement: items of its timed operations divided by the sum of their times. "
                    "The time of an operation is the time of its slowest rank.",
    ),
)}
TO_THE_END = tuple(spec.name for spec in METRICS.values() if spec.at_end)
"""Times of design contest."""
OF_MEASUREMENTS = tuple(spec.name for spec in METRICS.values() if spec.of != "training")
"""Metrics that trials of kind measurement have."""
