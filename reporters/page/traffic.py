"""Communication of every cell: what was sent, what the formula gives, how long training stood still for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from repro.compare import PAIRED_HASHES
from repro.record.results import Result, Traffic
from repro.record.status import meaning
from repro.record.store import Record
from repro.seams.training import Comm
from repro.suite.cell import Cell
from repro.suite.identity import canonical

from .cells import CellMark, marks
from .text import Number, number, significant

FEWEST_PAIRS = 2
NEGLIGIBLE = 0.01
"""Share of a rank's payload whose bytes may go uncounted without a word: barriers, names, single numbers."""
SILENT = ("no trial yet", "one process: nothing to send")


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """One cell: medians over its trials; bytes and seconds of one optimizer step."""

    mark: CellMark
    n: int
    why: str
    """Why there are no figures; empty where there are."""
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
    """What part of the payload is missing from the bytes; empty where (nearly) none is."""


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """Exposed seconds a step, overlap on minus off, paired by seed."""

    on: CellMark
    off: CellMark
    n: int
    exposed_on: Number | None
    exposed_off: Number | None
    difference: Number | None
    interval: tuple[Number, Number] | None
    words: str
    pairs: tuple[tuple[int, Number | None], ...]
    """(seed, difference)."""


@dataclass(frozen=True, slots=True)
class TrafficTable:
    """The section."""

    rows: tuple[TrafficRow, ...]
    overlap: tuple[OverlapRow, ...]
    any: bool
    """False: no trial communicated."""
    assumed: tuple[str, ...]


def traffic(record: Record) -> TrafficTable:
    """Every cell of the plan, and overlap on against off where it varies."""
    known = marks(record)
    rows = tuple(_row(known[cell.cell_id], cell, record.of_cell(cell.cell_id)) for cell in record.plan.cells)
    assumed = {name for item in record.results if item.traffic and item.traffic.formula
               for name in item.traffic.formula.assumed}
    busy = any(cell.choices.processes > 1 for cell in record.plan.cells)
    return TrafficTable(rows=rows, overlap=tuple(_overlaps(record, known)),
                        any=busy and any(not row.why or row.why not in SILENT for row in rows),
                        assumed=tuple(sorted(assumed)))


def counted(results: Sequence[Result]) -> list[tuple[Result, Traffic, int]]:
    """The trials whose traffic is known, with their number of steps."""
    return [(item, item.traffic, item.steps.count) for item in results if item.traffic and item.steps]


def exposed_per_step(result: Result) -> float | None:
    """Seconds a step in which training stood still for communication, mean over ranks; None: not known."""
    if result.traffic is None or result.steps is None:
        return None
    return result.traffic.steps.exposed_seconds / result.steps.count


def _row(mark: CellMark, cell: Cell, results: Sequence[Result]) -> TrafficRow:
    known = counted(results) if cell.choices.processes > 1 else []
    stragglers = [item.steps.straggler_seconds / item.steps.count for item in results if item.steps]
    shares = [100 * moved.steps.exposed_seconds / item.phases["train"]
              for item, moved, _ in known if item.phases.get("train")]
    formulas = [(moved.busiest_sent_bytes, moved.formula.sent_bytes) for _, moved, _ in known if moved.formula]
    effective = list(dict.fromkeys(text for item in results if (text := item.effective.get("comm"))))
    uncounted = sorted({name for _, moved, _ in known for name in moved.uncounted})
    return TrafficRow(
        mark=mark, n=len(known) or len(results), why=_why(cell, results, known),
        collectives=_median([moved.collectives / steps for _, moved, steps in known]),
        sent=_median([moved.busiest_sent_bytes / steps for _, moved, steps in known], kibibytes),
        formula=_median([moved.formula.sent_bytes / steps for _, moved, steps in known if moved.formula], kibibytes),
        agreement=_agreement(formulas),
        exposed=_median([moved.steps.exposed_seconds / steps for _, moved, steps in known], milliseconds),
        overlapped=_median([moved.steps.overlapped_seconds / steps for _, moved, steps in known], milliseconds),
        share=_median(shares, lambda value: number(value, 2, "%")),
        straggler=_median(stragglers, milliseconds) if cell.choices.processes > 1 else None,
        effective=" / ".join(effective) or "-", uncounted=", ".join(uncounted) or "-",
        partial=_partial([moved.uncounted_share for _, moved, _ in known]),
    )


def _partial(shares: Sequence[float]) -> str:
    most = max(shares, default=0.0)
    share = f"{100 * most:.0f}\N{NO-BREAK SPACE}%"
    return f"without {share} of the payload, left to the backend" if most > NEGLIGIBLE else ""


