"""Communication of every cell: bytes sent, bytes by formula, seconds of waiting for it, the networks of launchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from repro.compare import PAIRED_HASHES
from repro.core.frozen import canonical
from repro.core.numbers import significant, spans
from repro.record.folder.store import Record
from repro.record.result.parts import Link, Network, Traffic
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.seams.training import Comm
from repro.stats import mean_interval, or_none
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell
from repro.tables.tables import Table
from repro.tables.text import Number, number, plural
from repro.tables.values import Row, plain

from .cells import CellMark, marks
from .document import kibibytes, milliseconds

NEGLIGIBLE = 0.01
"""Share of a rank's payload that can be uncounted without a note: barriers, names, single numbers."""


NO_TRIAL, ONE_PROCESS = "no trial yet", "one process: nothing to send"
BACKEND = "the backend's own collectives: it counts neither bytes nor waiting time"
NOT_RECORDED = "no trial of this cell recorded its traffic"


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """One cell: medians over its trials; bytes and seconds of one optimizer step."""

    mark: CellMark
    n: int
    absence: str
    """Reason for missing values; "" if there are values."""
    collectives: Number | None
    sent: Number | None
    formula: Number | None
    agreement: str
    exposed: Number | None
    overlapped: Number | None
    share: Number | None
    """Exposed seconds over training seconds, per cent."""
    straggler: Number | None
    effective: str
    uncounted: str
    partial: str
    """The share of the payload that is missing from the bytes; empty if it is negligible."""


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """Exposed seconds per step of two cells, overlap on and off, paired by seed."""

    on: CellMark
    off: CellMark
    pairs: tuple[tuple[int, float, float], ...]
    """(seed, seconds with overlap, seconds without)."""
    interval: tuple[float, float] | None
    """Of the mean difference, on minus off."""
    words: str

    @property
    def means(self) -> tuple[float, float, float] | None:
        """Mean with overlap, without, and of the difference; None without a pair."""
        if not self.pairs:
            return None
        return (mean(ours for _, ours, _ in self.pairs), mean(theirs for _, _, theirs in self.pairs),
                mean(ours - theirs for _, ours, theirs in self.pairs))


@dataclass(frozen=True, slots=True)
class TrafficTable:
    """The section."""

    rows: tuple[TrafficRow, ...]
    overlap: tuple[OverlapRow, ...]
    any: bool
    """False if no trial communicated."""
    assumed: tuple[str, ...]


def traffic(record: Record) -> TrafficTable:
    """Compute the traffic of every cell, and overlap on minus off if it varies."""
    known = marks(record)
    rows = tuple(_row(known[cell.cell_id], cell, record.of_cell(cell.cell_id)) for cell in record.plan.cells)
    assumed = {name for item in record.results if item.traffic and item.traffic.formula
               for name in item.traffic.formula.assumed}
    busy = any(cell.choices.processes > 1 for cell in record.plan.cells)
    ran = any(row.absence not in (NO_TRIAL, ONE_PROCESS) for row in rows)
    return TrafficTable(rows=rows, overlap=tuple(_overlaps(record, known)), any=busy and ran,
                        assumed=tuple(sorted(assumed)))


def traffic_table(record: Record) -> Table:
    """Return one row per cell that communicated."""
    rows: list[Row] = [
        {"cell_id": row.mark.cell_id, "cell": plain(row.mark.label), "origin": row.mark.origin, "n": row.n,
         **{column: item.value if item else None for column, item in (
             ("collectives_per_step", row.collectives), ("sent_bytes_per_step", row.sent),
             ("formula_bytes_per_step", row.formula), ("exposed_seconds_per_step", row.exposed),
             ("exposed_percent", row.share), ("overlapped_seconds_per_step", row.overlapped),
             ("straggler_seconds_per_step", row.straggler))},
         "agreement": row.agreement, "effective": plain(row.effective), "uncounted": plain(row.uncounted),
         "absence": row.absence} for row in traffic(record).rows if row.absence not in (NO_TRIAL, ONE_PROCESS)]
    return Table("traffic", "One row per cell that communicated: bytes and seconds of a step", tuple(rows))


def overlap_table(record: Record) -> Table:
    """Return one row per pair of trials of two cells that differ in overlap."""
    return Table("overlap", "One row per pair of trials with and without overlap", tuple(
        {"on": row.on.cell_id, "off": row.off.cell_id, "origin": row.on.origin, "seed": repeat,
         "on_seconds_per_step": ours, "off_seconds_per_step": theirs, "difference_seconds_per_step": ours - theirs,
         "interpretation": row.words} for row in traffic(record).overlap for repeat, ours, theirs in row.pairs))


