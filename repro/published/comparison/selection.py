"""Selection of the published cells to compare: patterns over factors, within one benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.core.errors import UsageError, nearest
from repro.published.cells import FACTORS
from repro.published.record import PublishedCell, PublishedResult
from repro.published.store import Published

KEYS = ("round", "benchmark", "org", "system", *(name for name in FACTORS if name not in (
    "round", "benchmark", "org", "system")))
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell with its runs and its import."""

    folder: str
    """Name of the import if there are several; empty if there is one."""
    program: str
    cell: PublishedCell
    results: tuple[PublishedResult, ...]

    @property
    def label(self) -> str:
        return f"{self.cell.label} [{self.folder}]" if self.folder else self.cell.label

    def factor(self, name: str) -> str | None:
        """Return the value of a factor; None: unknown."""
        return self.cell.factors.get(name)

    @property
    def where(self) -> tuple[str, str | None]:
        """Benchmark and round: entries with the same values are comparable."""
        return self.cell.factors["benchmark"], self.factor("round")


def entries(imports: Sequence[tuple[str, Published]]) -> list[list[Entry]]:
    """Return the cells of every import, in the order of the record.

    Args:
        imports: (name, import).
    """
    found = []
    for name, published in imports:
        runs: dict[str, list[PublishedResult]] = {}
        for item in published.results:
            runs.setdefault(item.cell_id, []).append(item)
        found.append([Entry(name, published.record.program, cell, tuple(runs.get(cell.cell_id, ())))
                      for cell in published.record.cells])
    return found


def read_factors(text: str, option: str) -> dict[str, str]:
    """Parse a pattern such as `org=NVIDIA,system=dgx`; a comma separates only if a key follows.

    Raises:
        UsageError: not of that form, or an unknown factor.
    """
    found: dict[str, str] = {}
    for part in re.split(r",(?=\s*[a-z_.]+\s*=)", text):
        key, equals, value = (item.strip() for item in part.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{option} {text!r}: expected key=value,key=value, for example "
                             "benchmark=resnet,system=dgx_h100")
        if key not in KEYS:
            raise UsageError(f"{option} {text!r}: published results have no factor {key!r}{nearest(key, KEYS)}")
        found[key] = value
    return found


def matching(cells: Sequence[Entry], wanted: Mapping[str, str], option: str) -> list[Entry]:
    """Return the cells with all wanted factors.

    Raises:
        UsageError: no cell matches.
    """
    found = [item for item in cells if all(item.factor(key) == value for key, value in wanted.items())]
    if found:
        return found
    for key, value in wanted.items():
        known = {text for item in cells if (text := item.factor(key)) is not None}
        if value not in known:
            raise UsageError(f"{option}: no cell has {key}={value}{nearest(value, _few(known))}")
    raise UsageError(f"{option}: no cell has all of {', '.join(f'{key}={value}' for key, value in wanted.items())}")


def _few(known: set[str]) -> set[str]:
    """Limit the values to search for the nearest one."""
    return known if len(known) <= 200 else set(sorted(known)[:200])


def contrasts(
    groups: Sequence[Sequence[Entry]], baseline: Mapping[str, str] | None, candidate: Mapping[str, str] | None
) -> list[tuple[Entry, Entry]]:
    """Return (candidate, baseline) pairs of cells of one benchmark.

    One import: the cells selected by `candidate` (default: all others of the benchmark and round) against the cell
    selected by `baseline`. Two imports: cells of the second against those of the first; without patterns, every system
    against itself.

    Raises:
        UsageError: no baseline, or more than one.
    """
    first, last = groups[0], groups[-1]
    if baseline is None and candidate is None and len(groups) == 2:
        return _same_systems(first, last)
    bases = matching(first, baseline, "--baseline") if baseline is not None else _only_base(first, candidate)
    ours = matching(last, candidate, "--candidate") if candidate is not None else list(last)
    found = []
    for item in ours:
        mate = _mate(item, bases, anywhere=candidate is not None)
        if mate is not None:
            found.append((item, mate))
    if not found:
        raise UsageError(_nothing(bases, ours))
    return found


def _same_systems(first: Sequence[Entry], last: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    known: dict[tuple[str | None, ...], list[Entry]] = {}
    keys = ("org", "system", "benchmark")
    for item in first:
        known.setdefault(tuple(item.factor(key) for key in keys), []).append(item)
    found = [(item, mates[0]) for item in last
             if len(mates := known.get(tuple(item.factor(key) for key in keys), [])) == 1]
    if not found:
        raise UsageError("the two imports have no system and benchmark in common; select cells of the first with "
                         "--baseline and of the second with --candidate")
    return found


def _only_base(cells: Sequence[Entry], candidate: Mapping[str, str] | None) -> list[Entry]:
    """Return the baseline if there are two cells; with more cells the user must name it in advance."""
    if len(cells) == 2 and candidate is None:
        return [cells[0]]
    if len(cells) < 2:
        raise UsageError("there is only one cell, so there is nothing to compare it with" if cells else
                         "the import has no cell")
    raise UsageError(f"there are {len(cells)} cells: {_listed(cells)}; name the cell to compare with, for example "
                     f"--baseline {_written(cells[0])}")


def _mate(item: Entry, bases: Sequence[Entry], anywhere: bool) -> Entry | None:
    """Return the baseline of one candidate: in its own round, else in another round if it was named."""
    others = [base for base in bases if base.cell.factors["benchmark"] == item.cell.factors["benchmark"]
              and (base.cell.cell_id, base.folder) != (item.cell.cell_id, item.folder)]
    mates = [base for base in others if base.where == item.where] or (
        others if anywhere or base_of_other_import(item, others) else [])
    if len(mates) > 1:
        raise UsageError(f"--baseline matches {len(mates)} cells of {item.cell.factors['benchmark']}: "
                         f"{_listed(mates)}; select one")
    return mates[0] if mates else None


def base_of_other_import(item: Entry, bases: Sequence[Entry]) -> bool:
    """Return True if a baseline is in the other import: two imports are compared even if their rounds differ."""
    return any(base.folder != item.folder for base in bases)


def _nothing(bases: Sequence[Entry], ours: Sequence[Entry]) -> str:
    benchmarks = sorted({item.cell.factors["benchmark"] for item in bases})
    theirs = sorted({item.cell.factors["benchmark"] for item in ours})
    return (f"nothing to compare: the baseline is of {', '.join(benchmarks[:SHOWN])}, the candidates of "
            f"{', '.join(theirs[:SHOWN])}; only results of one benchmark and round can be compared")


def _written(item: Entry) -> str:
    return f"benchmark={item.factor('benchmark')},system={item.factor('system')}"


def _listed(cells: Sequence[Entry]) -> str:
    shown = "; ".join(_written(item) for item in cells[:SHOWN])
    return shown + (f"; and {len(cells) - SHOWN} more" if len(cells) > SHOWN else "")