def _why(cell: Cell, results: Sequence[Result], known: Sequence[object]) -> str:
    if cell.choices.processes == 1:
        return SILENT[1]
    if known:
        return ""
    if not results:
        return SILENT[0]
    if not cell.choices.comm.get(Comm).own_algorithm:
        return "the backend's own collectives: it counts neither bytes nor waiting"
    return "no trial of this cell recorded its traffic"


def _agreement(pairs: Sequence[tuple[int, int]]) -> str:
    """Counted bytes against the formula's, over all trials of a cell."""
    if not pairs:
        return ""
    if all(sent == expected for sent, expected in pairs):
        return "equal to the byte"
    worst = max((abs(sent / expected - 1) for sent, expected in pairs if expected), default=0.0)
    return f"differ by up to {significant(100 * worst, 2)}\N{NO-BREAK SPACE}%"


def _median(values: Sequence[float], text: Callable[[float], Number | None] = number) -> Number | None:
    return text(median(values)) if values else None


def milliseconds(value: float) -> Number:
    """Seconds as milliseconds; the exact value stays in seconds."""
    return Number(value, f"{significant(value * 1e3)}\N{NO-BREAK SPACE}ms")


def kibibytes(value: float) -> Number:
    """Bytes as KiB or MiB; the exact value stays in bytes."""
    scale, unit = (1 << 20, "MiB") if value >= 1 << 20 else (1 << 10, "KiB")
    return Number(value, f"{significant(value / scale, 4)}\N{NO-BREAK SPACE}{unit}")


# ---- overlap on against off


def _overlaps(record: Record, known: dict[str, CellMark]) -> list[OverlapRow]:
    """Cells that differ in nothing but `overlap`, on against off; on is also what an engine does that was not asked."""
    kinds: dict[str, dict[bool, Cell]] = {}
    for cell in record.plan.cells:
        if cell.choices.processes > 1:
            alike = canonical(cell.choices.model_copy(update={"overlap": None}))
            happened = _happened(record.of_cell(cell.cell_id), cell.choices.overlap)
            if happened is not None:
                kinds.setdefault(alike, {}).setdefault(happened, cell)
    return [_overlap(record, known, both[True], both[False]) for both in kinds.values() if len(both) == 2]


def _happened(results: Sequence[Result], asked: bool | None) -> bool | None:
    """Whether reduction overlapped, as the trials read it back; before any has run, as asked."""
    said = {item.effective["overlap"] for item in results if "overlap" in item.effective}
    return {"on": True, "off": False}.get(said.pop()) if len(said) == 1 else asked


def _overlap(record: Record, known: dict[str, CellMark], on: Cell, off: Cell) -> OverlapRow:
    mates = {item.repeat: item for item in record.of_cell(off.cell_id)}
    pairs = [
        (item.repeat, ours, theirs)
        for item in record.of_cell(on.cell_id)
        if (mate := mates.get(item.repeat)) and _paired(item, mate)
        and (ours := exposed_per_step(item)) is not None and (theirs := exposed_per_step(mate)) is not None
    ]
    differences = [ours - theirs for _, ours, theirs in pairs]
    interval = mean_interval(differences)
    return OverlapRow(
        on=known[on.cell_id], off=known[off.cell_id], n=len(pairs),
        exposed_on=milliseconds(mean(ours for _, ours, _ in pairs)) if pairs else None,
        exposed_off=milliseconds(mean(theirs for _, _, theirs in pairs)) if pairs else None,
        difference=milliseconds(mean(differences)) if pairs else None,
        interval=(milliseconds(interval[0]), milliseconds(interval[1])) if interval else None,
        words=_words(differences, interval, record.plan.suite.seeds),
        pairs=tuple((repeat, milliseconds(ours - theirs)) for repeat, ours, theirs in pairs),
    )


def _paired(one: Result, other: Result) -> bool:
    """Both ran to their end on the same initial weights, order and data."""
    alike = all(one.hashes.get(name) == other.hashes.get(name) for name in PAIRED_HASHES)
    return alike and all(meaning(item.status).completed for item in (one, other))


def _words(differences: Sequence[float], interval: tuple[float, float] | None, planned: int) -> str:
    count = len(differences)
    if interval is None:
        return f"{count} pair(s) with one seed; two are the least for an interval"
    still = f"; {sum(value < 0 for value in differences)} of {count} pairs below 0"
    still += f"; {count} of {planned} planned pairs have run" if count < planned else ""
    if interval[0] <= 0 <= interval[1]:
        return f"the interval holds 0: no difference is shown{still}"
    return f"the interval leaves 0 out: overlap exposes {'less' if interval[1] < 0 else 'more'}{still}"


def mean_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean difference of pairs; None below two pairs."""
    if len(differences) < FEWEST_PAIRS:
        return None
    from scipy.stats import sem, t

    centre, error = mean(differences), float(sem(differences))
    half = float(t.ppf(0.5 + level / 2, len(differences) - 1)) * error
    return centre - half, centre + half
