"""What a suite says about the reading of batches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from repro.suite.field_problem import FieldProblem, SuitePart

AHEAD = 2
"""Micro-batches that an input worker reads ahead if the suite does not say."""


class Input(SuitePart):
    """Reading of batches on each rank, if the workload reads samples (`Workload.reads_samples`)."""

    workers: int = Field(0, ge=0, le=256, description="input worker processes per rank; 0: read inside the timed step")
    ahead: int | None = Field(None, ge=1, le=1024,
                              description=f"micro-batches that each worker reads ahead; null: {AHEAD} with workers")
    order: Literal["planned", "stream"] = Field(
        "planned", description="planned: drawn from the seed; stream: the order of the data, in which each rank reads "
                               "its shard from beginning to end; unpaired by order")

    @model_validator(mode="after")
    def _ahead_of_workers(self) -> Input:
        if self.ahead is not None and not self.workers:
            raise FieldProblem("with 0 workers nothing is read ahead: leave `ahead` out, or give workers", ("ahead",))
        return self

    @property
    def depth(self) -> int:
        """Micro-batches that each worker reads ahead; 0 without workers."""
        return (self.ahead or AHEAD) if self.workers else 0
