"""An epoch of input: every sample's bytes into batches, from files or from memory that is shuffled between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from repro.seams.measurement import FigureKind, Measurement, Measuring, Post
from repro.seams.plugin import Setting


class EpochInput(Measurement):
    """In memory: one blob and an index, a part a rank, a periodic global shuffle (Sreedhar et al. 2017)."""

    title: ClassVar[str] = "input of one epoch"
    items: ClassVar[str] = "samples"
    always_shown: ClassVar[tuple[str, ...]] = ("store", "cache")
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed", "repro.papers.in_memory.running")
    figures: ClassVar[Mapping[str, FigureKind]] = {
        "held_bytes": FigureKind("samples in a rank's memory", "bytes", label="counted"),
        "resident_before": FigureKind("share of the files' pages in the page cache before an epoch", "", "higher"),
        "load_seconds": FigureKind("reading a rank's part into memory, once", "s"),
        "shuffle_seconds": FigureKind("shuffle between ranks, of an epoch that has one", "s"),
        "shuffle_bytes": FigureKind("bytes that a rank sends to others in a shuffle", "bytes", label="counted"),
    }

    store: Literal["files", "memory"] = Field(description="a file a sample, or a part of all in each rank's memory")
    cache: Literal["warm", "cold"] = Field("warm", description="files: in the page cache before each epoch, or evicted")
    samples: int = Field(2048, ge=1, le=10_000_000, description="samples of an epoch, over all ranks")
    sample_bytes: int = Field(12288, ge=2, le=1 << 26, description="mean bytes of a sample, of half to 1.5 times that")
    batch: int = Field(64, ge=1, le=1 << 16, description="samples of a batch of one rank")
    shuffle_every: int = Field(1, ge=0, description="memory: epochs from one global shuffle to the next; 0: none")
    chunk_mib: int = Field(4, ge=1, le=1 << 12, description="memory: MiB that a rank receives in one all-to-all")

    def items_per_operation(self, processes: int) -> int:
        return self.samples

    def expected_seconds(self, processes: int) -> float:
        return self.samples * (self.sample_bytes / 1e9 + (1e-4 if self.store == "files" else 1e-5))

    def unsupported(self, setting: Setting) -> str | None:
        if self.samples < setting.processes:
            return f"{self.samples} samples are fewer than {setting.processes} processes"
        if self.store == "memory" and self.cache == "cold":
            return "samples in memory are always warm; cache: cold is for files"
        if setting.device != "cpu":
            return "input is read by the CPU; use device: cpu"
        return None

    def start(self, post: Post) -> Measuring:
        from repro.papers.in_memory.running import Running

        return Running(self, post)
