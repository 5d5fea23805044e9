"""The options of the measurement `epoch-input`; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from repro.seams.measurement import Measurement


class EpochInputOptions(Measurement):
    """What is read, and from where."""

    store: Literal["files", "memory"] = Field(description="a file a sample, or a part of all in each rank's memory")
    cache: Literal["warm", "cold"] = Field("warm", description="files: in the page cache before each epoch, or evicted")
    samples: int = Field(2048, ge=1, le=10_000_000, description="samples of an epoch, over all ranks")
    sample_bytes: int = Field(12288, ge=2, le=1 << 26, description="mean bytes of a sample, of half to 1.5 times that")
    batch: int = Field(64, ge=1, le=1 << 16, description="samples of a batch of one rank")
    shuffle_every: int = Field(1, ge=0, description="memory: epochs from one global shuffle to the next; 0: none")
    chunk_mib: int = Field(4, ge=1, le=1 << 12, description="memory: MiB that a rank receives in one all-to-all")
