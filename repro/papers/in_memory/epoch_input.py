"""An epoch of input: every sample's bytes into batches, from files or from memory that is shuffled between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from repro.papers.in_memory.options import EpochInputOptions
from repro.seams.measurement import FigureKind, Measuring, Post
from repro.seams.plugin import Setting


class EpochInput(EpochInputOptions):
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
