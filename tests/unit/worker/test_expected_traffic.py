"""The formula's bytes of a trial: against closed forms, from the sizes that an engine reports and without them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from repro.comm.algorithm import Algorithm
from repro.comm.algorithms.backend import Backend
from repro.comm.algorithms.ring import Hierarchical, Ring
from repro.comm.algorithms.tree import Multicolor, ParameterServer, ReductionTree
from repro.comm.cost_model import collective_cost
from repro.papers.jizhi.hybrid import Hybrid
from repro.worker.report.expected_traffic import expected_traffic, message_sizes

ALGORITHMS: list[Algorithm] = [
    Ring(), ReductionTree(shape="binomial", chunk_kib=None), ReductionTree(arity=2), ParameterServer(),
    ParameterServer(shards=2), Multicolor(colors=2, arity=2), Hierarchical(group=2), Hybrid(),
]


def line(operation: str = "all_reduce", dtype: str = "float32", collectives: int = 1, payload_bytes: int = 4,
         sent_bytes: int | None = 0) -> dict[str, Any]:
    return {"operation": operation, "dtype": dtype, "collectives": collectives, "payload_bytes": payload_bytes,
            "sent_bytes": sent_bytes, "received_bytes": sent_bytes}


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda item: item.title)
def test_one_message_is_the_closed_form(algorithm: Algorithm, world: int) -> None:
    for count in (1, 7, 1000, 85_514):
        sent, received, cost = collective_cost(algorithm, "all_reduce", world, count, 4)
        assert (max(sent), max(received)) == algorithm.busiest(world, count, 4)
        assert sum(sent) == sum(received)
        assert cost == algorithm.cost(world, count, 4)


def test_buckets_of_an_engine_are_taken_message_by_message() -> None:
    buckets, steps = [40_000, 4_004], 3
    lines = [line(collectives=6, payload_bytes=3 * sum(buckets)),
             line(dtype="float64", collectives=2, payload_bytes=64),
             line("barrier (gloo)", "none", 4, 0, None)]
    found = expected_traffic(Ring(), 4, lines, buckets, steps)
    # A rank of the ring sends twice everything but two segments: 10,000 elements are 4 x 2,500, 1,001 are 251 and
    # 3 x 250. Ranks differ by one element in the second kind only; the busiest spares two segments of 250.
    per_step = 2 * 40_000 - 2 * 10_000 + 2 * 4_004 - 2 * 1_000
    sums = 2 * (2 * 32 - 2 * 8)
    assert found is not None
    assert found.sent_bytes == steps * per_step + sums
    assert found.rounds == (6 + 2) * 2 * 3
    assert found.assumed == ("all_reduce float64",), "two sums of which only the total is known"


def test_a_rank_is_busiest_by_its_own_sum() -> None:
    """Messages whose busiest ranks differ: the sum of each message's most is more than any rank sends."""
    both = expected_traffic(Ring(), 3, [line(collectives=2, payload_bytes=4 * (4 + 5))], [16, 20], 1)
    four, five = (collective_cost(Ring(), "all_reduce", 3, count, 4)[0] for count in (4, 5))
    assert both is not None
    assert both.sent_bytes == max(one + other for one, other in zip(four, five, strict=True))
    assert both.assumed == ()


@pytest.mark.parametrize(("dtype", "itemsize"), [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_buckets_sent_in_fewer_bits(dtype: str, itemsize: int) -> None:
    found, known = message_sizes(line(dtype=dtype, collectives=4, payload_bytes=2 * 300 * itemsize), 4, [400, 800], 2)
    assert known
    assert found == Counter({100: 2, 200: 2})


def test_unknown_sizes_are_assumed_equal() -> None:
    assert message_sizes(line(collectives=3, payload_bytes=40), 4, [], 1) == (Counter({3: 2, 4: 1}), False)
    assert message_sizes(line("all_gather", collectives=2, payload_bytes=80), 4, [], 1) == (Counter({40: 2}), False)
    assert message_sizes(line(collectives=5, payload_bytes=40), 4, [40], 1)[1] is False, "not one message a step"


def test_traffic_without_a_formula() -> None:
    assert expected_traffic(Backend(), 4, [line()], [], 1) is None
    assert expected_traffic(Ring(), 1, [line()], [], 1) is None
    assert expected_traffic(Ring(), 4, [line("barrier (gloo)", "none", 1, 0, None)], [], 1) is None


def test_gathers_of_unlike_layers_are_known_by_the_numbers_that_a_rank_brings() -> None:
    found = expected_traffic(Ring(), 4, [line("all_gather", collectives=4, payload_bytes=2 * 4 * (11 + 70))], [], 2,
                             [11, 70])
    assert found and found.assumed == ()
    assert found.sent_bytes == 3 * 2 * 4 * (11 + 70)
