"""Derives the traffic through the controller from the counters that every rank logged."""

from __future__ import annotations

from collections.abc import Sequence

from repro.record.derive.trial_log import TrialLog
from repro.record.log.schema import ControllerCounted, ControllerReading, ControllerReadings
from repro.record.result.controller import Controller, Exchange, Frames


def derive_controller(log: TrialLog, node_of_rank: Sequence[int]) -> Controller | None:
    """Return the traffic through the controller; None if a rank did not count it, or the trial was resumed.

    Args:
        node_of_rank: node of each rank; ranks of one node share its interfaces. Empty: the launcher makes no network.
    """
    event = log.last(ControllerCounted)
    if event is None or log.run_start is None:
        return None
    ranks = event.value
    startup = _exchange([rank.start for rank in ranks])
    first = dict(reversed(list(zip(node_of_rank, ranks, strict=False))))
    before, after = (sum(reading.log_bytes for reading in found)
                     for found in ([rank.start for rank in ranks], [rank.stop for rank in ranks]))
    return Controller(
        ranks=len(ranks), startup=startup, training=_difference(startup, _exchange([rank.stop for rank in ranks])),
        control_frames=_frames(list(first.values()), "control"), data_frames=_frames(list(first.values()), "data"),
        log_startup_bytes=before, log_training_bytes=after - before,
    )


def _exchange(readings: Sequence[ControllerReading]) -> Exchange:
    return Exchange(
        sent_bytes=sum(reading.sent_bytes for reading in readings),
        received_bytes=sum(reading.received_bytes for reading in readings),
        sent_messages=sum(reading.sent_segments for reading in readings),
        received_messages=sum(reading.received_segments for reading in readings),
    )


def _difference(before: Exchange, after: Exchange) -> Exchange:
    return Exchange(**{name: getattr(after, name) - getattr(before, name) for name in Exchange.model_fields})


def _frames(nodes: Sequence[ControllerReadings], network: str) -> Frames | None:
    if not nodes or not all(network in moment.interfaces for node in nodes for moment in (node.start, node.stop)):
        return None
    return Frames(**{name: sum(getattr(node.stop.interfaces[network], name)
                               - getattr(node.start.interfaces[network], name) for node in nodes)
                     for name in Frames.model_fields})
