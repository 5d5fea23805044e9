"""The weights by which overlapping chunks are blended: a bump, normalised so that they sum to one at every voxel.

The bump is exp(sum over axes of -1 / (1 - x^2)), x from -1 to 1 across the chunk (Wu, Silversmith, Lee and Seung, 2021,
arXiv:1904.10489). It is a product over axes, and so is the grid; therefore every axis is normalised alone.
"""

from __future__ import annotations

import numpy as np

from repro.papers.chunkflow.grid import Grid

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
