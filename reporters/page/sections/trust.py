"""Trust in the clocks: declared determinism, conservation, observer effect and pairing hashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.compare import PAIRED_HASHES
from repro.record.folder.store import Record
from repro.record.result.remarks import CONSERVATION_TOLERANCE, LOGGING_LIMIT, OTHER_SHARE
from repro.record.result.results import Result
from repro.tables.text import Number, share

from ..cells import CellMark, marks

LEVELS = {
    "bitwise": "deterministic kernels are requested: on one machine the same seed gives identical bits",
    "seeded": "every random stream is derived from the seed; kernels can add in any order",
    "unknown": "a program of the user's: the harness does not control its random numbers",
    "free": "as seeded, but the generator of torch (used by dropout, for example) is not seeded",
}


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest value over a cell's trials."""

    shown: Number
    trial_id: str
    beyond: bool
    """True if it is above the limit."""


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
    """The section: all cells, and the agreement of hashes between them."""

    rows: tuple[TrustRow, ...]
    levels: tuple[tuple[str, str], ...]
    """(declared level, its meaning)."""
    limits: tuple[str, str, str]
    pairing: tuple[tuple[str, str], ...]
    """(hash, its agreement between the cells)."""


def trust(record: Record) -> Trust:
    """Return the largest values, not means: one trial with a wrong clock matters."""
    known = marks(record)
    rows = tuple(_row(known[cell.cell_id], cell.choices.repeatability, record.of_cell(cell.cell_id))
                 for cell in record.plan.cells)
    found = dict.fromkeys(row.determinism for row in rows)
    limits = (CONSERVATION_TOLERANCE, LOGGING_LIMIT, OTHER_SHARE)
    return Trust(rows, tuple((level, LEVELS[level]) for level in found),
                 tuple(f"{100 * limit:g}\N{NO-BREAK SPACE}%" for limit in limits),  # type: ignore[arg-type]  # three of them
                 _pairing(record))


def _row(mark: CellMark, determinism: str, results: Sequence[Result]) -> TrustRow:
    return TrustRow(
        mark=mark, n=len(results), determinism=determinism,
        conservation=_worst(results, lambda item: item.conservation_error, CONSERVATION_TOLERANCE),
        observer=_worst(results, lambda item: item.observer_effect, LOGGING_LIMIT),
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
    """Count, for each hash that pairing requires, the seeds in which all trials that logged it agree."""
    found = []
    for name in PAIRED_HASHES:
        by_seed: dict[int, list[str]] = {}
        for item in record.results:
            if name in item.hashes:
                by_seed.setdefault(item.repeat, []).append(item.hashes[name])
        several = [values for values in by_seed.values() if len(values) > 1]
        alike = sum(len(set(values)) == 1 for values in several)
        if several:
            found.append((name.replace("_", " "), f"identical between the cells for {alike} of {len(several)} seeds"))
    return tuple(found)
