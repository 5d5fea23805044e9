"""Reads the communication of a trial of any kind from the events of its log."""

from __future__ import annotations

from collections.abc import Sequence

from repro.core.numbers import plain_sum
from repro.record.derive.trial_log import TrialLog
from repro.record.log.schema import FormulaTraffic, TrafficCounted
from repro.record.result.results import RankTraffic, Spent, Traffic


def read_traffic(log: TrialLog) -> Traffic | None:
    """Return the communication of all ranks; None: nothing was counted."""
    event, formula = log.last(TrafficCounted), log.last(FormulaTraffic)
    if event is None:
        return None
    ranks = tuple(rank for rank in event.value if rank)
    sent = [rank.sent_bytes for rank in ranks]
    means = {part: plain_sum(getattr(rank, part) for rank in ranks) / len(ranks)
             for part in ("exposed_seconds", "overlapped_seconds", "busy_seconds")}
    return Traffic(
        ranks=ranks, busiest_rank=sent.index(max(sent)), busiest_sent_bytes=max(sent),
        busiest_received_bytes=max(rank.received_bytes for rank in ranks),
        collectives=max(sum(line.collectives for line in rank.lines) for rank in ranks), **means,
        uncounted=tuple(sorted({line.operation for rank in ranks for line in rank.lines if line.sent_bytes is None})),
        training=_training(ranks), formula=formula.value if formula else None,
    )


def _training(ranks: Sequence[RankTraffic]) -> Spent:
    return Spent(**{name: plain_sum(getattr(rank.training, name) for rank in ranks) / len(ranks)
                    for name in Spent.model_fields})