def link_table(record: Record) -> Table:
    """Return one row per link of the networks that launchers made."""
    return Table("links", "One row per link of a network that a launcher made", tuple(
        {"cells": row.cells, "origin": row.network.origin, "sender": link.sender, "receiver": link.receiver,
         "stated_bits_per_second": link.stated_bits_per_second,
         "measured_bits_per_second": link.measured_bits_per_second} for row in networks(record) for link in row.links))


def steps_of(cell: Cell, result: Result) -> int:
    """Return the steps in which traffic was counted: also those before the timed ones (`stop.warmup`)."""
    return result.steps.count + cell.choices.stop.warmup if result.steps else 0


def counted(cell: Cell, results: Sequence[Result]) -> list[tuple[Result, Traffic, int]]:
    """Return the trials with known traffic, with their number of steps."""
    return [(item, item.traffic, steps_of(cell, item)) for item in results if item.traffic and item.steps]


def exposed_per_step(cell: Cell, result: Result) -> float | None:
    """Return the seconds per step in which training waited for communication, mean over ranks; None: unknown."""
    if result.traffic is None or result.steps is None:
        return None
    return result.traffic.training.exposed_seconds / steps_of(cell, result)


def _row(mark: CellMark, cell: Cell, results: Sequence[Result]) -> TrafficRow:
    known = counted(cell, results) if cell.choices.processes > 1 else []
    stragglers = [item.steps.straggler_seconds / item.steps.count for item in results if item.steps]
    shares = [100 * moved.training.exposed_seconds / item.phases["train"]
              for item, moved, _ in known if item.phases.get("train")]
    formulas = [(moved.busiest_sent_bytes, moved.formula.sent_bytes) for _, moved, _ in known if moved.formula]
    effective = list(dict.fromkeys(text for item in results if (text := item.effective.get("comm"))))
    uncounted = sorted({name for _, moved, _ in known for name in moved.uncounted})
    return TrafficRow(
        mark=mark, n=len(known) or len(results), absence=_absence(cell, results, known),
        collectives=shown_median([moved.collectives / steps for _, moved, steps in known]),
        sent=shown_median([moved.busiest_sent_bytes / steps for _, moved, steps in known], kibibytes),
        formula=shown_median([moved.formula.sent_bytes / steps for _, moved, steps in known if moved.formula],
                             kibibytes),
        agreement=_agreement(formulas),
        exposed=shown_median([moved.training.exposed_seconds / steps for _, moved, steps in known], milliseconds),
        overlapped=shown_median([moved.training.overlapped_seconds / steps for _, moved, steps in known], milliseconds),
        share=shown_median(shares, lambda value: number(value, 2, "%")),
        straggler=shown_median(stragglers, milliseconds) if cell.choices.processes > 1 else None,
        effective=" / ".join(effective) or "-", uncounted=", ".join(uncounted) or "-",
        partial=_partial([moved.uncounted_share for _, moved, _ in known]),
    )


def _partial(shares: Sequence[float]) -> str:
    most = max(shares, default=0.0)
    share = f"{100 * most:.0f}\N{NO-BREAK SPACE}%"
    return f"excludes {share} of the payload, which the backend sent" if most > NEGLIGIBLE else ""


def _absence(cell: Cell, results: Sequence[Result], known: Sequence[object]) -> str:
    if cell.choices.processes == 1:
        return ONE_PROCESS
    if known:
        return ""
    if not results:
        return NO_TRIAL
    own = isinstance(cell.choices, TrainingConfig) and cell.choices.comm.get(Comm).own_algorithm
    return NOT_RECORDED if own else BACKEND


def _agreement(pairs: Sequence[tuple[int, int]]) -> str:
    """Compare counted bytes with those of the formula, over all trials of a cell."""
    if not pairs:
        return ""
    if all(sent == expected for sent, expected in pairs):
        return "identical"
    worst = max((abs(sent / expected - 1) for sent, expected in pairs if expected), default=0.0)
    return f"differ by up to {significant(100 * worst, 2)}\N{NO-BREAK SPACE}%"


def shown_median(values: Sequence[float], text: Callable[[float], Number | None] = number) -> Number | None:
    """Return the median in words; None without values."""
    return text(median(values)) if values else None


# ---- overlap on and off


