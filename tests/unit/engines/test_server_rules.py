"""The rules of a parameter server: work, clocks, shards, and what the engine refuses in a plan; nothing is started."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from repro.optimizers.rules import Sgd
from repro.papers.server.async_server import AsyncServer
from repro.papers.server.rules import DONE, Clocks, Dealer, Rules
from repro.papers.server.shard import divide
from repro.suite.choice import parse_choice
from repro.suite.field_problem import FieldProblem
from tests.plans import setting

ASYNC = AsyncServer(mode="async")
MIXED = AsyncServer(mode="mixed", group=2)


@pytest.mark.parametrize("rules", [ASYNC.rules(4), MIXED.rules(4), AsyncServer(mode="sync").rules(4)],
                         ids=lambda rules: rules.mode)
def test_dealt_work_is_the_whole_budget_once_however_fast_workers_are(rules: Rules) -> None:
    steps = 7
    dealer = Dealer(rules, steps * rules.groups)
    held: dict[int, int | None] = {group: dealer.first(group) for group in range(rules.groups)}
    done: list[tuple[int, int]] = []
    fast = 0
    while any(ticket != DONE for ticket in held.values()):
        fast += 1
        # The first group works three times as often as the others.
        group = 0 if fast % 4 and held[0] not in (DONE, None) else fast % rules.groups
        ticket = held[group]
        if ticket is not None and ticket != DONE:
            done += [rules.place(ticket, worker) for worker in range(rules.workers) if rules.group_of(worker) == group]
        if ticket != DONE:
            held[group] = dealer.next(group)
    assert sorted(done) == [(step, rank) for step in range(steps) for rank in range(rules.workers)]


def test_the_work_of_a_lost_worker_is_dealt_again() -> None:
    dealer = Dealer(ASYNC.rules(2), 3)
    assert (dealer.first(0), dealer.first(1), dealer.next(0)) == (0, 1, 2)
    assert dealer.next(0) is None, "worker 1 still has work that could come back"
    dealer.lose(1)
    assert dealer.next(0) == 1
    assert dealer.next(0) == DONE


def test_under_ssp_every_worker_has_its_own_part_of_every_batch() -> None:
    rules = AsyncServer(mode="ssp", staleness=2).rules(4)
    dealer = Dealer(rules, 12)
    found = [dealer.first(1), *(dealer.next(1) for _ in range(3))]
    assert [rules.place(ticket, 1) for ticket in found[:3] if ticket is not None] == [(0, 1), (1, 1), (2, 1)]
    assert found[3] == DONE


def test_clocks_let_nobody_start_too_far_ahead() -> None:
    clocks = Clocks(Rules("ssp", 2, 1, 2))
    for _ in range(2):
        clocks.tick(0)
    assert clocks.may_start(0), "two clocks ahead"
    clocks.tick(0)
    assert clocks.ahead(0) == 3 and not clocks.may_start(0) and clocks.may_start(1)
    clocks.tick(1)
    assert clocks.may_start(0)


def test_shards_hold_whole_tensors_of_nearly_equal_size() -> None:
    found = divide([100, 3, 60, 50, 7], 2)
    assert sorted(index for part in found for index in part) == [0, 1, 2, 3, 4]
    assert found == [[0, 1, 4], [2, 3]]


def test_the_expected_lag_is_that_of_the_formula() -> None:
    assert [engine.rules(8).expected_lag for engine in (AsyncServer(mode="sync"), ASYNC, MIXED)] == [0.0, 7.0, 3.0]
    assert AsyncServer(mode="ssp", staleness=3).rules(8).expected_lag is None
    assert AsyncServer(mode="ssp", staleness=0).rules(8).lockstep


@pytest.mark.parametrize(("engine", "processes", "gated"), [
    (AsyncServer(mode="sync"), 4, True), (ASYNC, 4, False), (ASYNC, 1, True), (MIXED, 4, False), (MIXED, 2, True),
    (AsyncServer(mode="ssp", staleness=0), 4, True), (AsyncServer(mode="ssp", staleness=1), 4, False)])
def test_the_gate_judges_where_the_mathematics_is_equal(engine: AsyncServer, processes: int, gated: bool) -> None:
    why = engine.ungated(processes, Sgd(lr=0.1))
    assert (not why) == gated and (gated or "older weights" in why)


@pytest.mark.parametrize(("engine", "changes", "reason"), [
    (ASYNC, {}, None),
    (ASYNC, {"determinism": "bitwise"}, "in the order in which they arrive"),
    (AsyncServer(mode="sync"), {"determinism": "bitwise"}, None),
    (AsyncServer(mode="mixed", group=3), {}, "equal groups; use one of 1, 2, 4"),
    (AsyncServer(shards=5), {}, "use at most 4, or servers: own"),
    (AsyncServer(shards=5, servers="own"), {"servers": 5}, None),
    (AsyncServer(shards=5, servers="own"), {"servers": 5, "tensors": 4}, "the 4 tensors of workload digits"),
    (AsyncServer(shards=4), {"tensors": 4}, None),
    (AsyncServer(mode="sync", divide_by_staleness=True), {}, "has no effect"),
    (ASYNC, {"own_algorithm": True, "comm": "ring"}, "comm 'ring' would have no effect"),
    (ASYNC, {"compression": "fp16"}, "neither compression nor overlap"),
    (ASYNC, {"weights": "bfloat16", "precision": "bf16-master"}, "holds float32 weights"),
    (ASYNC, {"averages": True}, "evaluates other weights"),
    (ASYNC, {"clips": True}, "does not clip gradients"),
    (ASYNC, {"reads_ahead": True}, "read in a fixed order"),
    (ASYNC, {"whole_tensors": True}, None),
])
def test_what_it_does_not_carry_out_is_refused_in_a_line(
    engine: AsyncServer, changes: dict[str, Any], reason: str | None
) -> None:
    found = engine.unsupported(setting(**{"engine": "async-server", "processes": 4, **changes}))
    assert (found is None) if reason is None else (found is not None and reason in found and "\n" not in found)


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp", "ddp"])
def test_other_engines_refuse_the_mode_and_name_the_engine_that_has_it(engine: str) -> None:
    with pytest.raises(FieldProblem, match=r"unknown key; .*it is an option of engine async-server$") as caught:
        parse_choice("engine", {"kind": engine, "mode": "async"})
    assert caught.value.path == ("mode",)


def test_servers_of_their_own_are_the_last_ranks() -> None:
    own = AsyncServer(mode="async", shards=2, servers="own")
    assert (own.server_processes(3), own.homes(3), own.expendable(3)) == (2, (3, 4), (1, 2))
    assert (own.role(4, 3), own.role(0, 3)) == ("it held server shard 1", "worker 0")
    assert "3 workers (ranks 0 to 2) and 2 servers (from rank 3) run: 5 processes" in str(
        own.note(setting(processes=3, servers=2)))
    assert ASYNC.note(setting(processes=4)) is None and ASYNC.homes(3) == (0,)


@pytest.mark.parametrize(("options", "words"), [
    ({"mode": "ssp", "staleness": -1}, "greater than or equal to 0"), ({"mode": "ssp"}, "staleness is missing"),
    ({"mode": "mixed"}, "group is missing"), ({"mode": "async", "group": 2}, "group belongs to mode mixed"),
    ({"mode": "async", "shards": 0}, "greater than or equal to 1")])
def test_options_of_another_mode_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        AsyncServer(**options)
