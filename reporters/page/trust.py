"""How far the clocks can be trusted: determinism declared, conservation, observer effect, pairing hashes, by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.compare import PAIRED_HASHES
from repro.record.results import CONSERVATION_TOLERANCE, OTHER_SHARE, Result
from repro.record.store import Record

from .cells import CellMark, marks
from .text import Number, share

OBSERVER_LIMIT = 0.005
"""Largest share of a run that logging may take (method.md 1.8)."""
LEVELS = {
    "bitwise": "deterministic kernels asked for: one seed gives the same bits on one machine",
    "seeded": "every random stream comes from the seed; kernels may add in any order",
    "free": "as seeded, but torch's own generator (dropout and the like) is left unseeded",
}


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest figure over a cell's trials."""

    shown: Number
    trial_id: str
    beyond: bool
    """Over the limit."""


@dataclass(frozen=True, slots=True)
class TrustRow:
    """One cell."""

    mark: CellMark
    n: int
    determinism: str
    conservation: Worst | None
    observer: Worst | None
    other: Worst | None


@dataclass(frozen=True, slots=True)
class Trust:
    """All cells, and what seeds have in common across them."""

    rows: tuple[TrustRow, ...]
    levels: tuple[tuple[str, str], ...]
    """(level declared, what it means)."""
    limits: tuple[str, str, str]
    pairing: tuple[tuple[str, str], ...]
    """(hash, how it agrees between the cells, seed by seed)."""


def trust(record: Record) -> Trust:
    """Largest figures, never means: one trial whose clock is wrong is enough."""
    known = marks(record)
    rows = tuple(_row(known[cell.cell_id], cell.choices.determinism, record.of_cell(cell.cell_id))
                 for cell in record.plan.cells)
    found = dict.fromkeys(row.determinism for row in rows)
    limits = (CONSERVATION_TOLERANCE, OBSERVER_LIMIT, OTHER_SHARE)
    return Trust(rows, tuple((level, LEVELS[level]) for level in found),
                 tuple(f"{100 * limit:g}\N{NO-BREAK SPACE}%" for limit in limits),  # type: ignore[arg-type]  # three of them
                 _pairing(record))


def _row(mark: CellMark, determinism: str, results: Sequence[Result]) -> TrustRow:
    return TrustRow(
        mark=mark, n=len(results), determinism=determinism,
        conservation=_worst(results, lambda item: item.conservation_error, CONSERVATION_TOLERANCE),
        observer=_worst(results, lambda item: item.observer_effect, OBSERVER_LIMIT),
        other=_worst(results, _other, OTHER_SHARE),
    )


def _other(result: Result) -> float | None:
    if not result.run_seconds or "other" not in result.phases:
        return None
    return result.phases["other"] / result.run_seconds


def _worst(results: Sequence[Result], read: Callable[[Result], float | None], limit: float) -> Worst | None:
    known = [(value, item.trial_id) for item in results if (value := read(item)) is not None]
    if not known:
        return None
    value, trial_id = max(known)
    text = share(value)
    assert text is not None
    return Worst(text, trial_id, value > limit)


def _pairing(record: Record) -> tuple[tuple[str, str], ...]:
    """For each hash that pairing rests on: in how many seeds all trials that logged it agree."""
    found = []
    for name in PAIRED_HASHES:
        by_seed: dict[int, list[str]] = {}
        for item in record.results:
            if name in item.hashes:
                by_seed.setdefault(item.repeat, []).append(item.hashes[name])
        several = [values for values in by_seed.values() if len(values) > 1]
        alike = sum(len(set(values)) == 1 for values in several)
        if several:
            found.append((name.replace("_", " "), f"alike between the cells in {alike} of {len(several)} seeds"))
    return tuple(found)
