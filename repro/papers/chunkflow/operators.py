"""Operators: each takes a chunk of a grid and returns it, changed or written. A worker applies a chain of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from repro.core.devices import on_gpu
from repro.core.errors import UsageError
from repro.papers.chunkflow.grid import Grid, shown
from repro.papers.chunkflow.store import Output, open_volume

NetName = Literal["identity", "conv"]
SEED = 20190423
"""Of the weights; they are the same everywhere."""
CHANNELS = 4
DILATIONS = (1, 2, 4)
RADIUS = sum(DILATIONS)
"""Voxels on each side that an output voxel of `conv` depends on."""

Net = Callable[[np.ndarray], np.ndarray]


def net(name: NetName, device: str = "cpu") -> Net:
    """Return a function from a volume to one of the same shape; `conv` pads with zeros outside of what it is given."""
    if name == "identity":
        return lambda data: data
    model = conv_net(device)

    def infer(data: np.ndarray) -> np.ndarray:
        import torch

        # TensorFloat-32, the default of convolutions on GPUs, rounds to more than the limit of the check.
        with torch.inference_mode(), torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
            given = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(device)
            found: np.ndarray = model(given[None, None])[0, 0].cpu().numpy()
        return found

    return infer


def conv_net(device: str) -> Any:
    """Return three 3-D convolutions of 3x3x3, dilated 1, 2 and 4, float32, with weights from `SEED`.

    Raises:
        UsageError: `device` is no CPU, and there is no GPU.
    """
    import torch
    from torch import nn

    if on_gpu(device) and not torch.accelerator.is_available():
        raise UsageError(f"device {device}: this machine has no usable GPU; use cpu")
    generator = torch.Generator().manual_seed(SEED)
    layers: list[nn.Module] = []
    for place, dilation in enumerate(DILATIONS):
        inputs, outputs = 1 if place == 0 else CHANNELS, CHANNELS if place < len(DILATIONS) - 1 else 1
        layer = nn.Conv3d(inputs, outputs, 3, padding=dilation, dilation=dilation)
        for parameter in layer.parameters():
            scale = (27 * inputs) ** -0.5
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(device).eval()


NEAR = 2
"""Neighbours on each side that can share a voxel with a chunk, the shifted last one included."""


def weights(grid: Grid, index: int) -> np.ndarray:
    """Return the weights of a chunk's voxels: float64, of the chunk's shape. Weights of all chunks at a voxel sum to 1
    up to rounding; where only one chunk reaches, its weight is exactly 1.
    """
    first, second, third = (_on_axis(grid.starts(axis), place, grid.chunk[axis])
                            for axis, place in enumerate(grid.place(index)))
    found: np.ndarray = first[:, None, None] * second[None, :, None] * third[None, None, :]
    return found


def _on_axis(starts: list[int], place: int, length: int) -> np.ndarray:
    voxels = np.arange(starts[place], starts[place] + length)
    near = starts[max(0, place - NEAR):place + NEAR + 1]
    logs = np.stack([_log_bump(voxels - start, length) for start in near])
    # Relative to the largest: exp(-1 / (1 - x^2)) alone underflows at the border of a chunk of 1,500 voxels.
    logs -= logs.max(axis=0)
    bumps = np.exp(logs)
    found: np.ndarray = bumps[near.index(starts[place])] / bumps.sum(axis=0)
    return found


def _log_bump(offsets: np.ndarray, length: int) -> np.ndarray:
    """Return -1 / (1 - x^2) at the centres of voxels; minus infinity outside the chunk."""
    x = (2 * offsets + 1) / length - 1
    inside = (offsets >= 0) & (offsets < length)
    return np.where(inside, -1 / np.where(inside, 1 - x * x, 1.0), -np.inf)


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk on its way through the operators."""

    index: int
    """Place in the grid."""
    data: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0)))


class Operator(ABC):
    """One step of a chain."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, piece: Piece, grid: Grid) -> Piece:
        """Return the piece after this step."""


class Read(Operator):
    """Read the chunk from a Zarr array."""

    name: ClassVar[str] = "read"

    def __init__(self, path: str) -> None:
        self.path, self.volume = path, open_volume(path)

    def apply(self, piece: Piece, grid: Grid) -> Piece:
        return Piece(piece.index, np.asarray(self.volume[grid.box(piece.index)]))


class Infer(Operator):
    """Run a network on the chunk."""

    name: ClassVar[str] = "infer"

    def __init__(self, which: NetName, device: str = "cpu") -> None:
        self.net: Net = net(which, device)

    def apply(self, piece: Piece, grid: Grid) -> Piece:
        return Piece(piece.index, self.net(piece.data))


class Delay(Operator):
    """Sleep: computation that is emulated."""

    name: ClassVar[str] = "delay"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def apply(self, piece: Piece, grid: Grid) -> Piece:
        time.sleep(self.seconds)
        return piece


class Blend(Operator):
    """Multiply the chunk by its normalised bump, in float64."""

    name: ClassVar[str] = "blend"

    def apply(self, piece: Piece, grid: Grid) -> Piece:
        return Piece(piece.index, piece.data * weights(grid, piece.index))


class Write(Operator):
    """Write the weighted chunk, and the blocks that are complete with it."""

    name: ClassVar[str] = "write"

    def __init__(self, path: str) -> None:
        self.output = Output(path)

    def apply(self, piece: Piece, grid: Grid) -> Piece:
        self.output.write(piece.index, piece.data)
        return piece


def checked_output(chain: Sequence[Operator]) -> Output:
    """Return the output of a chain that can run.

    Raises:
        UsageError: the chain does not begin with read or end with blend and write, has one of them twice, or reads a
            volume of another shape.
    """
    names = [item.name for item in chain]
    if names[:1] != ["read"] or names[-2:] != ["blend", "write"] or any(
            names.count(each) > 1 for each in ("read", "blend", "write")):
        raise UsageError(f"the chain {' '.join(names) or '(empty)'} cannot run; write it as: read V infer --net NAME "
                         "blend write OUT")
    first: Any = chain[0]
    last: Any = chain[-1]
    output: Output = last.output
    if tuple(first.volume.shape) != output.grid.shape:
        raise UsageError(f"{first.path}: is {shown(tuple(first.volume.shape))}, and the output was made for "
                         f"{shown(output.grid.shape)}; create the tasks again")
    return output
