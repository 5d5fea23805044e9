"""The kind of trial that trains a model: workload, engine, batch, optimizer and the rule that ends it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from repro.core.errors import nearest
from repro.core.machine import Machine
from repro.seams.plugin import Compilation, ModelOptions, Setting
from repro.seams.preconditioner import Preconditioner, Work
from repro.seams.training import Comm, Engine, Optimizer, Precision, Workload
from repro.suite.choice import Choice
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds.stop import Stop, stop_phrase
from repro.suite.kinds.training_options import AHEAD, Constant, GateOptions, Input, Scaling, Schedule, compile_phrase
from repro.suite.kinds.trial_config import BatchSize, LogSize, TrialConfig
from repro.suite.quality import Quality, quality_of
from repro.suite.recorded import StandIn

LAUNCH_SECONDS = 0.7
"""Starting and ending the processes of one trial, roughly."""
INVENTED_SECONDS = 0.05
"""A trial whose engine invents its figures, roughly."""
BITWISE = ("determinism bitwise costs time, which is part of every figure of its cells: deterministic kernels, and "
           "hashes of the weights while logging; `repro run determinism` measures how much it is on this machine")


class Batch(BatchSize):
    """Samples per optimizer step and how they are cut: global = micro x accumulation x processes."""

    global_: int = Field(alias="global", ge=1, description="samples per optimizer step over all processes")
    accumulation: int = Field(1, ge=1, description="forward and backward passes per optimizer step")
    micro: int | None = Field(None, ge=1, description="samples per process and pass; derived if not given")


class TrainingConfig(TrialConfig):
    """Everything that defines a cell whose trials train a model."""

    plugin_fields: ClassVar[tuple[str, ...]] = (
        "workload", "engine", "comm", "precision", "optimizer", "preconditioner", "launcher")

    # Not in the JSON of a training trial: records had no kinds at first, and cells keep their names.
    kind: Literal["training"] = Field("training", exclude=True, description="what a trial is; training: a model")
    workload: Choice
    engine: Choice
    processes: int = Field(1, ge=1, le=65536, description="ranks")
    batch: Batch
    optimizer: Choice
    stop: Stop
    evaluate_every: int | None = Field(None, ge=1, le=1 << 53, description="samples between evaluations, rounded up to "
                                                                           "whole steps; required but for fixed_steps")
    comm: Choice = Field("backend", validate_default=True)  # validated to a Choice
    precision: Choice = Field("fp32", validate_default=True)
    preconditioner: Choice = Field("none", validate_default=True)
    launcher: Choice = Field("local", validate_default=True)
    schedule: Schedule = Constant()
    scaling: Scaling = Scaling()
    input: Input = Input()
    compression: Literal["none", "fp16", "bf16", "powersgd"] = Field("none", description="what gradients are sent as")
    compression_rank: int = Field(1, ge=1, description="rank of PowerSGD's factors")
    overlap: bool | None = Field(None, description="average gradients during back-propagation (true), or only after it "
                                                   "(false); null: the engine's default")
    compile: Literal[False] | Compilation = Field(False, description="torch.compile: false, true, or a mapping")
    activation_checkpointing: bool = Field(False, description="recompute activations inside the model's blocks in the "
                                                              "backward pass instead of keeping them")
    channels_last: bool = Field(False, description="images and convolutions in memory format channels_last")
    cudnn_benchmark: bool = Field(False, description="cuDNN times its kernels and takes the fastest; GPUs only")
    gradient_clip: float | None = Field(None, gt=0, description="largest global L2 norm of the mean gradient")
    determinism: Literal["bitwise", "seeded", "free"] = "seeded"
    warmup_steps: bool = Field(True, description="two steps on synthetic data before the clock starts, then undone")
    timeout_seconds: float = Field(3600.0, gt=0, le=1e7, description="longest a trial may take, start to end")
    stall_seconds: float | None = Field(
        None, gt=0, le=1e7,
        description="a trial is ended as hung after this long without an event; must be longer than its start and than "
                    "the longest time between two evaluations; null: only timeout_seconds",
    )
    eval_batch: int | None = Field(None, ge=1, le=1 << 20, description="samples per process and forward pass of an "
                                   "evaluation, in trials, warm-ups and the gate; null: the workload's own number")
    gate: GateOptions | None = Field(None, description="how the parity gate treats the cell")
    device: Literal["auto", "cpu", "cuda"] = "auto"

    # ---- what may be written

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule_by_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("compile", mode="before")
    @classmethod
    def _compile_by_default(cls, value: Any) -> Any:
        if not isinstance(value, bool | Mapping | Compilation):
            raise FieldProblem("must be false, true or a mapping")
        return {} if value is True else value

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        self._check_metric()
        self._check_batch()
        self._check_input()
        self._state_defaults_once()
        if self.compression_rank != 1 and self.compression != "powersgd":
            raise FieldProblem(f"only powersgd has a rank, not compression {self.compression}", ("compression_rank",))
        if self.compile and not self.warmup_steps:
            raise FieldProblem("compile needs the warm-up, in which everything is compiled; remove warmup_steps: false",
                               ("compile",))
        return self

    def _check_metric(self) -> None:
        if not self.stop.has_target:
            if self.evaluate_every is not None:
                raise FieldProblem("design fixed_steps evaluates nothing; remove it", ("evaluate_every",))
            return
        if self.evaluate_every is None:
            raise FieldProblem("is missing", ("evaluate_every",))
        workload, target = self.workload.get(Workload), self.stop.target
        assert target is not None, "validated"
        if self.stop.metric not in workload.metrics:
            known = nearest(self.stop.metric, workload.metrics)
            raise FieldProblem(f"workload {self.workload.kind!r} has no metric {self.stop.metric!r}{known}",
                               ("stop", "metric"))
        natural = workload.metrics[self.stop.metric]
        low, high = workload.ranges.get(self.stop.metric, (float("-inf"), float("inf")))
        if not low <= target <= high:
            share = f"; {target:g} % is {target / 100:g}" if (low, high) == (0, 1) and 1 < target <= 100 else ""
            raise FieldProblem(f"{self.stop.metric} must be between {low:g} and {high:g}{share} "
                               f"(given: {target:g})", ("stop", "target"))
        if self.stop.direction is None:
            object.__setattr__(self, "stop", self.stop.model_copy(update={"direction": natural}))
        elif self.stop.direction != natural:
            way = "upwards" if natural == "higher" else "downwards"
            raise FieldProblem(f"{self.stop.metric} improves {way}; write direction: {natural}, or leave it out",
                               ("stop", "direction"))

    def _state_defaults_once(self) -> None:
        """Leave out what says the same as the default, so that one cell has one digest."""
        same: dict[str, Any] = {}
        if self.gate == GateOptions():
            same["gate"] = None
        if self.input.workers and self.input.ahead == AHEAD:
            same["input"] = self.input.model_copy(update={"ahead": None})
        if self.eval_batch is not None and self.eval_batch == self.workload.get(Workload).eval_batch_size:
            same["eval_batch"] = None
        for name, value in same.items():
            object.__setattr__(self, name, value)

    def _check_batch(self) -> None:
        parts = self.processes * self.batch.accumulation
        micro, rest = divmod(self.batch.global_, parts)
        if rest:
            raise FieldProblem(
                f"global batch {self.batch.global_} is not divisible by processes x accumulation = "
                f"{self.processes} x {self.batch.accumulation} = {parts}; "
                f"{max(1, round(self.batch.global_ / parts)) * parts} would be",
                ("batch", "global"),
            )
        if self.batch.micro not in (None, micro):
            raise FieldProblem(
                f"micro {self.batch.micro} x accumulation {self.batch.accumulation} x processes {self.processes} = "
                f"{self.batch.micro * parts if self.batch.micro else 0}, not the global batch {self.batch.global_}",
                ("batch", "micro"),
            )
        object.__setattr__(self, "batch", self.batch.model_copy(update={"micro": micro}))

    def _check_input(self) -> None:
        workload = self.workload.get(Workload)
        if self.input.workers and not workload.reads_samples:
            raise FieldProblem(f"workload {self.workload.kind!r} has no samples to read: its batches are looked up on "
                               "the device, so no input worker could help", ("input", "workers"))
        if self.input.order == "stream" and 0 < workload.train_samples < self.processes:
            raise FieldProblem(f"a stream needs a sample for each process: {workload.train_samples} samples, "
                               f"{self.processes} processes", ("input", "order"))

    # ---- derived

    @property
    def micro_batch(self) -> int:
        """Samples per process and pass."""
        return self.batch.global_ // (self.processes * self.batch.accumulation)

    @property
    def budget_steps(self) -> int:
        """Optimizer steps of a trial that uses its whole budget; epochs are rounded up to whole steps."""
        if self.stop.max_epochs is None:
            return self.stop.warmup + (self.stop.steps or 0)
        return math.ceil(self.stop.max_epochs * self.train_samples / self.batch.global_)

    @property
    def budget_epochs(self) -> float:
        """Passes over the training data of a trial that uses its whole budget; a schedule runs over them."""
        if self.stop.max_epochs is not None:
            return self.stop.max_epochs
        return self.budget_steps * self.batch.global_ / self.workload.get(Workload).train_samples

    @property
    def ungated(self) -> str:
        """Return the reason of suite or engine for no parity gate of the cell; "": it is gated."""
        stated = self.gate.skip if self.gate is not None else None
        rule = self.optimizer.get(Optimizer)
        engine = self.engine.get(Engine)
        clipping = engine.ungated_clipping if self.gradient_clip is not None and self.processes > 1 else ""
        return stated or engine.ungated(self.processes, rule) or clipping

    def stated(self) -> dict[str, Any]:
        found = super().stated()
        return found | {"eval_batch": self.eval_batch or self.workload.get(Workload).eval_batch_size}

    @property
    def gate_metric(self) -> str:
        """The metric that the parity gate evaluates by: the one that the trial stops by, else the workload's first."""
        return self.stop.metric or next(iter(self.workload.get(Workload).metrics))

    @property
    def eval_batch_size(self) -> int:
        """Samples per process and forward pass of an evaluation: no more than a process has."""
        workload = self.workload.get(Workload)
        wanted = self.eval_batch or workload.eval_batch_size
        share = -(-workload.eval_samples // self.processes)  # 0: unknown, of a plug-in that is not installed
        return min(wanted, share) if share else wanted

    @property
    def rate(self) -> float:
        """Full learning rate after the scaling rule."""
        return float(self.optimizer.get(Optimizer).lr * self.scaling.scale(self.batch.global_))

    @property
    def needs_parts(self) -> bool:
        """Its engine trains a model; False: it simulates."""
        return self.engine.get(Engine).needs_parts

    # ---- as a kind of trial

    @property
    def slug(self) -> str:
        stage = self.engine.get(Engine).zero_stage()
        engine = self.engine.kind if stage is None else f"{self.engine.kind}-z{stage}"
        return f"{engine}-p{self.processes}-b{self.batch.global_}-{self.precision.kind}"

    @property
    def title(self) -> str:
        return self.engine.label

    @property
    def task(self) -> str:
        return self.workload.label

    @property
    def global_batch(self) -> int:
        return self.batch.global_

    @property
    def train_samples(self) -> int:
        return int(self.workload.get(Workload).train_samples)

    @property
    def settings(self) -> dict[str, str]:
        return {"learning_rate": f"{self.rate:g}"}

    @property
    def repeatability(self) -> str:
        return self.determinism

    @property
    def quality(self) -> Quality:
        return quality_of(self.workload.get(Workload), self.stop.metric)

    @classmethod
    def phrase(cls, field: str, value: str) -> str:
        if field == "compile":
            return compile_phrase(value)
        if field == "stop":
            return stop_phrase(value)
        return f"batch {value}" if field == "batch.global" else super().phrase(field, value)

    @property
    def origin(self) -> str:
        return super().origin if self.needs_parts else "simulated"

    def why_no_checkpoints(self) -> str:
        if not self.stop.has_target:
            return "design fixed_steps evaluates nothing, after which checkpoints are written"
        return "" if self.engine.get(Engine).checkpoints else f"engine {self.engine.kind} keeps no checkpoints"

    @property
    def model_options(self) -> ModelOptions:
        """Return the options by which an engine runs the model: compiled, recomputed, in which memory format."""
        return ModelOptions(self.compile or None, self.activation_checkpointing,
                            self.channels_last, self.cudnn_benchmark)

    def unsupported(self, machine: Machine, installed: bool | None = None) -> str:
        if reason := super().unsupported(machine, installed):
            return reason
        if isinstance(self.engine.plugin, StandIn):
            return ""  # its plan was made where it is installed
        engine, name = self.engine.get(Engine), self.engine.kind
        if left := [item for item in self.model_options.chosen() if item not in engine.model_options]:
            return f"engine {name} does not carry out {left[0]}"
        if not machine.cpp_compiler and (built := engine.builds()):
            return f"engine {name} builds {built} with a C++ compiler: install g++, or name one in the variable CXX"
        on_cpu = (machine.device if self.device == "auto" else self.device) == "cpu"
        if self.cudnn_benchmark and on_cpu:
            return "cudnn_benchmark chooses between cuDNN's kernels, and a CPU has none"
        if self.cudnn_benchmark and self.determinism == "bitwise":
            return "cudnn_benchmark picks kernels by measured times, so no run repeats another bit for bit"
        if self.determinism == "bitwise" and not on_cpu and (layers := self.workload.get(Workload).unrepeatable):
            return (f"determinism bitwise: torch has no deterministic kernel for {layers} of the model on a GPU; use "
                    "-o determinism=seeded, another model, or -o device=cpu")
        if self.compile and on_cpu and self.compile.records_graphs:
            return f"compile mode {self.compile.mode} records CUDA graphs; on a CPU use default"
        if self.compile and self.compile.records_graphs and self.batch.accumulation > 1:
            return (f"compile mode {self.compile.mode} records CUDA graphs, which overwrite the gradient of one "
                    "micro-batch while the next runs; use accumulation 1, or mode max-autotune-no-cudagraphs")
        if self.compile and on_cpu and not machine.cpp_compiler:
            return "compile needs a C++ compiler on a CPU: install g++, or name one in the variable CXX"
        return ""

    def setting(self, device: str, device_count: int) -> Setting:
        precision, optimizer = self.precision.get(Precision), self.optimizer.get(Optimizer)
        engine, layers = self.engine.get(Engine), self.workload.get(Workload).layer_shapes
        return Setting(
            workload=self.workload.kind, engine=self.engine.kind, comm=self.comm.kind,
            precision=self.precision.kind, optimizer=self.optimizer.kind, launcher=self.launcher.kind,
            processes=self.processes, accumulation=self.batch.accumulation, device=device, device_count=device_count,
            compression=self.compression, overlap=self.overlap, determinism=self.determinism,
            simulated=self.origin == "simulated", emulated=self.origin == "emulated",
            own_algorithm=self.comm.get(Comm).own_algorithm,
            passed_through=tuple(self.comm.get(Comm).passes_through(self.processes)),
            weights=precision.weights, autocast=precision.autocast, master_weights=precision.master,
            model=self.model_options, whole_tensors=optimizer.whole_tensors, on_rows=optimizer.on_rows,
            averages=optimizer.evaluates_other_weights, zero_stage=engine.zero_stage(),
            preconditions=engine.preconditions, steps=self.budget_steps, clips=self.gradient_clip is not None,
            reads_ahead=bool(self.input.workers) or self.input.order == "stream",
            hidden_matrices=None if layers is None else not all(layer.kernel for layer in layers[1:-1]),
            linear_layers=None if layers is None else not all(layer.kernel for layer in layers),
            servers=engine.server_processes(self.processes), tensors=self.workload.get(Workload).tensor_count,
        )

    def preload(self) -> list[str]:
        if self.needs_parts:
            return [*super().preload(), "torch.utils.flop_counter"]  # the final report counts operations
        # No rank imports what an optimizer and a workload that nothing trains with need.
        return [*self.plugin_modules(), *self.engine.plugin.preload, *self.launcher.plugin.preload]

    def notes(self, machine: Machine) -> list[str]:
        costly = self.determinism == "bitwise" and self.origin != "simulated"
        rounding = self.optimizer.get(Optimizer).rounding
        gated = f"not gated: {self.ungated}" if self.ungated else (
            f"the gate lets updates of {self.optimizer.kind} differ by {rounding:.0%}: rounding of its own can do that"
            if rounding else "")
        remark = self.engine.get(Engine).remark(self.workload.get(Workload).layer_shapes,
                                                self.batch.global_ // self.processes, self.processes,
                                                self.comm.get(Comm))
        return [*filter(None, (gated, remark)), *([BITWISE] if costly else []), *super().notes(machine)]

    @property
    def preconditioner_work(self) -> Work | None:
        """Work of the preconditioner in a mean step (modelled); None: the workload does not state its layers."""
        shapes = self.workload.get(Workload).layer_shapes
        return self.preconditioner.get(Preconditioner).work(shapes, self.batch.global_, self.processes)

    def full_budget_seconds(self, cores: int) -> float:
        if not self.needs_parts:
            return INVENTED_SECONDS
        workload, busy = self.workload.get(Workload), min(self.processes, cores)
        training = self.budget_epochs * workload.train_samples / (workload.reference_samples_per_second * busy)
        return LAUNCH_SECONDS + training + self.budget_steps * (self.preconditioner_work or Work()).seconds(busy)

    @property
    def work(self) -> str:
        return f"batch {self.batch.global_} = {self.batch.micro} x {self.batch.accumulation} x {self.processes}"

    def log_size(self) -> LogSize:
        steps = self.budget_steps
        if self.evaluate_every is None:
            return LogSize(budget=f"{steps} steps", steps=steps, evaluations=0, fewer_steps="fewer steps",
                           fewer_evaluations="")
        return LogSize(
            budget=f"{self.stop.max_epochs:g} epochs", steps=steps,
            evaluations=math.ceil(steps / math.ceil(self.evaluate_every / self.batch.global_)),
            fewer_steps="a smaller max_epochs or a larger batch", fewer_evaluations="a larger evaluate_every",
        )

    @property
    def ranks(self) -> int:
        return self.processes + self.engine.get(Engine).server_processes(self.processes)

    def gate_starts(self) -> int:
        if self.ungated:
            return 0
        return 1 if self.precision.kind == "fp32" else 2  # once in fp32, once more in its own format
