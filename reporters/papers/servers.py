"""What servers of the weights did, by cell: the distribution of the version lag, the clock lag, the evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from repro.core.numbers import plain_sum
from repro.record.folder.store import Record
from repro.record.result.parts import Protocol
from repro.tables.text import Number, number

from ..page.cells import CellMark, marks
from ..page.charts.scaling import ScalingView

BARS = 12
"""Lags that a histogram shows; the last bar holds all larger ones."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram."""

    lag: str
    percent: Number | str
    height: float
    """0 to 100, 100 for the highest."""


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One cell: all updates of its trials."""

    mark: CellMark
    n: int
    mode: str
    lag: Number | None
    expected: Number | str
    own: str
    """Mean version lag of each group's own updates, smallest to largest."""
    ahead: Number | None
    most_ahead: int
    waited: Number | None
    """Share of a worker's time that went to pushing, pulling and waiting."""
    evaluation: Number | None
    delay: Number | None
    server_bytes: Number | None
    """Sent and received by the busiest server process for an update; None: shards are in workers' processes."""
    lost: int
    bars: tuple[Bar, ...]


def servers(record: Record, _: ScalingView) -> tuple[ServerRow, ...]:
    """Return the cells whose trials had servers; empty if there are none."""
    known = marks(record)
    rows = []
    for cell in record.plan.cells:
        found = [item.protocol for item in record.of_cell(cell.cell_id) if item.protocol is not None]
        if found:
            rows.append(_row(known[cell.cell_id], found))
    return tuple(rows)


def _row(mark: CellMark, found: Sequence[Protocol]) -> ServerRow:
    lags, ahead = Counter[int](), Counter[int]()
    for item in found:
        lags.update(item.lag)
        ahead.update(item.ahead)
    groups = [median(lag for item in found if (lag := item.by_group[place].mean_lag) is not None)
              for place in range(len(found[0].by_group))
              if any(item.by_group[place].mean_lag is not None for item in found)]
    shares = [100 * waited / (waited + computed) for item in found
              for waited, computed in zip(item.waited_seconds, item.computed_seconds, strict=True) if waited + computed]
    apart = [item for item in found if item.evaluations]
    return ServerRow(
        mark=mark, n=len(found), mode=_mode(found[0]), lag=_mean(lags),
        expected=(number(found[0].expected_lag) or "0") if found[0].expected_lag is not None else "bounded",
        own=f"{min(groups):.2f} to {max(groups):.2f}" if groups else "-", ahead=_mean(ahead),
        most_ahead=max(ahead, default=0), waited=number(mean(shares), 2, "%") if shares else None,
        evaluation=number(median(item.evaluation_seconds for item in apart), 3, "s") if apart else None,
        delay=number(median(item.evaluation_delay_seconds for item in apart), 3, "s") if apart else None,
        server_bytes=number(median(busiest), 4, "kB") if (busiest := [
            max(server.sent_bytes + server.received_bytes for server in item.servers) / 1e3 / item.updates
            for item in found if item.servers and item.updates]) else None,
        lost=sum(len(item.lost) for item in found), bars=_bars(lags),
    )


def _mode(item: Protocol) -> str:
    place = f" in {len(item.servers)} separate process{'es' * (len(item.servers) > 1)}" if item.servers else ""
    extra = {"mixed": f", groups of {item.group}", "ssp": f", at most {item.staleness} clocks ahead"}
    return f"{item.mode}{extra.get(item.mode, '')}; {item.shards} shard{'s' if item.shards > 1 else ''}{place}"


def _mean(counts: Counter[int]) -> Number | None:
    total = sum(counts.values())
    return number(plain_sum(value * times for value, times in counts.items()) / total, 3) if total else None


def _bars(counts: Counter[int]) -> tuple[Bar, ...]:
    total, last = sum(counts.values()), min(max(counts, default=0), BARS - 1)
    shares = [counts[lag] for lag in range(last)] + [sum(times for lag, times in counts.items() if lag >= last)]
    more = "+" if max(counts, default=0) > last else ""
    return tuple(Bar(f"{lag}{more if lag == last else ''}", number(100 * times / total, 2, "%") or "0",
                     100 * times / max(shares)) for lag, times in enumerate(shares)) if total else ()
