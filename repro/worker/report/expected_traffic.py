"""The traffic that the algorithm's formula gives for a trial's collectives: bytes of the busiest rank, and the cost.

The meter counts bytes on the wire; the formula uses only schedules and message sizes, so the two can be compared. The
engine reports message sizes if it can (DDP its buckets). Otherwise all messages of a line are assumed to have one size,
and the line is listed as assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from repro.comm.algorithm import OPERATIONS, Algorithm
from repro.comm.schedule import cut
from repro.record.result.parts import Formula
from repro.seams.training import Comm

ITEMSIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
BUCKET_ITEMSIZES = (4, 2)
"""Engines report their buckets in bytes of the gradients as the model has them, independent of compression."""


def expected_traffic(
    comm: Comm, world: int, lines: Sequence[Mapping[str, Any]], buckets: Sequence[int], steps: int,
    gathers: Sequence[int] = (),
) -> Formula | None:
    """Return the formula's traffic for one trial's collectives.

    Args:
        comm: the object that ran: one that tunes itself has chosen its algorithm by then.
        lines: one rank's lines of the meter, by operation and dtype.
        buckets: bytes of every bucket of one step, as the engine reports them; empty if it does not.
        steps: optimizer steps of the meter's lines.
        gathers: numbers that a rank brings to every all-gather of one step; empty if the engine does not say.

    Returns:
        None if there is no formula, as for the backend's own collectives.
    """
    if not isinstance(comm, Algorithm) or world < 2:
        return None
    sent, received, totals, assumed = [0] * world, [0] * world, Counter[str](), []
    for line in lines:
        if line["sent_bytes"] is None or line["operation"] not in OPERATIONS:
            continue
        sizes, known = message_sizes(line, world, buckets, steps, gathers)
        if not known:
            assumed.append(f"{line['operation']} {line['dtype']}")
        for count, times in sizes.items():
            out, back, cost = comm.load(line["operation"], world, count, ITEMSIZES[line["dtype"]])
            sent = [total + times * own for total, own in zip(sent, out, strict=True)]
            received = [total + times * own for total, own in zip(received, back, strict=True)]
            totals.update(rounds=times * cost.rounds, path_bytes=times * cost.path_bytes,
                          reduced_bytes=times * cost.reduced_bytes)
    if not totals:
        return None
    return Formula(sent_bytes=max(sent), received_bytes=max(received), **totals, assumed=assumed)


def message_sizes(
    line: Mapping[str, Any], world: int, buckets: Sequence[int], steps: int, gathers: Sequence[int] = ()
) -> tuple[Counter[int], bool]:
    """Return (elements of the whole buffer -> messages, True if the sizes are known) of one line of the meter."""
    itemsize, messages = ITEMSIZES[line["dtype"]], int(line["collectives"])
    elements = int(line["payload_bytes"]) // itemsize
    for counts in ([size // itemsize for size in buckets] for itemsize in BUCKET_ITEMSIZES):
        if counts and messages == steps * len(counts) and elements == steps * sum(counts):
            return Counter({count: times * steps for count, times in Counter(counts).items()}), True
    # The payload of an all-gather is one rank's input.
    if line["operation"] == "all_gather" and gathers and (messages, elements) == (
            steps * len(gathers), steps * sum(gathers)):
        return Counter({world * count: times * steps for count, times in Counter(gathers).items()}), True
    whole = elements * world if line["operation"] == "all_gather" else elements
    return Counter(span.size for span in cut(whole, messages)), messages == 1
