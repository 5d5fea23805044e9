"""Entry of one rank of `repro bench comm`: links first, then every size with all algorithms in turn.

Rank 0 writes every finding at once as a JSON line; the launching process follows that file.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from repro.bench.comm.result import ITEMSIZE, tunes
from repro.comm.algorithm import Algorithm
from repro.comm.cost_model import LinkModel, Sample, fit, transfer, typical_error
from repro.core.errors import TrialError
from repro.core.random_streams import Streams

FOUND = "comm.jsonl"
"""File of the findings, in the folder of the launch."""
PROBES = (3072, 49152, 393216, 1572864)
"""Bytes of the small collectives to which the model is fitted; between the sizes measured later."""
PROBE_SECONDS = 0.5
SHORT_SECONDS, MOST_CALLS, MOST_BYTES = 0.004, 16, 4 << 20
"""Shorter calls are timed several at once, as in nccl-tests: reading the clock between them would count."""
DTYPE = torch.float32
SIZES = (1024, 16384, 262144)
"""Bytes of the messages that measure a link, but for the large one."""
LONG_SECONDS, LEAST, MOST = 0.15, 1 << 19, 1 << 24
"""The large message keeps the slowest link busy for LONG_SECONDS, within LEAST and MOST bytes."""
POINT_SECONDS = 0.3
TRIES, ENOUGH = 3, 0.97
"""A link below this share of the fastest was held up by other work, or is slower: it is measured again, at most so many
times, and the best is kept. A bound that rests on a held-up link is one that measured times undercut."""


def links(world: int) -> list[tuple[int, int]]:
    """Return the links from every rank to the next; two ranks have one link."""
    return [(sender, (sender + 1) % world) for sender in range(world if world > 2 else world - 1)]


def measure_links(rank: int, world: int, group: Any) -> list[dict[str, Any]]:
    """Measure every link; return one entry per link and size with one-way seconds, equal on all ranks.

    1. Small messages, for latency.
    2. The size of a message large enough to show the rate, from the slowest link.
    3. That message over every link.
    4. Again over links that look slow.
    """
    found = [_time(group, rank, *link, size) for link in links(world) for size in SIZES]
    slowest = min(item["size"] / min(item["seconds"]) for item in _known(group, found) if item["size"] == SIZES[-1])
    large = min(MOST, max(LEAST, int(slowest * LONG_SECONDS) // 4096 * 4096))
    found += [_time(group, rank, *link, large) for link in links(world)]
    for _ in range(TRIES):
        if not (slow := _slow(_known(group, found), large)):
            break
        found += [_time(group, rank, *link, large) for link in slow]
    return _known(group, found)


def _slow(found: list[dict[str, Any]], size: int) -> list[tuple[int, int]]:
    """Return the links whose best transfer of `size` bytes took much longer than the fastest link's."""
    best: dict[tuple[int, int], float] = {}
    for item in found:
        if item["size"] == size:
            link = (item["sender"], item["receiver"])
            best[link] = min([*item["seconds"], best.get(link, float("inf"))])
    return sorted(link for link, seconds in best.items() if ENOUGH * seconds > min(best.values()))


