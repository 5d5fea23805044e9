"""One algorithm on one rank, with a separate process group, and the numbers that it sums."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from repro.bench.comm.world import ITEMSIZE, tunes
from repro.comm.algorithm import Algorithm
from repro.core.errors import TrialError

DTYPE = torch.float32


class Contender:
    """An algorithm, or the backend's all-reduce, over separate links."""

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        self.label = str(chosen["label"])
        module, _, name = str(chosen["target"]).partition(":")
        plugin = getattr(importlib.import_module(module), name).model_validate(chosen["options"])
        self.algorithm: Algorithm | None = plugin if isinstance(plugin, Algorithm) else None
        self.tunes = tunes(plugin)
        self._group: Any = None
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = False

    def lead(self, rank: int, world: int, timeout: float) -> None:
        """Create the default group: an algorithm that measures its links does so in `start`, on that group."""
        assert self.algorithm is not None
        self.algorithm.start(rank, world, "cpu", timeout)
        self._group = dist.distributed_c10d._get_default_group()

    def join(self, index: int, rank: int, world: int, timeout: float) -> None:
        """Create a separate group, number `index`."""
        store = PrefixStore(f"bench{index}", dist.distributed_c10d._get_default_store())
        limit = timedelta(seconds=timeout)
        if self.algorithm is None:
            self._group = dist.ProcessGroupGloo(PrefixStore("inner", store), rank, world, limit)
            return
        from repro.comm.runtime.group import make_group
        from repro.comm.runtime.meter import Meter

        self._group = make_group(self.algorithm, Meter(), store, rank, world, limit)

    def reduce(self, tensor: torch.Tensor) -> None:
        """Sum over ranks, in place, with the options of `dist.all_reduce`."""
        self._group.allreduce([tensor], self._options).wait()

    def sent(self) -> int | None:
        """Return the bytes that this rank has sent since the last call; None: the backend does not count."""
        if self.algorithm is None:
            return None
        known = [line["sent_bytes"] for line in self._group.meter.take()["lines"]]
        return None if None in known else sum(known)

    def effective(self) -> str:
        """Describe what ran, as read from the group."""
        if self.algorithm is None:
            return "gloo"
        return self.algorithm.effective() if self.tunes else str(self._group.describe())


class Numbers:
    """Numbers summed at one size: integers, so that the sum is exact in any order.

    Rank r adds (r + 1) x_i + r with x_i = i mod 13 - 6; a rank that is missing, added twice or misplaced changes the
    sum.
    """

    def __init__(self, count: int, calls: int, rank: int, world: int, control: Any) -> None:
        pattern = (torch.arange(count) % 13 - 6).to(DTYPE)
        self.rank, self.world, self.control = rank, world, control
        self.own = (rank + 1) * pattern + rank
        self.expected = world * (world + 1) // 2 * pattern + world * (world - 1) // 2
        self.buffers = torch.empty(calls, count, dtype=DTYPE)

    def timed(self, contender: Contender) -> float:
        """Time one call on new numbers, all ranks starting together; check the sums afterwards.

        Raises:
            TrialError: a sum is wrong.
        """
        self.buffers.copy_(self.own)
        rows = list(self.buffers)
        dist.barrier(self.control)
        begin = time.perf_counter()
        for row in rows:
            contender.reduce(row)
        seconds = (time.perf_counter() - begin) / len(rows)
        self._check(contender.label)
        return seconds

    def _check(self, label: str) -> None:
        for row in self.buffers:
            if not torch.equal(row, self.expected):
                at = int(torch.nonzero(row != self.expected)[0])
                raise TrialError(
                    f"{label} on {self.world} ranks, {len(row) * ITEMSIZE} bytes: element {at} on rank {self.rank} is "
                    f"{float(row[at]):g}, not {float(self.expected[at]):g}"
                )
