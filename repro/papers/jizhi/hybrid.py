"""Hybrid: for every message size the fastest algorithm on these links."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from repro.comm.algorithm import Algorithm, Operation
from repro.comm.algorithms.doubling import Butterfly, HalvingDoubling
from repro.comm.algorithms.ring import Ring
from repro.comm.algorithms.tree import Multicolor, ParameterServer, ReductionTree
from repro.comm.schedule import Transfer
from repro.core import devices
from repro.seams.plugin import Setting

Name = Literal["direct", "butterfly", "halving-doubling", "ring", "tree", "multicolor", "backend"]
CANDIDATES: Mapping[Name, Algorithm] = {
    # A server on every rank: the ring's bytes in two rounds.
    "direct": ParameterServer(shards=1 << 20), "butterfly": Butterfly(), "halving-doubling": HalvingDoubling(),
    "ring": Ring(), "tree": ReductionTree(), "multicolor": Multicolor(),
    # The inner group's all-reduce: a ring (gloo) or NCCL's choice; modelled as a ring.
    "backend": Ring(),
}
TRIED_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
BATCH, MOST_TURNS = 4, 16
"""Calls of one candidate in a row, and most turns of a candidate at one size."""
DROP_RATIO = 1.4
"""After two turns (one for large messages) a candidate this much slower than the best is dropped: the time is better
spent on close ones."""
EQUAL_RATIO = 1.06
"""Measured times within this ratio count as equal."""
LARGEST_SHARE = 0.6
"""Share of `tuning_seconds` that one call of each candidate may take; larger sizes are extrapolated."""
KEEP_RATIO = 1.25
"""From KEEP_FROM_BYTES on, a candidate this much slower than the best is not tried at larger sizes: bytes decide there.
"""
KEEP_FROM_BYTES = 256 << 10

Curve = Sequence[tuple[int, float]]
"""(bytes, seconds) in order of bytes."""


class Hybrid(Algorithm):
    """Chooses an algorithm per message size.

    Source: Jia et al., arXiv:1807.11205, section 3.3 (hierarchical for small tensors, ring for large ones), with the
    choice left to measurement: Thakur, Rabenseifner and Gropp, 2005, choose by thresholds found the same way.

    1. With `alpha_seconds` and `beta_seconds` given (fitted beforehand, `repro bench comm`), a candidate's time is its
       alpha-beta-gamma cost. Otherwise the candidates are timed in turn when the group starts, before the training
       clock. Measured times vary, so under `determinism: bitwise` only the first is supported.
    2. Between tried sizes times are interpolated linearly, past the last along the line through the last two. A
       candidate that was dropped before a size is not chosen for larger messages.
    3. A message uses the candidate with the least time; all ranks decide by the slowest rank's times, so they agree.
       If that is the inner group's own all-reduce, or within EQUAL_RATIO of it, the message is delegated to the inner
       group; its bytes are not counted.
    """

    title: ClassVar[str] = "hybrid"
    own: ClassVar[tuple[Operation, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

    among: tuple[Name, ...] = Field(("direct", "butterfly", "halving-doubling", "tree", "ring", "backend"),
                                    min_length=1, description="the algorithms to choose from")
    alpha_seconds: float | None = Field(None, ge=0, description="latency of a message; null: measured at the start")
    beta_seconds: float | None = Field(None, ge=0, description="seconds per byte on a link")
    gamma_seconds: float = Field(0.0, ge=0, description="seconds per byte reduced")

    tuning_seconds: float = Field(8.0, gt=0, le=600, description="approximate time of the measurement at the start")

    _curves: dict[Name, Curve] = PrivateAttr(default_factory=dict)
    _picked: dict[tuple[int, int, int], Name] = PrivateAttr(default_factory=dict)
    """Cache: choosing takes about as long as a small message."""
    _trying: list[Name] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _both_or_none(self) -> Hybrid:
        if (self.alpha_seconds is None) != (self.beta_seconds is None):
            raise ValueError("alpha_seconds and beta_seconds must be given together")
        return self

    def unsupported(self, setting: Setting) -> str | None:
        if setting.determinism == "bitwise" and setting.processes > 1 and self.alpha_seconds is None:
            return ("it picks by measured times, so two runs may add in a different order, which is not bitwise; with "
                    "alpha_seconds and beta_seconds given (`repro bench comm` fits them) it picks by the model")
        return super().unsupported(setting)

    # ---- the choice

    def pick(self, world: int, size: int, itemsize: int = 4) -> Name:
        """Return the candidate for an all-reduce of `size` bytes."""
        if self._trying:
            return self._trying[0]
        key = (world, size, itemsize)
        if key not in self._picked:
            self._picked[key] = self._choose(world, size, itemsize)
        return self._picked[key]

    def _choose(self, world: int, size: int, itemsize: int) -> Name:
        usable = [name for name in self.among if CANDIDATES[name].runs("all_reduce", world)]
        if self._curves:
            # 2. only candidates tried up to this size
            far = min(size, max(curve[-1][0] for curve in self._curves.values()))
            usable = [name for name in usable if name in self._curves and self._curves[name][-1][0] >= far]
        # 3. the least time; the first listed if equal
        times = {name: self.seconds(name, world, size, itemsize) for name in usable}
        best = min(usable, key=times.__getitem__)
        # Within the scatter of measured times, the candidate that needs no interpreter is the safer choice.
        even = bool(self._curves) and times.get("backend", inf) <= EQUAL_RATIO * times[best]
        return "backend" if even else best

    def delegates(self, world: int, size: int, itemsize: int) -> bool:
        return self.pick(world, size, itemsize) == "backend"

    def seconds(self, name: Name, world: int, size: int, itemsize: int = 4) -> float:
        """Return the expected seconds of a candidate."""
        # 2. measured
        if name in self._curves:
            return interpolate(self._curves[name], size)
        # 1. modelled; on unknown links: 100 microseconds and 10 Gbit/s
        alpha = 1e-4 if self.alpha_seconds is None else self.alpha_seconds
        beta = 8e-10 if self.beta_seconds is None else self.beta_seconds
        return CANDIDATES[name].cost(world, size // itemsize, itemsize).seconds(alpha, beta, self.gamma_seconds)

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        return CANDIDATES[self.pick(world, count * itemsize, itemsize)].all_reduce(world, count, itemsize)

    def all_gather(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        return self._for("all_gather", world).all_gather(world, count, itemsize)

    def reduce_scatter(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        return self._for("reduce_scatter", world).reduce_scatter(world, count, itemsize)

    def broadcast(self, world: int, count: int, itemsize: int, root: int) -> Iterable[Transfer]:
        small = count * itemsize <= TRIED_BYTES[1]
        return (CANDIDATES["butterfly"] if small else CANDIDATES["ring"]).broadcast(world, count, itemsize, root)

    def _for(self, operation: Operation, world: int) -> Algorithm:
        """Return halving-doubling if the number of ranks allows it (the ring's bytes in fewer rounds), else the ring.
        """
        wide = CANDIDATES["halving-doubling"]
        return wide if wide.runs(operation, world) else CANDIDATES["ring"]

    def state(self) -> dict[str, Any]:
        """Return the measured times: other times would choose other algorithms, which sum in another order."""
        return {"curves": {name: [list(point) for point in curve] for name, curve in self._curves.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._curves = {name: [(int(size), float(seconds)) for size, seconds in state["curves"][name]]
                        for name in self.among if name in state["curves"]}
        self._picked.clear()
        if self._group is not None:
            self._group.reset()

    # ---- the measurement

    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        super().start(rank, world, device, timeout_seconds)
        if world > 1 and self.alpha_seconds is None:
            self._measure(world, device)

    def _measure(self, world: int, device: str) -> None:
        """Time the candidates in turn at every size; keep the median of the slowest rank's times."""
        assert self._group is not None
        names = [name for name in self.among if CANDIDATES[name].runs("all_reduce", world)]
        found: dict[Name, list[tuple[int, float]]] = {name: [] for name in names}
        for size in TRIED_BYTES:
            times, turn_seconds = self._time_candidates(names, size, device)
            for name, seconds in times.items():
                found[name].append((size, seconds))
            if size >= KEEP_FROM_BYTES:
                best = min(times.values())
                names = [name for name in names if times[name] <= KEEP_RATIO * best]
            # Four times the bytes take at most four times as long.
            if 4 * turn_seconds * len(names) / len(times) > LARGEST_SHARE * self.tuning_seconds:
                break
        self._curves = {name: curve for name, curve in found.items() if curve}
        self._picked.clear()
        self._group.reset()

    def _time_candidates(self, names: Sequence[Name], size: int, device: str) -> tuple[dict[Name, float], float]:
        """Return the seconds of each candidate at one size, and the seconds that the first turn of all took."""
        times: dict[Name, list[float]] = {name: [] for name in names}
        begin, first, close = time.perf_counter(), 0.0, list(names)
        for turn in range(MOST_TURNS):
            # One call for large messages: the first turn may use up the time.
            calls = BATCH if turn or size < KEEP_FROM_BYTES else 1
            for name in close:
                times[name] += self._slowest_rank(self._time_calls(name, size, calls, device), device)
            taken = self._slowest_rank([time.perf_counter() - begin], device)[0]
            first = first or taken
            if taken > self.tuning_seconds / len(TRIED_BYTES):
                break
            if turn or size >= KEEP_FROM_BYTES:  # large messages vary little
                best = min(median(times[name]) for name in close)
                close = [name for name in close if median(times[name]) <= DROP_RATIO * best]
        return {name: median(seconds) for name, seconds in times.items()}, first

    def _time_calls(self, name: Name, size: int, calls: int, device: str) -> list[float]:
        """Time calls of one candidate on this rank, after one untimed call."""
        import torch
        import torch.distributed as dist

        assert self._group is not None
        self._trying[:] = [name]
        self._group.reset()
        tensor = torch.zeros(size // 4, device=device)
        clock = self._group.lane.device  # on a GPU moments of the stream: the host may only submit
        start, moments = dist.BarrierOptions(), []
        start.device_ids = devices.gpus_of(device)  # by itself NCCL takes the rank's number among this node's GPUs
        for _ in range(1 + calls):
            # All ranks start together and on idle links, as when training waits for a sum.
            with self._group.finder.naming_missing_rank():
                self._group.inner.barrier(start).wait()
            begin = clock.stamp()
            dist.all_reduce(tensor)
            moments.append((begin, clock.stamp()))
        self._trying.clear()
        return [clock.seconds(end) - clock.seconds(begin) for begin, end in moments[1:]]

    def _slowest_rank(self, seconds: Sequence[float], device: str) -> list[float]:
        """Return the elementwise maximum over all ranks, equal on all of them."""
        import torch
        import torch.distributed as dist

        assert self._group is not None
        values = torch.tensor(seconds, dtype=torch.float64, device=device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]  # torch takes the member of its enum
        with self._group.finder.naming_missing_rank():
            self._group.inner.allreduce([values], options).wait()
        return values.tolist()

    def effective(self) -> str:
        return f"{super().effective()}; picks {self.picks()}" if self._group else super().effective()

    def picks(self) -> str:
        """Describe the choice by message size, for example `direct to 32 KiB, ring above`."""
        assert self._group is not None
        sizes = [1 << power for power in range(10, 27)]
        names = [self.pick(self._group.world, size) for size in sizes]
        changes = [f"{before} to {size >> 10} KiB"
                   for (before, after), size in zip(pairwise(names), sizes, strict=False) if before != after]
        return ", ".join([*changes, f"{names[-1]} above" if changes else names[-1]])


def interpolate(curve: Curve, size: int) -> float:
    """Return the seconds at `size`: linear between points, constant below the first, extrapolated past the last."""
    if len(curve) == 1 or size <= curve[0][0]:
        return curve[0][1]
    at = min(max(1, bisect_left([point for point, _ in curve], size)), len(curve) - 1)
    (left, low), (right, high) = curve[at - 1], curve[at]
    slope = max(0.0, (high - low) / (right - left))
    return low + slope * (size - left)