def _overlaps(record: Record, known: dict[str, CellMark]) -> list[OverlapRow]:
    """Pair cells that differ only in `overlap`; what the trials read back counts, not what was requested."""
    kinds: dict[str, dict[bool, Cell]] = {}
    for cell in record.plan.cells:
        if cell.choices.processes > 1 and isinstance(cell.choices, TrainingConfig):
            alike = canonical(cell.choices.model_copy(update={"overlap": None}))
            overlapped = _overlapped(record.of_cell(cell.cell_id), cell.choices.overlap)
            if overlapped is not None:
                kinds.setdefault(alike, {}).setdefault(overlapped, cell)
    return [_overlap(record, known, both[True], both[False]) for both in kinds.values() if len(both) == 2]


def _overlapped(results: Sequence[Result], requested: bool | None) -> bool | None:
    """Return True if reduction overlapped, as the trials read it back; before any trial has run, as requested."""
    read_back = {item.effective["overlap"] for item in results if "overlap" in item.effective}
    return {"on": True, "off": False}.get(read_back.pop()) if len(read_back) == 1 else requested


def _overlap(record: Record, known: dict[str, CellMark], on: Cell, off: Cell) -> OverlapRow:
    mates = {item.repeat: item for item in record.of_cell(off.cell_id)}
    pairs = [
        (item.repeat, ours, theirs)
        for item in record.of_cell(on.cell_id)
        if (mate := mates.get(item.repeat)) and _paired(item, mate)
        and (ours := exposed_per_step(on, item)) is not None and (theirs := exposed_per_step(off, mate)) is not None
    ]
    differences = [ours - theirs for _, ours, theirs in pairs]
    found = or_none(lambda: mean_interval(differences))
    interval = (found.low, found.high) if found else None
    return OverlapRow(known[on.cell_id], known[off.cell_id], tuple(pairs), interval,
                      _words(differences, interval, record.plan.design.common))


def _paired(one: Result, other: Result) -> bool:
    """Return True if both ran to the end with the same initial weights, order and data."""
    alike = all(one.hashes.get(name) == other.hashes.get(name) for name in PAIRED_HASHES)
    return alike and all(meaning(item.status).completed for item in (one, other))


def _words(differences: Sequence[float], interval: tuple[float, float] | None, planned: int) -> str:
    count = len(differences)
    if interval is None:
        return f"{plural(count, 'pair')}; an interval needs at least two that differ"
    still = f"; {sum(value < 0 for value in differences)} of {count} pairs below 0"
    still += f"; {count} of {planned} planned pairs have run" if count < planned else ""
    if interval[0] <= 0 <= interval[1]:
        return f"the interval contains 0: no difference is shown{still}"
    return f"the interval excludes 0: overlap exposes {'less' if interval[1] < 0 else 'more'}{still}"


# ---- networks of launchers


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """One arrangement of nodes and links, and the cells that ran on it."""

    network: Network
    cells: str
    links: tuple[Link, ...]
    """Those between nodes with ranks."""

    @property
    def nodes(self) -> list[int]:
        """Nodes with ranks."""
        return sorted(set(self.network.node_of_rank))

    @property
    def stated(self) -> str:
        """The rates that links are shaped to, with the nodes of each if they differ."""
        rates: dict[float, list[int]] = {}
        for node in self.nodes:
            rates.setdefault(self.network.stated_bits_per_second[node], []).append(node)
        return "; ".join(f"{megabits(rate)}" + (f" (node {spans(of)})" if len(rates) > 1 else "")
                         for rate, of in rates.items())

    @property
    def measured(self) -> list[float]:
        """Slowest, median and fastest rate of its links, bits per second; empty without a link."""
        rates = [link.measured_bits_per_second for link in self.links]
        return [min(rates), median(rates), max(rates)] if rates else []


def networks(record: Record) -> list[NetworkRow]:
    """Return every arrangement in the order of the cells; empty if no launcher made a network."""
    found: dict[tuple[object, ...], tuple[Network, tuple[Link, ...], set[int]]] = {}
    for number_, cell in enumerate(record.plan.cells, 1):
        for network in [item.network for item in record.of_cell(cell.cell_id) if item.network is not None]:
            nodes = set(network.node_of_rank)
            links = tuple(link for link in network.links if {link.sender, link.receiver} <= nodes)
            key = (network.node_of_rank, network.stated_bits_per_second, links)
            found.setdefault(key, (network, links, set()))[2].add(number_)
    return [NetworkRow(network, spans(sorted(cells)), links) for network, links, cells in found.values()]


def megabits(bits_per_second: float) -> Number | None:
    """Format a rate in Mbit/s (10^6)."""
    return number(bits_per_second / 1e6, 4 if bits_per_second >= 1e9 else 3, "Mbit/s")
