"""The networks that the launchers of a run made: stated rates, and rates measured before the first trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.record.folder.store import Record
from repro.record.result.parts import Link, Network
from repro.tables.text import Number, number

from ..cells import marks
from .settings import spans


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """One arrangement of nodes and links, and the cells that ran on it."""

    cells: str
    origin: str
    ranks: int
    nodes: int
    stated: str
    slowest: Number | None
    median: Number | None
    fastest: Number | None
    links: tuple[tuple[int, int, Number | None, Number | None], ...]
    """(sender, receiver, stated, measured)."""
    frame: str


def networks(record: Record) -> list[NetworkRow]:
    """Return every arrangement in the order of the cells; empty if no launcher made a network."""
    known = marks(record)
    found: dict[tuple[tuple[int, ...], tuple[float, ...], tuple[Link, ...]], tuple[Network, list[int]]] = {}
    for cell in record.plan.cells:
        for result in record.of_cell(cell.cell_id):
            network = result.network
            if network is None:
                continue
            used = _used(network)
            key = (network.node_of_rank, network.stated_bits_per_second, used)
            found.setdefault(key, (network, []))[1].append(known[cell.cell_id].number)
    return [_row(network, sorted(set(cells)), _used(network)) for network, cells in found.values()]


def _used(network: Network) -> tuple[Link, ...]:
    """Return the links between nodes with ranks."""
    nodes = set(network.node_of_rank)
    return tuple(link for link in network.links if {link.sender, link.receiver} <= nodes)


def _row(network: Network, cells: Sequence[int], links: Sequence[Link]) -> NetworkRow:
    measured = [link.measured_bits_per_second for link in links]
    nodes = sorted(set(network.node_of_rank))
    rates = [network.stated_bits_per_second[node] for node in nodes]
    by_rate = {rate: [node for node in nodes if network.stated_bits_per_second[node] == rate] for rate in rates}
    stated = "; ".join(
        f"{megabits(rate)}" + (f" (node {spans(of)})" if len(by_rate) > 1 else "") for rate, of in by_rate.items()
    )
    return NetworkRow(
        cells=spans(cells), origin=network.origin, ranks=len(network.node_of_rank), nodes=len(nodes), stated=stated,
        slowest=megabits(min(measured)) if measured else None,
        median=megabits(median(measured)) if measured else None,
        fastest=megabits(max(measured)) if measured else None,
        links=tuple((link.sender, link.receiver, megabits(link.stated_bits_per_second),
                     megabits(link.measured_bits_per_second)) for link in links),
        frame=(f"{network.frame_bytes} bytes" if network.frame_bytes else "unknown")
        + (f", {network.congestion_control}" if network.congestion_control else ""),
    )


def megabits(bits_per_second: float) -> Number | None:
    """Format a rate in Mbit/s (10^6)."""
    return number(bits_per_second / 1e6, 4 if bits_per_second >= 1e9 else 3, "Mbit/s")
