"""The parameter server in lock step: the same training as DDP and as one process, and its bytes by the formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from repro.engines.torch_engines import Ddp, Single
from repro.optimizers.rules import Lars
from repro.papers.server.async_server import AsyncServer
from tests.engine_ranks import ADAMW, Case, check_warm_up, furthest, ranks, same_bytes

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

__all__ = ["ranks"]
Run = Callable[[Case], list[dict[str, Any]]]
SYNC = Case(AsyncServer(mode="sync"), 4, overlap=None)
DDP = Case(Ddp(), 4, overlap=None)
SAME = 1e-5


def of(engine: AsyncServer, **changes: Any) -> Case:
    return replace(SYNC, engine=engine, **changes)


@pytest.mark.parametrize("optimizer", [SYNC.optimizer, ADAMW, Lars(lr=0.05)], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("shards", [1, 3])
def test_sync_trains_as_ddp_does(ranks: Run, optimizer: Any, shards: int) -> None:
    found = ranks(of(AsyncServer(mode="sync", shards=shards), optimizer=optimizer))
    plain = ranks(replace(DDP, optimizer=optimizer))
    assert all(same_bytes(rank["weights"], found[0]["weights"]) for rank in found)
    assert furthest(found[0]["weights"], plain[0]["weights"]) < SAME
    assert found[0]["norms"] == pytest.approx(plain[0]["norms"], rel=1e-4)


@pytest.mark.parametrize("engine", [AsyncServer(mode="ssp", staleness=0), AsyncServer(mode="mixed", group=4)],
                         ids=lambda engine: engine.mode)
def test_ssp_without_slack_and_one_group_are_sync_bit_for_bit(ranks: Run, engine: AsyncServer) -> None:
    assert same_bytes(ranks(of(engine))[0]["weights"], ranks(SYNC)[0]["weights"])


@pytest.mark.parametrize("optimizer", [SYNC.optimizer, ADAMW], ids=lambda rule: type(rule).__name__)
def test_one_asynchronous_worker_is_one_process_bit_for_bit(ranks: Run, optimizer: Any) -> None:
    plain = ranks(Case(Single(), 1, overlap=None, optimizer=optimizer))[0]
    found = ranks(of(AsyncServer(mode="async"), world=1, optimizer=optimizer))[0]
    assert same_bytes(found["weights"], plain["weights"]) and found["losses"] == plain["losses"]


@pytest.mark.parametrize("shards", [1, 3])
def test_bytes_are_those_of_the_formula(ranks: Run, shards: int) -> None:
    found = ranks(of(AsyncServer(mode="sync", shards=shards)))
    weights = 4 * sum(array.size for array in found[0]["weights"].values())
    steps = SYNC.steps
    sent = received = 0
    for rank in found:
        lines = {line["operation"]: line for line in rank["traffic"]["lines"]}
        for name in ("push", "pull"):
            assert lines[name]["payload_bytes"] == steps * weights, "every worker: |W| up and |W| down for an update"
            assert lines[name]["collectives"] == steps * shards
        sent += sum(line["sent_bytes"] for line in lines.values())
        received += sum(line["received_bytes"] for line in lines.values())
    # What a worker exchanges with the shard in its own process is on no wire.
    assert sent == received == 2 * steps * weights * (SYNC.world - 1)


def test_the_warm_up_leaves_no_trace(ranks: Run) -> None:
    check_warm_up(ranks, SYNC)


def test_it_reads_back_what_ran(ranks: Run) -> None:
    read = ranks(of(AsyncServer(mode="sync", shards=3)))[0]["effective"]
    assert (read["server_mode"], read["server_shards"], read["server_group"]) == ("sync", "3", "4")
    assert read["optimizer"] == ranks(DDP)[0]["effective"]["optimizer"]
