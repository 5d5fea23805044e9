"""The state that a warm-up changes: optimizer, buffers, random states, preconditioner; a torch optimizer in words."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from repro.core import devices
from repro.seams.preconditioner import Preconditioning


class RandomStates:
    """The random states of Python, numpy and torch at one moment, on the processor and on this rank's device.

    Those of other GPUs are not of this rank: a run that is resumed may see fewer, and asking for them opens a context.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.python = random.getstate()
        self.numpy: Any = np.random.get_state()
        self.torch = torch.get_rng_state()
        self.gpu = devices.random_state(device) if devices.on_gpu(device) else None

    def plain(self) -> dict[str, Any]:
        """Return all states (JSON-like); bytes as hexadecimal digits."""
        kind, keys, place, has_gauss, gauss = self.numpy
        return {
            "python": [self.python[0], list(self.python[1]), self.python[2]],
            "numpy": [kind, np.asarray(keys).tolist(), int(place), int(has_gauss), float(gauss)],
            "torch": _hex(self.torch), "gpu": None if self.gpu is None else _hex(self.gpu),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], device: str) -> RandomStates:
        """Return the states that `plain` returned, for a device of the same kind."""
        states = cls(device)
        version, keys, gauss = plain["python"]
        states.python = (version, tuple(keys), gauss)
        kind, numbers, *rest = plain["numpy"]
        states.numpy = (kind, np.asarray(numbers, dtype=np.uint32), *rest)
        states.torch = _from_hex(plain["torch"])
        states.gpu = None if plain["gpu"] is None else _from_hex(plain["gpu"])
        return states

    def restore(self) -> None:
        """Restore all states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.gpu is not None:
            devices.set_random_state(self.device, self.gpu)


def _hex(state: torch.Tensor) -> str:
    return bytes(state.cpu().numpy()).hex()


def _from_hex(digits: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(digits), dtype=np.uint8).copy())


class GroupNumbers:
    """The rates, counters and switches in the parameter groups of a torch optimizer at one moment."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.before = self.plain()

    def plain(self) -> list[dict[str, float]]:
        """Return the numbers of every group (JSON-like)."""
        return [{key: value for key, value in group.items() if isinstance(value, int | float)}
                for group in self.optimizer.param_groups]

    def restore(self) -> None:
        """Restore all numbers; counters that did not exist are removed."""
        for group, now, before in zip(self.optimizer.param_groups, self.plain(), self.before, strict=True):
            for key in now.keys() - before.keys():
                del group[key]
            group.update(before)


class OptimizerState:
    """The state of a torch optimizer at one moment.

    Args:
        starts_from_zero: state created later is restored to zero, in the same memory; else it is dropped, and the next
            step creates it again.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, starts_from_zero: bool) -> None:
        self.optimizer, self.starts_from_zero = optimizer, starts_from_zero
        self.before = {
            id(parameter): {key: value.detach().clone() if isinstance(value, torch.Tensor) else value
                            for key, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self.groups = GroupNumbers(optimizer)

    def restore(self) -> None:
        """Write the old values into the present tensors, so that no memory is allocated again."""
        self.groups.restore()
        if not any(self.before.values()) and not self.starts_from_zero:
            self.optimizer.state.clear()
        for parameter, state in self.optimizer.state.items():
            before = self.before.get(id(parameter), {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    value.copy_(before[key]) if key in before else value.zero_()
                elif isinstance(value, int | float):
                    state[key] = before.get(key, type(value)(0))


def state_tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors in an optimizer's state of one parameter by name; those in a list have a number in theirs."""
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            found[key] = value
        elif isinstance(value, list):
            found |= {f"{key}.{index}": item for index, item in enumerate(value) if isinstance(item, torch.Tensor)}
    return found


def create_state(optimizer: torch.optim.Optimizer) -> None:
    """Let `optimizer` create its state, with any values, by steps on gradients of zero at rate 0."""
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Set the momentum of torch's fused SGD to zero, which gives the same steps: its first step allocates the buffers
    uninitialised, and does not write them if a scaled gradient overflows."""
    if type(optimizer) is torch.optim.SGD:
        for group in optimizer.param_groups:
            if group["fused"] and group["momentum"]:
                for parameter in group["params"]:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class Buffers:
    """The buffers of a module at one moment."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.pairs = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore(self) -> None:
        """Write the old values into the same tensors."""
        with torch.no_grad():
            for buffer, before in self.pairs:
                buffer.copy_(before)


class PreconditionerState:
    """The state of a preconditioner at one moment; without one nothing is kept."""

    def __init__(self, running: Preconditioning | None) -> None:
        self.running, self.counts = running, running.counts() if running else {}
        tensors = [*running.shared_tensors().values(), *running.own_tensors().values()] if running else []
        self.pairs = [(tensor, tensor.clone()) for tensor in tensors]

    def restore(self) -> None:
        """Write the old values into the same tensors."""
        for tensor, before in self.pairs:
            tensor.copy_(before)
        if self.running:
            self.running.set_counts(self.counts)


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash names, shapes and values; a negative zero counts as zero (a step of rate 0 may change its sign)."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name}{array.shape}".encode())
        found.update(np.ascontiguousarray(array + np.float32(0)).tobytes())
    return found.hexdigest()


