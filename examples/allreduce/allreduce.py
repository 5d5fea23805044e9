"""A measurement in one file: the all-reduce of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from repro.seams.measurement import Check, Counted, FigureKind, Findings, Measurement, Measuring, Post


class AllReduce(Measurement):
    """The sum of one tensor over all ranks."""

    title: ClassVar[str] = "all-reduce of one float64 tensor"
    items: ClassVar[str] = "numbers"  # what an operation processes; throughput is in numbers a second
    figures: ClassVar[Mapping[str, FigureKind]] = {
        "kept_bytes": FigureKind("bytes of the tensor on a rank", "bytes", label="counted"),
    }
    count: int = Field(1000, ge=1)  # an option: `measurement: {kind: "allreduce.py:AllReduce", count: 4000}`

    def items_per_operation(self, processes: int) -> int:
        return self.count

    def start(self, post: Post) -> Measuring:
        return Summing(self, post)


class Summing(Measuring):
    """One rank."""

    def __init__(self, options: AllReduce, post: Post) -> None:
        import torch

        self.post = post
        values = [post.streams.generator("values", rank).standard_normal(options.count) for rank in range(post.world)]
        self.own = torch.from_numpy(values[post.rank]).to(post.device)
        self.right = torch.from_numpy(sum(values)).to(post.device)
        self.sum = torch.empty_like(self.own)

    def operate(self) -> None:
        import torch.distributed as dist

        self.sum.copy_(self.own)
        if self.post.world > 1:  # one rank has no process group
            dist.all_reduce(self.sum)

    def finish(self, counted: Counted) -> Findings:
        error = (self.sum - self.right).abs().max().item()
        return Findings((Check("sum against all values on one rank", error, 1e-12),), {"kept_bytes": self.sum.nbytes})

    def effective(self) -> dict[str, str]:
        return {"dtype": str(self.sum.dtype).removeprefix("torch.")}
