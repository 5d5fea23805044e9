"""What the algorithm's formula gives for the collectives that a trial ran: bytes of the busiest rank, and the cost.

The meter counts what went over the wire; this is reckoned from the schedules and the messages' sizes alone, so the two
can be compared. Sizes come from the engine where it says them (DDP its buckets); the rest of a line of the meter is
taken as messages of one size, and named as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from repro.comm.algorithm import OPERATIONS, Algorithm
from repro.comm.formula import collective_cost
from repro.comm.schedule import cut
from repro.seams.training import Comm

ITEMSIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
BUCKET_ITEMSIZE = 4
"""Engines report their buckets in bytes of float32 gradients, whatever they are sent as."""


def expected_traffic(
    comm: Comm, world: int, lines: Sequence[Mapping[str, Any]], buckets: Sequence[int], steps: int
) -> dict[str, Any] | None:
    """The algorithm's own formula for one trial's collectives (JSON-like, `repro.record.results.Formula`).

    Args:
        comm: the object that ran: one that tunes itself has found out what it does.
        lines: one rank's lines of the meter, by operation and dtype.
        buckets: bytes of every bucket of one step, as the engine reports them; empty where it does not.
        steps: optimizer steps that were counted.

    Returns:
        None where nothing has a formula: the backend's own collectives.
    """
    if not isinstance(comm, Algorithm) or world < 2:
        return None
    sent, received, totals, assumed = [0] * world, [0] * world, Counter[str](), []
    for line in lines:
        if line["sent_bytes"] is None or line["operation"] not in OPERATIONS:
            continue
        sizes, known = message_sizes(line, world, buckets, steps)
        if not known:
            assumed.append(f"{line['operation']} {line['dtype']}")
        for count, times in sizes.items():
            one = collective_cost(comm, line["operation"], world, count, ITEMSIZES[line["dtype"]])
            sent = [total + times * own for total, own in zip(sent, one.sent, strict=True)]
            received = [total + times * own for total, own in zip(received, one.received, strict=True)]
            totals.update(rounds=times * one.cost.rounds, path_bytes=times * one.cost.path_bytes,
                          reduced_bytes=times * one.cost.reduced_bytes)
    if not totals:
        return None
    return {"sent_bytes": max(sent), "received_bytes": max(received), **totals, "assumed": assumed}


def message_sizes(
    line: Mapping[str, Any], world: int, buckets: Sequence[int], steps: int
) -> tuple[Counter[int], bool]:
    """(elements of the whole buffer -> messages, whether these sizes are known) of one line of the meter."""
    itemsize, messages = ITEMSIZES[line["dtype"]], int(line["collectives"])
    elements = int(line["payload_bytes"]) // itemsize
    counts = [size // BUCKET_ITEMSIZE for size in buckets]
    if counts and messages == steps * len(counts) and elements == steps * sum(counts):
        sizes = Counter(counts)
        return Counter({count: times * steps for count, times in sizes.items()}), True
    # An all-gather's payload is what one rank puts in.
    whole = elements * world if line["operation"] == "all_gather" else elements
    return Counter(span.size for span in cut(whole, messages)), messages == 1