NOT_OPTIONS = ("params", "lr", "initial_lr", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Keys of a group that do not change the update rule; the rate is set before every step."""
PROGRESS = ("step", "k", "weight_sum", "lr_max", "scheduled_lr", "train_mode")
"""Keys of a group in which pytorch-optimizer and schedulefree count their steps."""

OF_ALL_GROUPS = ("preconditioning_compute_steps",)
"""Attributes in which optimizers of pytorch-optimizer keep an option outside of their groups."""


def class_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the full name of the optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def kernel_of(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return which of torch's kernels steps, as a read-out; {} for the plain loop, and for rules with one kernel."""
    for name in ("fused", "foreach"):
        if any(group.get(name) for group in optimizer.param_groups):
            return {"optimizer_kernel": name}
    return {}


def options_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the different sets of hyper-parameters of all groups, as sorted JSON.

    Engines may split or flatten groups, so neither their number nor their sizes are part of it.
    """
    hidden = {*NOT_OPTIONS, *PROGRESS}
    shared = {key: value for key, value in vars(optimizer).items() if key in OF_ALL_GROUPS}
    groups = {json.dumps({key: value for key, value in group.items() if key not in hidden} | shared, sort_keys=True,
                         default=str) for group in optimizer.param_groups}
    return f"[{', '.join(sorted(groups))}]"


FULL = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class States:
    """A model and its optimizer; every method returns the modelled bytes of their states on one rank, by part.

    Weights, gradients, optimizer (Rajbhandari et al., 2020, section 3): P parameters over N ranks; a weight or gradient
    has w bytes (4, or 2 under the *-master formats), the optimizer keeps m numbers for each parameter in float32, in
    the mean over the model and read back from its state (AdamW 2, SGD with momentum 1; docs/optimizers.md), master
    weights have 4 bytes. Bytes a parameter after a backward pass, when gradients are complete and before the update:

    | engine | weights | gradients | masters | optimizer |
    |---|---|---|---|---|
    | single, ddp, ZeRO 0 | w | w | 4 under *-master | 4 m |
    | ZeRO 1, 2 | w | w / N | 4 / N | 4 m / N |
    | ZeRO 3 | w / N | w / N | 4 / N | 4 m / N |
    | fsdp | 4 / N | 4 / N | (the weights) | 4 m / N |
    | local-sgd | w | w | 4 under *-master | 4 m + 4 for the synchronised weights, 4 more for an outer momentum |

    It differs from the paper in three points, each a property of the libraries (DeepSpeed 0.19, torch 2.13):

    - DeepSpeed keeps a float32 copy of a rank's own weights also where they are float32 already.
    - ZeRO 1 keeps only the gradients of a rank's own part once they are reduced; the paper counts all of them. While
      the backward pass runs it needs up to all of them, ZeRO 2 and 3 a bucket.
    - FSDP's parts are float32 in every format, and so are their gradients.

    What is not in it: activations; buckets (DeepSpeed's default holds 5e8 elements: set `bucket_mib` where that
    matters); weights and gradients of the blocks that ZeRO 3 and FSDP have gathered; small tensors that ZeRO 3 keeps on
    every rank (`stage3_param_persistence_threshold`); float32 gradients of the masters during an update; the padding of
    parts.
    """

    parameters: int
    ranks: int
    weight_bytes: int
    master: bool
    """The optimizer updates a float32 copy of the weights."""
    moments: float
    """Numbers that the optimizer keeps for a parameter, in the mean over the model."""

    def whole(self, outer: int = 0) -> dict[str, int]:
        """Everything on every rank, and `outer` float32 numbers a parameter for an outer step: local-sgd."""
        return self._bytes(self.weight_bytes, self.weight_bytes, FULL * self.master, self.moments + outer)

    def deepspeed(self, stage: int) -> dict[str, int]:
        """ZeRO in DeepSpeed."""
        if stage == 0:
            return self.whole()
        part = 1 / self.ranks
        weights = self.weight_bytes * (part if stage == 3 else 1)
        return self._bytes(weights, self.weight_bytes * part, FULL * part, self.moments * part)

    def fsdp(self) -> dict[str, int]:
        """FSDP2."""
        part = 1 / self.ranks
        return self._bytes(FULL * part, FULL * part, 0, self.moments * part)

    def _bytes(self, weights: float, gradients: float, masters: float, kept: float) -> dict[str, int]:
        """Return whole bytes of all parts, and their sum, from bytes a parameter; `kept`: numbers of the optimizer."""
        parts = {"weights": weights, "gradients": gradients, "masters": masters, "optimizer": FULL * kept}
        found = {name: size * self.parameters for name, size in parts.items()}
        return {name: round(size) for name, size in (found | {"total": sum(found.values())}).items()}
