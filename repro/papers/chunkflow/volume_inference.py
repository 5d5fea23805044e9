"""Inference over a volume in overlapping chunks, by workers that share one queue of tasks."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from repro.core.errors import UsageError
from repro.core.machine import why_missing
from repro.papers.chunkflow.grid import Grid, Triple, why_no_grid, why_no_room
from repro.seams.measurement import FigureKind, Measurement, Measuring, Origin, Post
from repro.seams.plugin import Setting

FLOAT_BYTES = 4
OWN_SECONDS = 0.06
"""Of reading, inference and writing of a chunk, roughly: for the cost estimate only."""


class VolumeInference(Measurement):
    """One operation makes the tasks of a volume, and all ranks work until none is left; every rank is a worker.

    Wu, Silversmith, Lee and Seung, 2021, arXiv:1904.10489.
    """

    title: ClassVar[str] = "inference over a volume in overlapping chunks"
    items: ClassVar[str] = "voxels"
    always_shown: ClassVar[tuple[str, ...]] = ("overlap",)
    preload: ClassVar[tuple[str, ...]] = (
        "torch", "torch.distributed", "zarr", "repro.papers.chunkflow.volume_workers")
    figures: ClassVar[Mapping[str, FigureKind]] = {
        "seam_error": FigureKind("seam error, RMS, in SDs of the output", label="counted"),
        "largest_error": FigureKind("seam error, largest, in SDs of the output", label="counted"),
        "chunks": FigureKind("chunks", label="counted"),
        "computed": FigureKind("voxels computed for each voxel", label="counted"),
        "tasks_of_busiest": FigureKind("tasks of the busiest worker", label="counted"),
    }

    shape: Triple = Field((72, 48, 48), description="voxels of the volume on each axis")
    chunk: int = Field(24, ge=1, le=4096, description="voxels of a chunk on each axis")
    overlap: int = Field(8, ge=0, le=2048, description="voxels that neighbouring chunks share, at most half a chunk")
    queue: Literal["sqlite", "redis"] = Field("sqlite", description="where tasks wait; redis: a server on this machine")
    redis_port: int = Field(6379, ge=1, le=65535, description="port of that server on the loopback interface")
    delay_seconds: float = Field(0.0, ge=0, le=3600, description="emulated computation of a chunk: a sleep")
    visibility_seconds: float = Field(60.0, ge=0.1, le=86400, description="time after which an unfinished task is "
                                                                          "given out again")

    @property
    def origin(self) -> Origin:
        return "emulated" if self.delay_seconds else "measured"

    @property
    def grid(self) -> Grid:
        return Grid(self.shape, (self.chunk,) * 3, (self.overlap,) * 3)

    def items_per_operation(self, processes: int) -> int:
        return prod(self.shape)

    def expected_seconds(self, processes: int) -> float:
        return self.grid.chunks * (self.delay_seconds / processes + OWN_SECONDS)

    def unsupported(self, setting: Setting) -> str | None:
        return setting.lacks(self._missing) or why_no_grid(self.shape, (self.chunk,) * 3, (self.overlap,) * 3) or None

    def _missing(self) -> str | None:
        needed = ("zarr", "redis") if self.queue == "redis" else ("zarr",)
        return next((reason for name in needed if (reason := why_missing("papers", name, name))), None)

    def absent(self) -> str:
        folder = Path(tempfile.gettempdir())
        problem = why_no_room(folder, folder, self.grid, FLOAT_BYTES)
        if problem or self.queue == "sqlite":
            return problem
        from repro.papers.chunkflow.queues import open_queue

        try:
            open_queue(self.address("plan", Path()), make=True).remove()
        except UsageError as error:
            return str(error)
        return ""

    def address(self, name: str, folder: Path) -> str:
        """Return the address of a queue of this trial."""
        return (f"sqlite:{folder}/{name}.db" if self.queue == "sqlite" else
                f"redis://127.0.0.1:{self.redis_port}/0#repro-volume-{name}")

    def start(self, post: Post) -> Measuring:
        from repro.papers.chunkflow.volume_workers import Workers

        if self.queue == "redis":
            importlib.import_module("repro.papers.chunkflow.redis_queue")  # before any clock runs
        return Workers(self.grid, self.address, self.delay_seconds, self.visibility_seconds, post)
