"""A shard in a process of its own, which trains nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed.rendezvous import rendezvous

from repro.engines.plain.state import class_of, options_of
from repro.papers.server.counts import Counts
from repro.papers.server.links import Links, own_part
from repro.papers.server.overview import Attendant
from repro.papers.server.rules import Rules
from repro.papers.server.service import Service
from repro.papers.server.shard import Shard, divide
from repro.seams.server_work import ServerWork
from repro.seams.training import Job, TrainingParts


def serve_apart(
    parts: TrainingParts, job: Job, rules: Rules, homes: Sequence[int], divide_by_staleness: bool,
    work_of: Callable[[int], ServerWork] | None,
) -> None:
    """Hold one shard until every worker has left and rank 0 has ended the run."""
    number = homes.index(job.rank)
    named = [(name, parameter) for name, parameter in parts.model.named_parameters() if parameter.requires_grad]
    division = divide([parameter.numel() for _, parameter in named], len(homes))
    shard = Shard([named[index] for index in division[number]], rules, job.optimizer, divide_by_staleness)
    store = _store(job, len(homes))
    links, counts = Links(job.rank, job.world + len(homes), job.timeout_seconds, store), Counts()
    service = Service(shard, links, counts, may_lose=rules.may_lose)
    if work_of is not None:
        shard.begin(work_of(rules.group * job.micro_batch * job.accumulation), deals=number == 0)
    service.start()
    attendant = Attendant(service, links, apart=True)
    attendant.start()
    state(store, number, shard)
    attendant.end()
    service.join()
    links.close()


def state(store: Any, number: int, shard: Shard) -> None:
    """State the optimizer of a shard for the workers, which step none."""
    store.set(f"shard{number}", json.dumps({"optimizer": class_of(shard.optimizer),
                                            "optimizer_options": options_of(shard.optimizer)}))


def stated(store: Any, number: int) -> dict[str, str]:
    """Return what `state` stated, and wait for it."""
    found: dict[str, str] = json.loads(store.get(f"shard{number}"))
    return found


def _store(job: Job, servers: int) -> Any:
    store, _, _ = next(rendezvous("env://", job.rank, job.world + servers,
                                  timeout=timedelta(seconds=job.timeout_seconds)))
    return own_part(store)
