"""Entry of one rank of `repro bench comm`: links first, then every size with all algorithms in turn.

Rank 0 writes every finding at once as a JSON line; the launching process follows that file.
"""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from repro.bench.comm.bench import FOUND
from repro.bench.comm.contender import Contender, Numbers
from repro.bench.comm.links import measure_links
from repro.bench.comm.world import ITEMSIZE
from repro.comm.cost_model import LinkModel, Sample, fit, transfer, typical_error
from repro.core.random_streams import Streams

PROBES = (3072, 49152, 393216, 1572864)
"""Bytes of the small collectives to which the model is fitted; between the sizes measured later."""
PROBE_SECONDS = 0.5
SHORT_SECONDS, MOST_CALLS, MOST_BYTES = 0.004, 16, 4 << 20
"""Shorter calls are timed several at once, as in nccl-tests: reading the clock between them would count."""


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
        pilots = [min(row) for row in self._slowest([self._pilot(item, numbers) for item in chosen])]
        calls, repetitions = how_often(pilots, size, self.payload["seconds"], self.payload["repetitions"])
        numbers = Numbers(count, calls, self.rank, self.world, self.control)
        times = [[0.0] * repetitions for _ in chosen]
        for repetition in range(repetitions):
            stream = Streams(self.payload["seed"], repetition).generator("bench-comm-order", self.world, size)
            for index in stream.permutation(len(chosen)):
                times[index][repetition] = numbers.timed(chosen[index])
        slowest, busiest = self._slowest(times), self._busiest(sent)
        for item, seconds, most in zip(chosen, slowest, busiest, strict=True):
            self._report("point", algorithm=item.label, size=size, seconds=seconds, calls=calls, sent_bytes=most,
                       **self._formulas(item, count))

    def _formulas(self, contender: Contender, count: int) -> dict[str, Any]:
        """Compute formulas from the object that ran: a tuned algorithm has chosen its schedule there."""
        algorithm = contender.algorithm
        if algorithm is None:
            return {"formula_bytes": None, "path_bytes": None, "model_seconds": None}
        cost = algorithm.cost(self.world, count, ITEMSIZE)
        return {"formula_bytes": algorithm.busiest(self.world, count, ITEMSIZE).sent, "path_bytes": cost.path_bytes,
                "model_seconds": self.model.seconds(cost)}

    def _affordable(self, contender: Contender, count: int) -> bool:
        """Return True if three modelled calls fit the budget; equal on all ranks."""
        if contender.algorithm is None:
            return True
        modelled = self.model.predict(contender.algorithm, self.world, count, ITEMSIZE)
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

    def _pilot(self, contender: Contender, numbers: Numbers) -> list[float]:
        return [numbers.timed(contender) for _ in range(2)]

    def _slowest(self, times: list[list[float]]) -> list[list[float]]:
        """Return the elementwise maximum over ranks, on every rank."""
        box = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self.control)
        found: list[list[float]] = box.tolist()
        return found

    def _busiest(self, sent: Sequence[int | None]) -> list[int | None]:
        """Return the maximum over ranks."""
        box = torch.tensor([-1 if item is None else item for item in sent], dtype=torch.int64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self.control)
        return [None if item < 0 else int(item) for item in box.tolist()]

    def _report(self, kind: str, **values: Any) -> None:
        print(json.dumps({"kind": kind, **values}), file=self.out, flush=True)


def how_often(pilots: Sequence[float], size: int, seconds: float, most: int) -> tuple[int, int]:
    """Return (calls timed at once, repetitions), equal for all algorithms at a size so that pairs are comparable."""
    calls = math.ceil(SHORT_SECONDS / min(pilots))
    calls = max(1, min(calls, MOST_CALLS, MOST_BYTES // size))
    return calls, max(2, min(most, int(seconds / (max(pilots) * calls))))
