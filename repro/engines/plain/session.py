"""The part that all engines on torch share: evaluation, sums over ranks, checkpoints, warm-up, memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from repro.core import devices, machine
from repro.core.devices import on_gpu
from repro.core.errors import CheckpointRefused, TrialError
from repro.engines.plain.modules import Compiler, blocks_of, recompute
from repro.engines.plain.numerics import Numerics, ReductionWatcher, name_of
from repro.engines.plain.state import (
    Buffers,
    OptimizerState,
    PreconditionerState,
    RandomStates,
    States,
    class_of,
    digest,
    kernel_of,
    options_of,
    state_tensors,
)
from repro.engines.plain.tensor_files import load_preconditioner, preconditioner_bytes, save_preconditioner
from repro.seams.preconditioner import Place
from repro.seams.training import Batch, Held, Job, Session, TrainingParts, WholeSet

PLAIN = (bool, int, float, str, type(None))
STATE_BYTES = 4
"""Bytes of one number in a checkpoint."""
STATE_NUMBERS = 4
"""Least numbers of a checkpoint per weight: the weight, two moments and a master copy."""
COMPILED_STEPS = 3
"""Further warm-up steps of a compiled model: CUDA graphs are recorded at the second call, used from the third."""
WARM_UP_STEPS = 2
"""DDP rebuilds its buckets after the first step; the second step runs with the final ones."""


class TorchSession(Session):
    """A torch model in training on one rank; an engine adds `forward`, `backward`, `update` and the read-outs."""

    optimizer: torch.optim.Optimizer
    """The trial's optimizer object, the one that steps."""
    _averaged = False
    """The parameters hold the weights that are evaluated, not those of training."""

    def __init__(self, parts: TrainingParts, job: Job) -> None:
        self.parts, self.job = parts, job
        self.model = parts.model
        self.device = torch.device(job.device)
        self.numerics = Numerics(job.precision, job.device, job.model.channels_last)
        self.numerics.prepare(self.model)
        self.alone = job.world == 1
        self.reductions = ReductionWatcher()
        self.eval_batch = 0
        """Samples of the largest forward pass of an evaluation so far."""
        self.recomputed_blocks = 0
        """Blocks whose activations are not kept."""
        self.compiler: Compiler | None = None
        self.unstepped: OptimizerState | None = None
        """The optimizer's state before the warm-up."""
        place = Place(job.rank, job.world, job.device, job.accumulation)
        self.preconditioning = job.preconditioner.attach(self.model, place) if job.preconditioner else None
        if on_gpu(self.device):
            torch.backends.cudnn.benchmark = job.model.cudnn_benchmark

    def prepare_blocks(self) -> None:
        """Recompute and compile as the trial asks; called before the model is wrapped or divided.

        Raises:
            TrialError: an option would have no effect.
        """
        options = self.job.model
        if options.channels_last and not self._images():
            raise TrialError("channels_last would have no effect: the model has no weights of 4 dimensions")
        if options.activation_checkpointing:
            if not (blocks := blocks_of(self.model, self.parts.blocks)):
                raise TrialError("activation_checkpointing would have no effect: the model has no blocks")
            for block in blocks:
                recompute(block, compiled=options.compile is not None)
            self.recomputed_blocks = len(blocks)
        if options.compile is not None:
            self.compiler = Compiler(options.compile, self.job.cache, f"{self.job.label}-rank{self.job.rank}")
            self.compiler.apply(self.compiled_modules())

    def compiled_modules(self) -> list[torch.nn.Module]:
        """Return the modules that are compiled one by one."""
        return [self.model]

    def _images(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.ndim == 4]

    @abstractmethod
    def forward(self, inputs: Any) -> Any:
        """Return the model's outputs in float32, computed in the trial's precision."""

    @abstractmethod
    def scaler_state(self) -> dict[str, Any]:
        """Return the loss scaler's state; empty without one."""

    @abstractmethod
    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Load what `scaler_state` returned."""

    def trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return names and parameters that are trained, in the model's order."""
        named = [(name, module._parameters.get(key)) for name, module, key in self._places] or [
            *self.model.named_parameters()]
        return [(name, parameter) for name, parameter in named if parameter is not None and parameter.requires_grad]

    @cached_property
    def _places(self) -> list[tuple[str, torch.nn.Module, str]]:
        """The name of each parameter, the module that has it, and its name there. A walk through all modules costs a
        tenth of a millisecond, also while the clock runs; modules that are exchanged later are not seen. Empty if the
        model names a parameter that no module of it has.
        """
        places = {id(parameter): (module, key) for module in reversed([*self.model.modules()])
                  for key, parameter in module._parameters.items()}
        named = [*self.model.named_parameters()]
        return [(name, *places[id(parameter)]) for name, parameter in named] if all(
            id(parameter) in places for _, parameter in named) else []

    def micro_loss(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of one micro-batch, float32."""
        inputs, targets = batch
        if self.preconditioning is None:
            return self.parts.loss(self.forward(inputs), targets)
        with self.preconditioning.observing():
            return self.parts.loss(self.forward(inputs), targets)

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def given(self) -> dict[int, Any]:
        """Return the tensors that the optimizer now has, and that have a gradient, by identity."""
        return {id(tensor): tensor for group in self.optimizer.param_groups for tensor in group["params"]
                if tensor.grad is not None}

    def unapplied_scale(self) -> float:
        """Return the loss scale that a fused optimizer is to divide the gradient by, inside its `step`."""
        return float(getattr(self.optimizer, "grad_scale", None) or 1.0)

    # ---- evaluation

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        if self._averaged or not self.job.optimizer.evaluates_other_weights:
            yield
            return
        optimizer: Any = self.optimizer
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # Copied: the package calculates the weights of training back from the average, to other last bits.
        trained = [parameter.detach().clone() for parameter in stepped]
        self._averaged = True
        optimizer.eval()
        self.publish_weights()
        try:
            yield
        finally:
            optimizer.train()
            with torch.no_grad():
                for parameter, value in zip(stepped, trained, strict=True):
                    parameter.copy_(value)
            self.publish_weights()
            self._averaged = False

    def publish_weights(self) -> None:
        """Write the optimizer's weights into the model, if they are copies."""

    def evaluate(self, batches: Collection[Batch], metric: str) -> tuple[float, int]:
        with self.evaluated():
            score, samples = self._evaluate(batches, metric)
        whole = self.parts.scores[metric]
        return (whole.value(self.gather) * samples if isinstance(whole, WholeSet) else score), samples

    def forward_is_collective(self) -> bool:
        """Return True if a forward pass waits for the other ranks: all then run the same number of passes."""
        return False

    def _evaluate(self, batches: Collection[Batch], metric: str) -> tuple[float, int]:
        score, missing = self.parts.scores[metric], self._missing_passes(len(batches))
        inputs = None
        self.share_buffers()
        self.model.eval()
        # Summed on the device in float64: read once per evaluation, and exact for 10^7 correct samples.
        sum_, samples = torch.zeros((), dtype=torch.float64, device=self.device), 0
        with torch.no_grad():
            for inputs, targets in batches:
                self.eval_batch = max(self.eval_batch, len(targets))
                sum_ += score(self.forward(inputs), targets)
                samples += len(targets)
            for _ in range(missing):  # the last inputs again; more ranks than samples: synthetic ones
                inputs = self.parts.synthetic_batch(1)[0] if inputs is None else inputs
                self.forward(inputs)
            self.finish_evaluation()
        self.model.train()
        return float(sum_), samples

    def _missing_passes(self, own: int) -> int:
        """Return the passes that this rank adds to an evaluation of `own` batches, so that no rank waits for ever."""
        if not self.forward_is_collective():
            return 0
        # Once per evaluation: an answer from the device before every pass would keep the host from running ahead.
        most = torch.tensor(own, device=self.device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most) - own

    def finish_evaluation(self) -> None:
        """Called after the last forward pass of an evaluation."""

    def share_buffers(self) -> None:
        """Copy rank 0's buffers to every rank, in every engine as in DDP.

        The batch-norm statistics of a rank come from its own samples only. Without this step ranks would evaluate one
        model with different statistics.
        """
        if self.alone:
            return
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in self.model.buffers():
            by_type.setdefault(buffer.dtype, []).append(buffer)
        for buffers in by_type.values():
            flat = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
            dist.broadcast(flat, src=0)
            pieces = torch.split(flat, [buffer.numel() for buffer in buffers])
            for buffer, piece in zip(buffers, pieces, strict=True):
                buffer.detach().copy_(piece.view_as(buffer))

    # ---- ranks

    def total(self, values: Sequence[float]) -> list[float]:
        if self.alone:
            return [float(value) for value in values]
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return [float(value) for value in sums.tolist()]

    def gather(self, value: Any) -> list[Any]:
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.job.world
        dist.all_gather_object(found, value)
        return found

    def synchronize(self) -> None:
        devices.wait(self.device)
        if not self.alone:
            dist.barrier(device_ids=devices.gpus_of(self.device) or None)

    # ---- checkpoints

    @abstractmethod
    def save_state(self, folder: Path) -> dict[str, Any]:
        """Write weights, buffers and optimizer; return the rest of this rank's state (JSON-like)."""

    @abstractmethod
    def load_state(self, folder: Path, own: Mapping[str, Any]) -> None:
        """Load what `save_state` wrote."""

    def save(self, folder: Path) -> dict[str, Any]:
        weights = digest(self.weights())  # collective: after a failed write the other ranks would wait forever
        # Collective too: before an engine's part can fail on one rank.
        kept = save_preconditioner(self.preconditioning, folder, self.job.rank, self.alone)
        own = self.save_state(folder)
        scaler = {name: value for name, value in self.scaler_state().items() if isinstance(value, PLAIN)}
        return {"engine": own, "scaler": scaler, "comm": self.job.comm.state(), "weights": weights,
                "random": RandomStates(self.job.device).plain(), **kept}

    def load(self, folder: Path, own: Mapping[str, Any]) -> None:
        self.job.comm.restore(own["comm"])
        self.load_state(folder, own["engine"])
        load_preconditioner(self.preconditioning, folder, own, self.job.rank)
        self.load_scaler_state(own["scaler"])
        if digest(self.weights()) != own["weights"]:
            raise CheckpointRefused(f"checkpoint {folder.name}: the weights differ from those that were saved")
        RandomStates.from_plain(own["random"], self.job.device).restore()

    def state_bytes(self) -> int:
        numbers = max(STATE_NUMBERS, 2 + math.ceil(self._moments()))
        return numbers * STATE_BYTES * self._size() + preconditioner_bytes(self.preconditioning, self.job.world)

    # ---- read-outs

    def held(self) -> list[Held] | None:
        return [Held(name, as_array(parameter).ravel()) for name, parameter in self.trained()]

    def buffers(self) -> dict[str, np.ndarray]:
        return {name: as_array(buffer) if buffer.dtype is torch.bfloat16 else buffer.detach().cpu().numpy().copy()
                for name, buffer in self.model.named_buffers()}

    def peak_bytes(self) -> int | None:
        return machine.peak_bytes(self.job.device)

    def states(self) -> States:
        """Return the model and its optimizer in the terms of the formula."""
        return States(self._size(), self.job.world, self.numerics.weights.itemsize, self.job.precision.master,
                      self._moments())

    def _size(self) -> int:
        """Return how many numbers are trained, over all ranks."""
        return sum(size_of(parameter) for _, parameter in self.trained())

    def _moments(self) -> float:
        """Return how many numbers the optimizer keeps for a parameter, in the mean; 0 before its first step."""
        states = self.optimizer.state
        kept = sum(value.numel() for state in states.values() for value in state_tensors(state).values() if value.ndim)
        return kept / sum(parameter.numel() for parameter in states) if states else 0.0

    def state_memory(self) -> dict[str, int]:
        return self.states().whole()

    def reset_peak(self) -> None:
        machine.reset_peak(self.job.device)

    def traffic(self) -> dict[str, Any]:
        return self.job.comm.traffic()

    def compilation(self) -> dict[str, Any]:
        return self.compiler.take() if self.compiler else {}

    def forget_compiled(self) -> bool:
        forget = self.compiler is not None and self.compiler.must_fill()
        if not any(self.gather(forget)):
            return False
        assert self.compiler is not None, "all ranks have one"
        self.compiler.forget()
        return True

    def _model_options(self) -> dict[str, str]:
        compiled = self.compiler.effective() if self.compiler else {"compile": "off"}
        found = {
            **compiled, "activation_checkpointing": switch(self.recomputed_blocks > 0),
            "channels_last": switch(self.numerics.channels_last),
            "cudnn_benchmark": switch(on_gpu(self.device) and torch.backends.cudnn.benchmark),
        }
        if self.recomputed_blocks:
            found["recomputed_blocks"] = str(self.recomputed_blocks)
        if images := self._images() if self.numerics.channels_last else []:
            last = sum(item.is_contiguous(memory_format=torch.channels_last) for item in images)
            found["channels_last_weights"] = f"{last} of {len(images)}"
        return found

    def effective(self) -> dict[str, str]:
        ran = self.job.comm.ran()
        return {
            "comm": self.job.comm.effective(),
            **(ran.as_effective() if ran else {}),
            "comm_dtype": self.reductions.types(),
            **self._model_options(),
            "threads": str(torch.get_num_threads()),
            "matmul_dtype": self.numerics.probe(),
            "tf32": self.numerics.tf32(),
            "weight_dtype": name_of(self.trained()[0][1].dtype),
            "optimizer": class_of(self.optimizer),
            "optimizer_options": options_of(self.optimizer), **kernel_of(self.optimizer),
            "broadcast_buffers": "off",  # before a forward pass: DDP alone does that
            "eval_batch": str(self.eval_batch or "unknown"),
            **(self.preconditioning.effective() if self.preconditioning else {"preconditioner": "none"}),
        }

    # ---- warm-up

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run two steps with learning rate 0 on `batches` (one step's micro-batches) and undo them.

        The averaging of one is watched: every later step averages the same amounts in the same types. What an optimizer
        or a preconditioner sends in `update` are no gradients.

        Raises:
            TrialError: the weights changed.
        """
        before = digest(self.weights())
        self.unstepped = OptimizerState(self.optimizer, self.job.optimizer.starts_from_zero)
        snapshots = (RandomStates(self.job.device), Buffers(self.model), self.unstepped,
                     PreconditionerState(self.preconditioning))
        scaler = self.scaler_state()
        self.traffic()  # drops what was counted before the step
        # torch would never again compile a function that it meets while it is watched.
        with torch.compiler.set_stance("force_eager") if self.compiler else nullcontext(), self.reductions:
            self.backward(batches)
        self.reductions.add_traffic(self.traffic())
        self.update(0.0)
        for _ in range(COMPILED_STEPS if self.compiler else WARM_UP_STEPS - 1):
            self.step(batches, 0.0)
        self.synchronize()
        for snapshot in snapshots:
            snapshot.restore()
        self.load_scaler_state(scaler)
        if digest(self.weights()) != before:
            raise TrialError("warm-up changed the weights: its steps have learning rate 0 and must not")

    def forget_optimizer(self) -> bool:
        if self.unstepped is not None:
            self.unstepped.restore()
        return self.unstepped is not None

    def close(self) -> None:
        """End the process group; forget compiled code."""
        if self.compiler:
            self.compiler.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def switch(value: bool) -> str:
    """Return a setting in the words of read-outs."""
    return "on" if value else "off"


def size_of(parameter: Any) -> int:
    """Return the numbers of a whole parameter, also of one that DeepSpeed divides."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def as_array(tensor: torch.Tensor, scale: float = 1.0) -> np.ndarray:
    """Return a float32 copy on the host, dense, divided by `scale`."""
    found = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    array: np.ndarray = found.to("cpu", torch.float32, copy=True).numpy()
    if scale != 1:  # a division is another pass, also while the clock runs
        array /= np.float32(scale)
    return array
