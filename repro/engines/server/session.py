"""A worker of a parameter server, and the shard that its process may hold."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from repro.core.errors import TrialError
from repro.engines.plain.loop import LoopSession
from repro.engines.plain.optimizer_options import class_of, options_of
from repro.engines.plain.state_snapshot import Buffers, RandomStates
from repro.engines.server.counts import Counts
from repro.engines.server.links import PART, PUSH, REPLY, SNAPSHOT, LinkLost, Links, bits, header
from repro.engines.server.rules import Rules
from repro.engines.server.service import FIRST, GRADIENT, LEAVE, RATED, Service
from repro.engines.server.shard import Shard, Work, divide
from repro.seams.asynchronous import AsyncSession, Update
from repro.seams.training import Batch, Job, TrainingParts

END = -1
"""In place of a version: no further snapshot will be asked for."""


class ServerSession(LoopSession, AsyncSession):
    """Computes gradients, pushes them to every shard, pulls the weights.

    Shard i is in the process of rank i. In lock step `update` does all of this, and the ordinary loop trains; else the
    loop for asynchronous engines calls `exchange`.
    """

    def __init__(self, parts: TrainingParts, job: Job, rules: Rules, shards: int, divide_by_staleness: bool) -> None:
        super().__init__(parts, job, wrap=lambda model: model)
        self.rules, self.counts = rules, Counts()
        named = self.trained()
        if shards > len(named):
            raise TrialError(f"{shards} shards are more than the model's {len(named)} tensors, which stay whole; "
                             f"at most shards: {len(named)}")
        self.division = divide([parameter.numel() for _, parameter in named], shards)
        self.links = Links(job.rank, job.world, job.timeout_seconds)
        self.service: Service | None = None
        if job.rank < shards:
            shard = Shard([named[index] for index in self.division[job.rank]], rules, job.optimizer,
                          divide_by_staleness)
            self.service = Service(shard, self.links, self.counts, may_lose=self.may_lose)
            self.optimizer = shard.optimizer
            if rules.lockstep:
                self.service.start()
        self._versions = [0] * shards
        self._loss = 0.0
        self._computed = self._waited = 0.0
        self._since = 0.0
        self._left = False
        self._live: list[int] | None = None
        """Ranks that are left after an asynchronous run; None: all."""
        self._gathered = 0

    @property
    def may_lose(self) -> bool:
        """Single workers may go: nobody waits for them, and their work is dealt again."""
        return self.rules.mode == "async" and not self.rules.lockstep

    @property
    def shard(self) -> Shard:
        assert self.service is not None, "this rank holds a shard"
        return self.service.shard

    # ---- one update

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        self._since = time.perf_counter()
        loss = super().backward(batches)
        self._loss = float(loss)
        self._computed += time.perf_counter() - self._since
        return loss

    def update(self, rate: float) -> None:
        """Push the gradients with the rate that they are applied with, and pull the weights."""
        self._push(RATED, bits(rate))
        self._pull()
        self.clear_gradients()

    def _push(self, kind: int, rate: int = 0) -> None:
        since = time.perf_counter()
        for shard, numbers in enumerate(self.division):
            pieces = [self.parameters[index] for index in numbers]
            flat = torch.cat([(torch.zeros_like(item) if item.grad is None else item.grad).reshape(-1)
                              for item in pieces]).to("cpu", torch.float32)
            with self._naming(shard):
                self.links.send(header(kind, self._versions[shard], bits(self._loss), rate), shard, PUSH)
                sent = self.links.send(flat, shard, PUSH)
            self.counts.count("push", flat.nbytes, sent, 0)
        self._count_wait(since)

    def _pull(self) -> int:
        """Load the weights of every shard; return the first shard's ticket."""
        since, tickets = time.perf_counter(), []
        for shard, numbers in enumerate(self.division):
            message = header()
            flat = torch.empty(sum(self.parameters[index].numel() for index in numbers))
            with self._naming(shard):
                self.links.receive(message, shard, REPLY)
                received = self.links.receive(flat, shard, REPLY)
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

    def _naming(self, shard: int) -> _Naming:
        return _Naming(shard)

    # ---- asynchronous runs

    def begin(self, tickets: int, rate_of: Callable[[int], float], grid: Sequence[int], now: Callable[[], int]) -> None:
        if self.service is not None:
            self.service.shard.begin(Work(tickets, rate_of, tuple(grid), now), deals=self.job.rank == 0)
            self.service.start()

    @property
    def samples_an_update(self) -> int:
        return self.rules.group * self.job.micro_batch * self.job.accumulation

    def first(self) -> int:
        message = header()
        with self._naming(0):
            self.links.send(header(FIRST), 0, PUSH)
            self.links.receive(message, 0, REPLY)
        return int(message[0])

    def place(self, ticket: int) -> tuple[int, int]:
        return self.rules.place(ticket, self.job.rank)

    def exchange(self, ticket: int, loss: Any) -> int:
        self._push(GRADIENT)
        found = self._pull()
        self.clear_gradients()
        return found

    def leave(self) -> None:
        if self._left:
            return
        self._left = True
        for shard in range(len(self.division)):
            with self._naming(shard):
                self.links.send(header(LEAVE), shard, PUSH)

    def updates(self, version: int) -> Sequence[Update]:
        self.shard.reach(version)
        return self.shard.updates[:version]

    def snapshot(self, version: int) -> dict[str, np.ndarray]:
        parts = [self.shard.snapshot(version)]
        for shard in range(1, len(self.division)):
            flat = torch.empty(sum(self.parameters[index].numel() for index in self.division[shard]))
            with self._naming(shard):
                self.links.send(header(version), shard, SNAPSHOT)
                self.links.receive(flat, shard, PART)
            parts.append(flat)
        return self._by_name(parts)

    def _by_name(self, parts: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
        named = self.trained()
        found: dict[int, np.ndarray] = {}
        for flat, numbers in zip(parts, self.division, strict=True):
            pieces = torch.split(flat, [named[index][1].numel() for index in numbers])
            found |= {index: piece.view(named[index][1].shape).numpy()
                      for index, piece in zip(numbers, pieces, strict=True)}
        return {name: found[index] for index, (name, _) in enumerate(named)}

    def attend(self) -> None:
        if self.service is None:
            return
        message = header()
        while True:
            with self._naming(0):
                self.links.receive(message, 0, SNAPSHOT)
            if (version := int(message[0])) == END:
                return
            self.links.send(self.shard.snapshot(version), 0, PART)

    def end(self) -> None:
        self.shard.stop()
        if not self.alone:
            self._store().set("live", json.dumps([rank for rank in range(self.job.world) if rank not in self.lost]))
        for shard in range(1, len(self.division)):
            self.links.send(header(END), shard, SNAPSHOT)

    def fail(self, error: BaseException) -> None:
        if self.service is not None:
            self.service.shard.fail(error)

    def finish(self) -> None:
        if self.service is not None:
            self.service.join()
        if not self.alone and not self.rules.lockstep:
            self._live = json.loads(self._store().get("live"))

    # ---- ranks: after the run without those that have gone, over which no collective can be run

    def _store(self) -> Any:
        return PrefixStore("async-server-end", dist.distributed_c10d._get_default_store())

    def gather(self, value: Any) -> list[Any]:
        if self._live is None:
            return super().gather(value)
        self._gathered += 1
        store, place = self._store(), self._gathered
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
        if weights is not None:
            with torch.no_grad():
                for name, parameter in self.trained():
                    parameter.copy_(torch.from_numpy(weights[name]))

    @property
    def lost(self) -> Sequence[int]:
        return tuple(self.shard.lost)

    @property
    def waited_seconds(self) -> tuple[float, float]:
        return self._computed, self._waited

    # ---- read-outs

    def protocol(self) -> dict[str, Any]:
        own = [list(item[:4]) for item in self.shard.updates] if self.service is not None else []
        every = self.gather([Counter(read[2] - read[1] for read in own).most_common(), self._computed, self._waited])
        pooled: Counter[int] = Counter()
        for counts, _, _ in every:
            pooled.update({int(lag): int(times) for lag, times in counts})
        if self.service is None or self.job.rank:
            return {}
        rules = self.rules
        lags = [[update.applied - update.read for update in self.shard.updates if update.worker == worker]
                for worker in range(0, rules.workers, rules.group)]
        weights = sum(parameter.numel() for parameter in self.parameters) * 4
        return {
            "mode": rules.mode, "workers": rules.workers, "group": rules.group, "staleness": rules.staleness,
            "shards": len(self.division), "updates": self.shard.version, "weight_bytes": weights,
            "lag": {str(lag): pooled[lag] for lag in sorted(pooled)}, "expected_lag": rules.expected_lag,
            "ahead": {str(key): value for key, value in sorted(Counter(
                update.ahead for update in self.shard.updates).items())},
            "by_group": [{"updates": len(own), "mean_lag": sum(own) / len(own) if own else None} for own in lags],
            "computed_seconds": [computed for _, computed, _ in every],
            "waited_seconds": [waited for _, _, waited in every], "lost": list(self.shard.lost),
        }

    def traffic(self) -> dict[str, Any]:
        return self.counts.take() if self.job.world > 1 else {}

    def gradients(self) -> dict[str, np.ndarray]:
        found = super().gradients()
        if self.alone:
            return found
        for name, array in found.items():
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            dist.all_reduce(tensor)
            found[name] = tensor.numpy() / np.float32(self.job.world)
        return found

    def effective(self) -> dict[str, str]:
        return {
            **super().effective(), "comm_dtype": "float32", "optimizer": class_of(self.optimizer),
            "optimizer_options": options_of(self.optimizer), "server_mode": self.rules.mode,
            "server_shards": str(len(self.division)), "server_group": str(self.rules.group),
        }

    def state_memory(self) -> dict[str, int]:
        return {}

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run forward and backward twice and undo what they leave; the servers see nothing of it."""
        snapshots = RandomStates(), Buffers(self.model)
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
        self.links.close()
        super().close()


class _Naming:
    """Names the shard whose link is lost."""

    def __init__(self, shard: int) -> None:
        self.shard = shard

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LinkLost):
            raise TrialError(f"shard {self.shard} on rank {error.peer} has gone: {error}") from error
