"""Sentences about the nodes of a run: what differs, what is busy, clocks that are off, slow links."""

from __future__ import annotations

from types import NoneType
from typing import get_args

import pytest
from pydantic import BaseModel

from repro.core.machine import Machine
from repro.record.environment.environment import Environment, take
from repro.record.environment.nodes import (
    Allocation,
    Link,
    NodeRecord,
    Nodes,
    node_differences,
    one_computer,
    shared_nodes,
    slow_links,
    unfit_nodes,
)
from repro.record.folder.ledger import Attempt, Incident, Look
from repro.record.folder.shards import Shard

HERE = take(Machine("cpu", 0, 4), ()).model_copy(update={"load_1min": 0.1, "busy_cores": None})


def node(wall: float = 0.0, **other: object) -> NodeRecord:
    environment = Environment.model_validate({**HERE.model_dump(by_alias=True), **other})
    return NodeRecord(node=1, host="b", clock_offset_ns=5, clock_bound_ns=10, wall_offset_ns=round(wall * 1e9),
                      environment=environment)


def test_equal_nodes_have_nothing_to_say() -> None:
    assert [*node_differences(HERE, [node()]), *unfit_nodes([node(4.9)])] == []


def test_what_differs_is_named() -> None:
    other = node(cores=2, settings={**HERE.settings, "NCCL_ALGO": "Tree"})
    (text,) = node_differences(HERE, [other])
    assert text.startswith("node 1 (b) differs: cores 4 on node 0 but 2; ")
    assert "NCCL_ALGO unknown on node 0 but Tree" in text


def test_busy_nodes_and_wrong_clocks_are_named() -> None:
    busy, late = unfit_nodes([node(-3600, load_1min=3.0)])
    assert busy == "node 1 (b): its load is 3 on 4 core(s): other work slows trials, and not all alike"
    assert late.startswith("node 1 (b): its wall clock is -3600 s against node 0's")


def test_links_below_half_of_the_fastest_are_slow() -> None:
    rates = {(0, 1): 100e6, (1, 2): 51e6, (2, 0): 49e6, (3, 0): None}
    (text,) = slow_links([Link(sender=a, receiver=b, latency_seconds=1e-4, bytes_per_second=rate)
                          for (a, b), rate in rates.items()])
    assert text == "the link from node 2 to node 0 is slow: 49 MB/s, the fastest has 100 MB/s"
    assert list(slow_links([])) == []


@pytest.mark.parametrize(("exclusive", "count"), [(True, 0), (False, 1), (None, 0)])
def test_a_job_that_shares_its_nodes_says_so(exclusive: bool | None, count: int) -> None:
    job = Allocation(scheduler="slurm", job="7", nodes=("a", "b"), queued_seconds=None, exclusive=exclusive)
    found = list(shared_nodes(job))
    assert len(found) == count and all("slurm job 7 shares its nodes: other jobs may run on a, b" in text
                                       for text in found)
    assert list(shared_nodes(None)) == []


def test_no_line_needs_a_value_that_may_be_unknown() -> None:
    """Lines leave out what is None."""
    waiting: list[object] = [Nodes, Attempt, Incident, Look, Shard]
    seen: set[object] = set()
    while waiting:
        item = waiting.pop()
        waiting += get_args(item)
        if isinstance(item, type) and issubclass(item, BaseModel) and item not in seen:
            seen.add(item)
            waiting += [field.annotation for field in item.model_fields.values()]
            assert not [name for name, field in item.model_fields.items()
                        if field.is_required() and NoneType in get_args(field.annotation)], item
    assert {Environment, Link, Allocation} <= seen


def test_nodes_on_one_computer_are_named() -> None:
    names = ["alpha, cores 0-3", "beta, cores 0-3", "alpha, cores 4-7"]
    assert list(one_computer(names)) == [
        "nodes 0 and 2 are both on alpha: no network is between them, and they may share cores"]
    assert list(one_computer(names[:2])) == []
