"""A worker of a parameter server, the shard that its process may hold, and the processes that hold shards alone."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from repro.core.errors import TrialError
from repro.engines.plain.loop import LoopSession
from repro.engines.plain.state import Buffers, RandomStates, class_of, options_of
from repro.papers.server.overview import Attendant, Overview, naming_shard
from repro.papers.server.rules import Rules
from repro.papers.server.service import (
    FAIL,
    FIRST,
    GRADIENT,
    LEAVE,
    PUSH,
    RATED,
    REPLY,
    Counts,
    Links,
    Service,
    bits,
    header,
    own_part,
)
from repro.papers.server.shard import Shard, divide
from repro.seams.training import Batch, Job, ServerWork, TrainingParts


def serve_apart(
    parts: TrainingParts, job: Job, rules: Rules, homes: Sequence[int], divide_by_staleness: bool,
    work_of: Callable[[int], ServerWork] | None,
) -> None:
    """Hold one shard until every worker has left and rank 0 has ended the run."""
    number = homes.index(job.rank)
    named = [(name, parameter) for name, parameter in parts.model.named_parameters() if parameter.requires_grad]
    division = divide([parameter.numel() for _, parameter in named], len(homes))
    shard = Shard([named[index] for index in division[number]], rules, job.optimizer, divide_by_staleness)
    ranks = job.world + len(homes)
    found, _, _ = next(rendezvous("env://", job.rank, ranks, timeout=timedelta(seconds=job.timeout_seconds)))
    store = own_part(found)
    links = Links(job.rank, ranks, job.timeout_seconds, store)
    service = Service(shard, links, Counts())
    if work_of is not None:
        shard.begin(work_of(rules.group * job.micro_batch * job.accumulation), deals=number == 0)
    service.start()
    attendant = Attendant(service, apart=True)
    attendant.start()
    if number == 0:  # stated for the workers, which step no optimizer
        store.set("optimizer", json.dumps(_stepped(shard.optimizer)))
    attendant.end()
    service.join()
    links.close()


def _stepped(optimizer: Any) -> dict[str, str]:
    return {"optimizer": class_of(optimizer), "optimizer_options": options_of(optimizer)}


class ServerSession(LoopSession):
    """Computes gradients, pushes them to every shard, pulls the weights.

    In lock step `update` does all of this, and the ordinary loop trains; else the loop for asynchronous engines calls
    `exchange`: its workers go on without waiting for one another, and it and `snapshot` run in two threads.

    Args:
        homes: rank of each shard: a worker's, or behind those of the workers.
    """

    def __init__(
        self, parts: TrainingParts, job: Job, rules: Rules, homes: Sequence[int], divide_by_staleness: bool
    ) -> None:
        super().__init__(parts, job)
        self.rules, self.counts, self.homes = rules, Counts(), homes
        named, shards = self.trained(), len(homes)
        if shards > len(named):
            raise TrialError(f"{shards} shards are more than the model's {len(named)} tensors, which stay whole; "
                             f"at most shards: {len(named)}")
        self.division = divide([parameter.numel() for _, parameter in named], shards)
        self.servers = sum(home >= job.world for home in homes)
        """Processes that hold a shard and train nothing."""
        ranks = job.world + self.servers
        self.store: Any = own_part(dist.distributed_c10d._get_default_store()) if ranks > 1 else None
        self.links = Links(job.rank, ranks, job.timeout_seconds, self.store)
        self.overview = Overview(self.links, homes)
        self.service: Service | None = None
        self.attendant: Attendant | None = None
        if job.rank in homes:
            shard = Shard([named[index] for index in self.division[homes.index(job.rank)]], rules, job.optimizer,
                          divide_by_staleness)
            self.service = Service(shard, self.links, self.counts)
            self.attendant = Attendant(self.service)
            self.optimizer = shard.optimizer
            self.attendant.start()
            if rules.lockstep:
                self.service.start()
        self._versions = [0] * shards
        self._loss = 0.0
        self._computed = self._waited = 0.0
        self._left = False
        self._live: list[int] | None = None
        """Ranks that are left after an asynchronous run; None: all."""
        self._gathered = 0

    # ---- one update

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        since = time.perf_counter()
        loss = super().backward(batches)
        self._loss = float(loss)
        self._computed += time.perf_counter() - since
        return loss

    def update(self, rate: float) -> None:
        """Push the gradients with the rate that they are applied with, and pull the weights."""
        self._exchange(RATED, bits(rate))

    def _exchange(self, kind: int, rate: int = 0) -> int:
        self._push(kind, rate)
        ticket = self._pull()
        self.clear_gradients()
        return ticket

    def _push(self, kind: int, rate: int) -> None:
        since = time.perf_counter()
        for shard, numbers in enumerate(self.division):
            pieces = [self.parameters[index] for index in numbers]
            flat = torch.cat([(torch.zeros_like(item) if item.grad is None else item.grad).reshape(-1)
                              for item in pieces]).to("cpu", torch.float32)
            with naming_shard(shard):
                self.links.send(header(kind, self._versions[shard], bits(self._loss), rate), self.homes[shard], PUSH)
                sent = self.links.send(flat, self.homes[shard], PUSH)
            self.counts.count("push", flat.nbytes, sent, 0)
        self._count_wait(since)

    def _pull(self) -> int:
        """Load the weights of every shard; return the first shard's ticket."""
        since, tickets = time.perf_counter(), []
        for shard, numbers in enumerate(self.division):
            message = header()
            flat = torch.empty(sum(self.parameters[index].numel() for index in numbers))
            with naming_shard(shard):
                self.links.receive(message, self.homes[shard], REPLY)
                received = self.links.receive(flat, self.homes[shard], REPLY)
            self.counts.count("pull", flat.nbytes, 0, received)
            tickets.append(int(message[0]))
            self._versions[shard] = int(message[1])
            self._load(flat, numbers)
        self._count_wait(since)
        return tickets[0]

    def _count_wait(self, since: float) -> None:
        seconds = time.perf_counter() - since
        self._waited += seconds
        self.counts.wait(seconds)

    def _load(self, flat: torch.Tensor, numbers: Sequence[int]) -> None:
        with torch.no_grad():
            pieces = torch.split(flat, [self.parameters[index].numel() for index in numbers])
            for index, piece in zip(numbers, pieces, strict=True):
                self.parameters[index].copy_(piece.view(self.parameters[index].shape))

    # ---- asynchronous runs

    def begin(self, work: ServerWork) -> None:
        """Start the shard of this rank, if it holds one."""
        if self.service is not None:
            self.service.shard.begin(work, deals=self.homes[0] == self.job.rank)
            self.service.start()

    @property
    def samples_an_update(self) -> int:
        """Number of samples averaged into one update."""
        return self.rules.group * self.job.micro_batch * self.job.accumulation

    def first(self) -> int:
        """Return this worker's first ticket; negative: there is no work."""
        message = header()
        with naming_shard(0):
            self.links.send(header(FIRST), self.homes[0], PUSH)
            self.links.receive(message, self.homes[0], REPLY)
        return int(message[0])

    def exchange(self) -> int:
        """Push the gradients of the last `backward`, pull the weights; return the next ticket, negative: the end."""
        return self._exchange(GRADIENT)

    def leave(self) -> None:
        """Tell every shard that this worker has ended."""
        if self._left:
            return
        self._left = True
        for shard in range(len(self.division)):
            with naming_shard(shard):
                self.links.send(header(LEAVE), self.homes[shard], PUSH)

    def snapshot(self, version: int) -> dict[str, np.ndarray]:
        """Return the servers' weights after `version` updates, by name, float32 (rank 0); blocks no worker."""
        named = self.trained()
        found: dict[int, np.ndarray] = {}
        for flat, numbers in zip(self.overview.copies(version), self.division, strict=True):
            pieces = torch.split(flat, [named[index][1].numel() for index in numbers])
            found |= {index: piece.view(named[index][1].shape).numpy()
                      for index, piece in zip(numbers, pieces, strict=True)}
        return {name: found[index] for index, (name, _) in enumerate(named)}

    def fail(self) -> None:
        """End the run because rank 0's worker failed: `Overview.updates` and `snapshot` fail.

        The message takes the place of this worker's next push, for which the first shard may be waiting.
        """
        with naming_shard(0):
            self.links.send(header(FAIL), self.homes[0], PUSH)

    def finish(self) -> None:
        """Wait until all workers have left the shards."""
        if self.service is not None:
            self.service.join()
        if self.rules.lockstep or self.alone:
            return
        store = PrefixStore("end", self.store)
        if self.job.rank == 0:
            # Its answer comes after the last worker has left: no further one can go.
            lost = self.overview.reports()[0]["lost"]
            store.set("live", json.dumps([rank for rank in range(self.job.world) if rank not in lost]))
        self._live = json.loads(store.get("live"))

    # ---- ranks: after the run without those that have gone, over which no collective can be run

    def gather(self, value: Any) -> list[Any]:
        if self._live is None:
            return super().gather(value)
        self._gathered += 1
        store, place = PrefixStore("end", self.store), self._gathered
        store.set(f"{place}/{self.job.rank}", json.dumps(value))
        return [json.loads(store.get(f"{place}/{rank}")) for rank in self._live]

    def total(self, values: Sequence[float]) -> list[float]:
        if self._live is None:
            return super().total(values)
        return [float(sum(column)) for column in zip(*self.gather([float(value) for value in values]), strict=True)]

    def synchronize(self) -> None:
        if self._live is None:
            super().synchronize()
        else:
            self.gather(None)

    def adopt(self, weights: dict[str, np.ndarray] | None) -> None:
        """Take the last evaluated weights as those of the trial: rank 0's on every rank."""
        if weights is not None:
            with torch.no_grad():
                for name, parameter in self.trained():
                    parameter.copy_(torch.from_numpy(weights[name]))

    # ---- read-outs

    def protocol(self) -> dict[str, Any]:
        every = self.gather([self._computed, self._waited])
        if self.job.rank:
            return {}
        rules, reports = self.rules, self.overview.reports()
        pooled: Counter[int] = Counter()
        for report in reports:
            pooled.update({int(lag): int(times) for lag, times in report["lag"]})
        first = reports[0]
        return {
            "mode": rules.mode, "workers": rules.workers, "group": rules.group, "staleness": rules.staleness,
            "shards": len(reports), "updates": first["updates"],
            "weight_bytes": sum(parameter.numel() for parameter in self.parameters) * 4,
            "lag": {str(lag): pooled[lag] for lag in sorted(pooled)}, "expected_lag": rules.expected_lag,
            "ahead": {str(key): value for key, value in sorted(first["ahead"])}, "by_group": first["by_group"],
            "computed_seconds": [computed for computed, _ in every],
            "waited_seconds": [waited for _, waited in every], "lost": first["lost"],
            "servers": [report["own_traffic"] for report in reports if report["own_traffic"]],
        }

    def traffic(self) -> dict[str, Any]:
        return self.counts.take() if self.store is not None else {}

    def gradients(self) -> dict[str, np.ndarray]:
        found = super().gradients()
        if self.alone:
            return found
        for name, array in found.items():
            tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
            dist.all_reduce(tensor)
            found[name] = tensor.cpu().numpy() / np.float32(self.job.world)
        return found

    def effective(self) -> dict[str, str]:
        stepped = json.loads(self.store.get("optimizer")) if self.servers else _stepped(self.optimizer)
        return {
            **super().effective(), "comm_dtype": "float32", **stepped, "server_mode": self.rules.mode,
            "server_shards": str(len(self.division)), "server_group": str(self.rules.group),
            "server_processes": str(self.servers),
        }

    def state_memory(self) -> dict[str, int]:
        return {}

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run forward and backward twice and undo what they leave; the servers see nothing of it."""
        snapshots = RandomStates(self.job.device), Buffers(self.model)
        for _ in range(2):
            self.backward(batches)
            self.clear_gradients()
        self.synchronize()
        self._computed = self._waited = 0.0
        for snapshot in snapshots:
            snapshot.restore()

    def close(self) -> None:
        if self.rules.lockstep:
            self.leave()
            self.finish()
        if self.job.rank == 0:
            self.overview.end()
        if self.attendant is not None:
            self.attendant.end()
        self.links.close()
        super().close()
