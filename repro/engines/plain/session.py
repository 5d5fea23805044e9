"""What all engines on torch share: evaluation, sums over ranks, warm-up and its undoing, memory."""

from __future__ import annotations

import resource
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from repro.core.errors import CheckpointRefused, TrialError
from repro.engines.plain.numerics import Numerics, name_of
from repro.engines.plain.reduction_dtypes import Watched
from repro.engines.plain.state_snapshot import Buffers, OptimizerState, RandomStates, digest
from repro.seams.training import Batch, Job, Session, TrainingParts

PLAIN = (bool, int, float, str, type(None))
STATE_BYTES = 4
"""Bytes of one number of a checkpoint; there are about four of them a weight."""
WARM_UP_STEPS = 2
"""DDP lays out its buckets anew after the first step; the second one runs with the layout that stays."""


class TorchSession(Session):
    """A torch model in training on one rank; an engine adds `forward`, `backward`, `update` and the read-outs."""

    optimizer: torch.optim.Optimizer
    """The trial's own optimizer object, the one that steps."""

    def __init__(self, parts: TrainingParts, job: Job) -> None:
        self.parts, self.job = parts, job
        self.model = parts.model
        self.device = torch.device(job.device)
        self.numerics = Numerics(job.precision, job.device)
        self.alone = job.world == 1
        self.watched = Watched()

    @abstractmethod
    def forward(self, inputs: Any) -> Any:
        """The model's outputs in float32, computed in the trial's precision."""

    @abstractmethod
    def scaler_state(self) -> dict[str, Any]:
        """The loss scaler's state; empty without one."""

    @abstractmethod
    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Put back what `scaler_state` gave."""

    def trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Names and parameters that are trained, in the model's order."""
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def micro_loss(self, batch: Batch) -> torch.Tensor:
        """The mean loss of one micro-batch, float32."""
        inputs, targets = batch
        return self.parts.loss(self.forward(inputs), targets)

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    # ---- evaluation

    def evaluate(self, batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        score = self.parts.scores[metric]
        self.share_buffers()
        self.model.eval()
        # Summed on the device in float64: one read-out an evaluation, and 10^7 correct answers still count exactly.
        sum_, samples = torch.zeros((), dtype=torch.float64, device=self.device), 0
        with torch.no_grad():
            for inputs, targets in batches:
                sum_ += score(self.forward(inputs), targets)
                samples += len(targets)
            self.finish_evaluation()
        self.model.train()
        return float(sum_), samples

    def finish_evaluation(self) -> None:
        """Called after the last batch; an engine whose forward pass is collective evens out the ranks here."""

    def share_buffers(self) -> None:
        """Rank 0's buffers on every rank: what DDP evaluates with, whatever the engine.

        Each rank's batch-norm statistics saw its own samples only. Without this step, ranks would score one model
        with different statistics.
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
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if not self.alone:
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    # ---- checkpoints

    @abstractmethod
    def save_state(self, folder: Path) -> dict[str, Any]:
        """Write weights, buffers and optimizer; what is this rank's own and no tensor (JSON-like)."""

    @abstractmethod
    def load_state(self, folder: Path, own: Mapping[str, Any]) -> None:
        """Become what `save_state` wrote."""

    def save(self, folder: Path) -> dict[str, Any]:
        weights = self._weights_hash()  # all ranks take part: after a rank failed to write it would wait for ever
        own = self.save_state(folder)
        scaler = {name: value for name, value in self.scaler_state().items() if isinstance(value, PLAIN)}
        return {"engine": own, "scaler": scaler, "comm": self.job.comm.state(), "weights": weights,
                "random": RandomStates().plain()}

    def load(self, folder: Path, own: Mapping[str, Any]) -> None:
        self.job.comm.restore(own["comm"])
        self.load_state(folder, own["engine"])
        self.load_scaler_state(own["scaler"])
        if self._weights_hash() != own["weights"]:
            raise CheckpointRefused(f"checkpoint {folder.name}: the weights are not what they were when it was written")
        RandomStates.of(own["random"]).restore()

    def _weights_hash(self) -> str:
        """To the last bit."""
        return digest(self.weights())

    def state_bytes(self) -> int:
        """Weights, two moments and a master copy, in float32."""
        sizes = [int(getattr(parameter, "ds_numel", parameter.numel())) for _, parameter in self.trained()]
        return 4 * STATE_BYTES * sum(sizes)

    # ---- read-outs

    def buffers(self) -> dict[str, np.ndarray]:
        return {name: buffer.detach().cpu().numpy().copy() for name, buffer in self.model.named_buffers()}

    def peak_bytes(self) -> int | None:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def traffic(self) -> dict[str, Any]:
        return self.job.comm.traffic()

    def effective(self) -> dict[str, str]:
        optimizer, ran = type(self.optimizer), self.job.comm.ran()
        return {
            "comm": self.job.comm.effective(),
            **(ran.as_effective() if ran else {}),
            "comm_dtype": self.watched.types(),
            "threads": str(torch.get_num_threads()),
            "matmul_dtype": self.numerics.probe(),
            "tf32": self.numerics.tf32(),
            "weight_dtype": name_of(self.trained()[0][1].dtype),
            "optimizer": f"{optimizer.__module__}.{optimizer.__qualname__}",
        }

    # ---- warm-up

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run two steps with learning rate 0 on `batches` (one step's micro-batches) and undo them.

        The first is watched: what is reduced in it, and in which type, is what every later step reduces.

        Raises:
            TrialError: the weights are not what they were.
        """
        before = digest(self.weights())
        undo = (RandomStates(), Buffers(self.model), OptimizerState(self.optimizer))
        scaler = self.scaler_state()
        self.traffic()  # what came before is not the step's
        with self.watched:
            self.step(batches, 0.0)
        self.watched.heard(self.traffic())
        for _ in range(WARM_UP_STEPS - 1):
            self.step(batches, 0.0)
        self.synchronize()
        for state in undo:
            state.restore()
        self.load_scaler_state(scaler)
        if digest(self.weights()) != before:
            raise TrialError("warm-up changed the weights: its steps have learning rate 0 and should leave them alone")

    def close(self) -> None:
        """End the process group that the engine began."""
        if dist.is_initialized():
            dist.destroy_process_group()


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A float32 copy on the host."""
    return tensor.detach().to("cpu", torch.float32).numpy().copy()