def _known(group: Any, found: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Gather the times of all ranks."""
    mine = [item for item in found if item is not None]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine, group=group)
    return [item for items in gathered for item in items]


def _time(group: Any, rank: int, sender: int, receiver: int, size: int) -> dict[str, Any] | None:
    """Time half round trips of one message; returns None on all ranks but the sender."""
    block = torch.zeros(size, dtype=torch.uint8)
    dist.barrier(group)
    if rank not in (sender, receiver):
        return None
    trips = _trips(_round(group, rank, sender, receiver, block), group, rank, sender, receiver)
    seconds = [_round(group, rank, sender, receiver, block) / 2 for _ in range(trips)]
    if rank != sender:
        return None
    return {"sender": sender, "receiver": receiver, "size": size, "seconds": seconds, "median": median(seconds)}


def _trips(first: float, group: Any, rank: int, sender: int, receiver: int) -> int:
    """Return the number of trips, decided by the sender from the first (warm-up) trip."""
    box = torch.tensor([min(12, max(3, int(POINT_SECONDS / max(first, 1e-6))))])
    if rank == sender:
        dist.send(box, receiver, group=group)
    else:
        dist.recv(box, sender, group=group)
    return int(box)


def _round(group: Any, rank: int, sender: int, receiver: int, block: torch.Tensor) -> float:
    begin = time.perf_counter()
    if rank == sender:
        dist.send(block, receiver, group=group)
        dist.recv(block, receiver, group=group)
    else:
        dist.recv(block, sender, group=group)
        dist.send(block, sender, group=group)
    return time.perf_counter() - begin


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


def measure_rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry of one rank.

    Args:
        payload: `contenders` (label, target, options), `sizes` (bytes), `repetitions`, `seconds` (of one algorithm
            at one size), `seed`, `timeout`.
    """
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    contenders, control = _groups(payload, rank, world)
    # Collecting garbage among everything that torch has loaded takes tens of milliseconds.
    gc.freeze()
    with Path(folder, FOUND if rank == 0 else os.devnull).open("a", encoding="utf-8") as out:
        RankBench(rank, world, contenders, control, payload, out).run()
    dist.barrier(control)
    dist.destroy_process_group()


def _groups(payload: Mapping[str, Any], rank: int, world: int) -> tuple[list[Contender], Any]:
    """Create the contenders, each with its group, and a gloo group for all unmeasured traffic."""
    timeout = timedelta(seconds=payload["timeout"])
    contenders = [Contender(chosen) for chosen in payload["contenders"]]
    leader = next((item for item in contenders if item.tunes), None)
    if leader:
        leader.lead(rank, world, payload["timeout"])
    else:
        dist.init_process_group("gloo", timeout=timeout)
    for index, contender in enumerate(contenders):
        if contender is not leader:
            contender.join(index, rank, world, payload["timeout"])
    return contenders, dist.new_group(backend="gloo", timeout=timeout)


class RankBench:
    """One rank's measurements at one world size."""

    def __init__(
        self, rank: int, world: int, contenders: Sequence[Contender], control: Any, payload: Mapping[str, Any], out: Any
    ) -> None:
        self.rank, self.world, self.contenders, self.control = rank, world, contenders, control
        self.payload, self.out = payload, out
        self.model = LinkModel(0.0, 0.0)

    def run(self) -> None:
        """Measure links, model and every size, and report what ran."""
        self.fit()
        for size in self.payload["sizes"]:
            self.size(size)
        for contender in self.contenders:
            self._report("effective", algorithm=contender.label, text=contender.effective())

    def fit(self) -> None:
        """Fit the model to the links and small collectives on them; all ranks get the same model."""
        links = measure_links(self.rank, self.world, self.control)
        samples = [Sample(transfer(item["size"]), item["median"]) for item in links]
        self.model = fit(samples)
        for size in PROBES:
            samples += self._probe(size // ITEMSIZE)
        self.model = fit(samples)
        self._report("links", links=links, model={
            "alpha": self.model.alpha, "beta": self.model.beta, "gamma": self.model.gamma, "samples": len(samples),
            "error": typical_error(self.model, samples),
        })

    def _probe(self, count: int) -> list[Sample]:
        """Time every algorithm that the links' model predicts to be short, at one size."""
        numbers = Numbers(count, 1, self.rank, self.world, self.control)
        found = []
        for contender in self.contenders:
            if contender.algorithm is None:
                continue
            cost = contender.algorithm.cost(self.world, count, ITEMSIZE)
            if self.model.seconds(cost) < PROBE_SECONDS:
                numbers.timed(contender)
                seconds = self._slowest([[numbers.timed(contender) for _ in range(3)]])[0]
                found.append(Sample(cost, sorted(seconds)[1]))
        return found

    def size(self, size: int) -> None:
        """Time all algorithms at one size, in an order drawn for every repetition."""
        count = size // ITEMSIZE
        chosen = [item for item in self.contenders if self._affordable(item, count)]
        numbers = Numbers(count, 1, self.rank, self.world, self.control)
        sent = [self._first(item, numbers) for item in chosen]
        pilots = [min(row) for row in self._slowest([[numbers.timed(item) for _ in range(2)] for item in chosen])]
        # Equal for all algorithms at a size, so that pairs are comparable.
        calls = max(1, min(math.ceil(SHORT_SECONDS / min(pilots)), MOST_CALLS, MOST_BYTES // size))
        fitting = int(self.payload["seconds"] / (max(pilots) * calls))
        repetitions = max(2, min(self.payload["repetitions"], fitting))
        numbers = Numbers(count, calls, self.rank, self.world, self.control)
        times = [[0.0] * repetitions for _ in chosen]
        for repetition in range(repetitions):
            stream = Streams(self.payload["seed"], repetition).generator("bench-comm-order", self.world, size)
            for index in stream.permutation(len(chosen)):
                times[index][repetition] = numbers.timed(chosen[index])
        slowest = self._slowest(times)
        box = torch.tensor([-1 if item is None else item for item in sent], dtype=torch.int64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self.control)
        for item, seconds, most in zip(chosen, slowest, box.tolist(), strict=True):
            self._report("point", algorithm=item.label, size=size, seconds=seconds, calls=calls,
                         sent_bytes=None if most < 0 else most, **self._formulas(item, count))

    def _formulas(self, contender: Contender, count: int) -> dict[str, Any]:
        """Compute formulas from the object that ran: a tuned algorithm has chosen its schedule there."""
        algorithm = contender.algorithm
        if algorithm is None:
            return {"formula_bytes": None, "path_bytes": None, "model_seconds": None}
        sent, _, cost = algorithm.load("all_reduce", self.world, count, ITEMSIZE)
        return {"formula_bytes": max(sent), "path_bytes": cost.path_bytes, "model_seconds": self.model.seconds(cost)}

    def _affordable(self, contender: Contender, count: int) -> bool:
        """Return True if three modelled calls fit the budget; equal on all ranks."""
        if contender.algorithm is None:
            return True
        modelled = self.model.seconds(contender.algorithm.cost(self.world, count, ITEMSIZE))
        budget = float(self.payload["seconds"])
        if 3 * modelled > budget:
            self._report("skipped", algorithm=contender.label, size=count * ITEMSIZE,
                       reason=f"modelled {modelled:.3g} s per call: three exceed the budget of {budget:g} s")
        return 3 * modelled <= budget

    def _first(self, contender: Contender, numbers: Numbers) -> int | None:
        """Return the bytes of one call, which is also the warm-up."""
        contender.sent()
        numbers.timed(contender)
        return contender.sent()

    def _slowest(self, times: list[list[float]]) -> list[list[float]]:
        """Return the elementwise maximum over ranks, on every rank."""
        box = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self.control)
        found: list[list[float]] = box.tolist()
        return found

    def _report(self, kind: str, **values: Any) -> None:
        print(json.dumps({"kind": kind, **values}), file=self.out, flush=True)
