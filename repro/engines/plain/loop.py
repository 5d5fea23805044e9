"""The plain PyTorch training step: inside a wrapper for DDP, without one for the parity gate's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repro.engines.plain.numerics import make_scaler, name_of
from repro.engines.plain.session import TorchSession, as_array
from repro.engines.plain.state import GroupNumbers, create_state, start_momentum, state_tensors
from repro.engines.plain.tensor_files import copy_tensors, load_tensors, save_tensors
from repro.seams.training import Batch, Held, Job, TrainingParts
from repro.seams.workload import call_model

TENSORS = "tensors"
"""Subfolder of a checkpoint, written by torch.distributed.checkpoint."""


class MasterCopy:
    """Float32 copies of low-precision parameters; the optimizer updates the copies."""

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self.named = [(name, torch.nn.Parameter(parameter.detach().float().clone())) for name, parameter in named]
        self.copies = [copy for _, copy in self.named]

    def load_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Set each copy's gradient to that of its parameter, in float32."""
        narrow = []
        for copy, parameter in zip(self.copies, parameters, strict=True):
            copy.grad = None if parameter.grad is None else torch.empty_like(copy)
            narrow += [] if parameter.grad is None else [parameter.grad]
        # All in few kernels: one for each of hundreds of parameters would cost the host longer than the device.
        if narrow:
            torch._foreach_copy_([copy.grad for copy in self.copies if copy.grad is not None], narrow)

    @torch.no_grad()
    def round_into(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Round the copies into the parameters and free the float32 gradients."""
        torch._foreach_copy_([*parameters], [*self.copies])
        for copy in self.copies:
            copy.grad = None


class LoopSession(TorchSession):
    """Forward, backward, clip, step, clear: the usual training loop."""

    def __init__(self, parts: TrainingParts, job: Job) -> None:
        super().__init__(parts, job)
        self.model.train()
        self.masters = self.prepare()
        self.parameters = [parameter for _, parameter in self.trained()]
        self.stepped = self.masters.copies if self.masters else self.parameters
        self.optimizer = job.optimizer.build(self.masters.named if self.masters else self.trained())
        self.scaler = make_scaler(job.precision.loss_scaling, self.device.type) if job.precision.loss_scaling else None
        if self.scaler:
            start_momentum(self.optimizer)
        self.wrapped = self.wrap(self.model)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model as it is called in training."""
        return model

    def prepare(self) -> MasterCopy | None:
        """Move the model to the device, give its parameters the type in which it computes; return the float32 copies
        that are stepped.
        """
        self.model.to(self.device)
        if self.numerics.channels_last:  # before the copies: torch copies many tensors at once in one format only
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's overloads
        masters = MasterCopy(self.trained()) if self.job.precision.master else None
        self.numerics.cast_parameters(self.model)
        self.prepare_blocks()
        return masters

    def forward(self, inputs: Any) -> Any:
        # In evaluation the model itself is called: its buffers are shared already, and there are no gradients.
        module = self.wrapped if self.model.training else self.model
        with self.numerics.autocast():
            outputs = call_model(module, self.numerics.inputs(inputs))
        return self.numerics.outputs(outputs)

    def local(self) -> AbstractContextManager[Any]:
        """Return the context of all micro-batches but the last: gradients accumulate and are not averaged yet."""
        return nullcontext()

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        share = len(batches)
        if share == 1:  # a mean of one costs two kernels, and a division by one two more
            return self._accumulate(batches[0], share)
        losses = []
        for batch in batches[:-1]:
            with self.local():
                losses.append(self._accumulate(batch, share))
        losses.append(self._accumulate(batches[-1], share))
        return torch.stack(losses).mean()

    def _accumulate(self, batch: Batch, share: int) -> torch.Tensor:
        loss = self.micro_loss(batch)
        scaled = loss / share if share > 1 else loss
        (self.scaler.scale(scaled) if self.scaler else scaled).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self, rate: float) -> None:
        self.set_rate(rate)
        if self.masters:
            self.masters.load_gradients(self.parameters)
        if self.preconditioning is not None:
            gradients = {name: tensor.grad for (name, _), tensor in zip(self.trained(), self.stepped, strict=True)}
            self.preconditioning.apply(gradients, rate, self.scaler.get_scale() if self.scaler else 1.0)
        if self.job.gradient_clip is not None:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            self.clip(self.job.gradient_clip)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.publish_weights()
        self.clear_gradients()

    def clip(self, limit: float) -> None:
        """Scale the gradients so that the L2 norm of all of them is at most `limit`."""
        torch.nn.utils.clip_grad_norm_(self.stepped, limit)

    def publish_weights(self) -> None:
        if self.masters:
            self.masters.round_into(self.parameters)

    def clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> dict[str, np.ndarray]:
        scale = self.scaler.get_scale() if self.scaler else 1.0
        return {
            name: as_array(torch.zeros_like(p) if p.grad is None else p.grad, scale)
            for name, p in self.trained()
        }

    def held_gradients(self) -> list[Held] | None:
        return [Held(name, array.ravel()) for name, array in self.gradients().items()]

    def stepped_gradients(self) -> list[Held] | None:
        scale, given = self.unapplied_scale(), self.given()
        return [Held(name, as_array(given[id(stepped)].grad, scale).ravel())
                for (name, _), stepped in zip(self.trained(), self.stepped, strict=True) if id(stepped) in given]

    def weights(self) -> dict[str, np.ndarray]:
        return {name: as_array(p) for name, p in (self.masters.named if self.masters else self.trained())}

    def scaler_state(self) -> dict[str, Any]:
        return self.scaler.state_dict() if self.scaler else {}

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        if self.scaler:
            self.scaler.load_state_dict(state)

    # ---- checkpoints

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors that are identical on every rank, by name; not copies."""
        found = {f"weights.{name}": parameter.detach() for name, parameter in self.model.named_parameters()}
        found |= {f"buffers.{name}": buffer for name, buffer in self.model.named_buffers()}
        if self.masters:
            found |= {f"masters.{name}": copy.detach() for name, copy in self.masters.named}
        return found | {f"optimizer.{name}.{key}": value for name, state in self._optimizer_states()
                        for key, value in state_tensors(state).items()}

    def _optimizer_states(self) -> list[tuple[str, dict[str, Any]]]:
        names = [name for name, _ in self.trained()]
        return [(name, self.optimizer.state[stepped]) for name, stepped in zip(names, self.stepped, strict=True)]

    def own_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that differ between ranks."""
        return {}

    def load_own(self, tensors: dict[str, torch.Tensor], own: Mapping[str, Any]) -> None:
        """Load what `own_tensors` and `own_state` returned."""

    def own_state(self) -> dict[str, Any]:
        """Return the rest of the state that differs between ranks (JSON-like)."""
        return {}

    def save_state(self, folder: Path) -> dict[str, Any]:
        save_tensors(folder / TENSORS, self.state_tensors(), self.own_tensors(), self.job.rank, self.alone)
        numbers = {name: {key: value for key, value in state.items() if isinstance(value, int | float)}
                   for name, state in self._optimizer_states()}
        return {"optimizer": numbers, "groups": GroupNumbers(self.optimizer).plain(), "own": self.own_state()}

    def load_state(self, folder: Path, own: Mapping[str, Any]) -> None:
        shared, mine = load_tensors(folder / TENSORS, self.job.rank)
        if not self.job.optimizer.starts_from_zero:
            create_state(self.optimizer)  # dropped after the warm-up
        copy_tensors(self.state_tensors(), shared, folder.name)
        for name, state in self._optimizer_states():
            state.update(own["optimizer"][name])
        for group, numbers in zip(self.optimizer.param_groups, own["groups"], strict=True):
            group.update(numbers)
        self.load_own(mine, own["own"])

    def effective(self) -> dict[str, str]:
        return {
            **super().effective(),
            "master_dtype": name_of(self.stepped[0].dtype),
            "gradient_dtype": name_of(self.parameters[0].dtype),
            "loss_scale": f"{self.scaler.get_scale():g}" if self.scaler else "none",
        }
