"""Warnings about the run for a reader of any figure: a busy or throttled machine, interruptions, odd trials.

One source for the page, the terminal, papers, tables and MLflow: a format that drops a warning would be believed more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from repro.compare.evidence.repeated import repeated_cells
from repro.record.folder import index
from repro.record.folder.store import Record
from repro.record.result.result_warnings import SlowLogging, Warned
from repro.record.result.results import Result

SHOWN = 3
"""Texts of one kind that are written out."""
TITLES = {
    "resumed": "Resumed", "difference": "Resumed in another environment", "lock": "Stale lock", "machine": "Machine",
    "clock": "Clock", "lost": "Result lost", "rerun": "Started again", "stopped": "Stopped", "budget": "Budget spent",
    "calibration": "Calibration", "checkpoint": "Checkpoint skipped", "throttled": "Throttled", "energy": "Energy",
    "edited": "Plug-in edited", "nodes": "Nodes", "moved": "Continued elsewhere", "waited": "Waited",
    "asked": "Asked before", "altered": "Modified record", "lane": "Lanes", "wash_out": "Wash-out failed",
}
"""Kind of an incident -> its title."""
UNAFFECTED = "no figure is affected"
CONSEQUENCES = {
    "resumed": "a pair with the pause between its trials counts for no metric with a clock",
    "difference": "trials before and after it are compared as if it had no effect",
    "moved": "a pair with the move between its trials counts for no metric with a clock",
    "lock": UNAFFECTED, "waited": UNAFFECTED,
    "clock": "durations come from the monotonic clock and are correct; dates may be wrong",
    "throttled": "the ratios of these seeds may be wrong", "rerun": "the first attempt that ended counts",
    "wash_out": "the ratio of this seed may hold what ran before its block",
    "altered": "its figures need not be those of the run; repro verify says more",
    "energy": "times are not affected", "edited": "trials of one cell may have run different code: run the suite again",
}
"""Kind of an incident -> what it means for the figures, where that follows from the kind alone."""
Subject = Literal["machine", "attempts", "trials"]


@dataclass(frozen=True, slots=True)
class RunWarning:
    """One thing to know before the figures are used."""

    title: str
    text: str
    about: Subject
    consequence: str = ""
    """What it means for the figures; "": the text says it."""
    is_note: bool = False
    """It cannot change a verdict."""

    @property
    def word(self) -> str:
        """The word before it: warning, or note."""
        return "note" if self.is_note else "warning"

    @property
    def line(self) -> str:
        """`Waited: 12.3 s for another run that timed its trials on this machine; no figure is affected`."""
        return f"{self.title}: {self.text}{'; ' if self.consequence else ''}{self.consequence}"


def run_warnings(record: Record) -> tuple[RunWarning, ...]:
    """Return the warnings about the machine, the course of the run and its trials."""
    found = list[RunWarning]()
    if text := alterations(record):
        found.append(RunWarning(TITLES["altered"], text, "attempts", CONSEQUENCES["altered"]))
    if devices := record.emulated_devices:
        found.append(RunWarning("Emulated device", f"{_listed(devices)} stands for a GPU", "machine",
                                "no figure says anything about a GPU: neither its speed nor its arithmetic"))
    found += [*busy(record), *_incidents(record)]
    if repeated := [item.short for item in repeated_cells(record)]:
        found.append(RunWarning("Repeated training", _listed(repeated), "trials",
                                "says nothing about other seeds: only times get a verdict from repeats"))
    return (*found, *_trials(record))


def alterations(record: Record) -> str:
    """Return the files in which a record is not the one that its run sealed, in words; "" if there are none. A run that
    goes on, or was killed, has no index. All files are hashed once for a record."""
    if "alterations" not in record.derived:
        names = index.altered(record.folder.root)
        goes_on = names == [index.NAME] and len(record.results) < record.planned
        record.derived["alterations"] = "" if goes_on or not names else \
            f"{_listed(names)}: modified, added or missing since the run ended"
    return str(record.derived["alterations"])


def busy(record: Record) -> Iterator[RunWarning]:
    cores = record.environment.cores
    if load := record.environment.high_load:
        many = f"{cores} cores" if cores != 1 else "1 core"
        text = f"the load was {load:g} on {many} before the run ({load / cores:.2g} per core)"
        yield RunWarning("Busy machine", text, "machine", "other work slows trials down, some more than others: do "
                         "not quote its times, and the ratio only with this caution; a repeat is a second run of the "
                         "question, whose answer stands beside the first")


def _incidents(record: Record) -> Iterator[RunWarning]:
    by_kind: dict[str, list[str]] = {}
    for item in record.incidents:
        by_kind.setdefault(item.kind, []).append(f"{item.trial_id}: {item.text}" if item.trial_id else item.text)
    for kind, texts in by_kind.items():
        consequence = CONSEQUENCES.get(kind, "")
        yield RunWarning(TITLES.get(kind, kind), _listed(texts), "attempts", consequence, consequence == UNAFFECTED)


def _trials(record: Record) -> Iterator[RunWarning]:
    """Yield the warnings of trials; those that differ only in their numbers as one."""
    alike: dict[tuple[str, ...], list[tuple[Result, Warned]]] = {}
    for result in record.results:
        for item in result.warnings:
            alike.setdefault(tuple(value for _, value in item if isinstance(value, str)), []).append((result, item))
    for found in alike.values():
        (first, warned), others = found[0], len(found) - 1
        more = f" (and {others} other trial{'s' if others > 1 else ''})" if others else ""
        alike_everywhere = isinstance(warned, SlowLogging) and _logs_alike(record)
        yield RunWarning("Trial", f"{first.trial_id}: {warned.words}{more}", "trials",
                         LOGS_ALIKE if alike_everywhere else _where(record, {result.cell_id for result, _ in found}),
                         is_note=alike_everywhere)


LOGS_ALIKE = "the cells differ in it by less than a tenth of the margin, so it changes no ratio by more"


def _logs_alike(record: Record) -> bool:
    """Return whether the shares of logging, as means of cells, differ by less than a tenth of the suite's margin."""
    shares: dict[str, list[float]] = {}
    for result in record.results:
        if result.observer_effect is not None:
            shares.setdefault(result.cell_id, []).append(result.observer_effect)
    means = [math.fsum(found) / len(found) for found in shares.values()]
    return len(means) > 1 and max(means) - min(means) < record.plan.suite.margin / 10


def _where(record: Record, cells: set[str]) -> str:
    """Return whose figures contain what the trials of `cells` are warned of."""
    every = {item.cell_id for item in record.results}
    if len(every) == 1:
        return ""
    if cells == every:
        return "trials of every cell are affected"
    if len(cells) > 1:
        return f"trials of {len(cells)} of {len(every)} cells are affected, and so are ratios to the others"
    return f"only trials of {record.cell(cells.pop()).label} are affected, and so is every ratio of that cell"


def _listed(texts: Iterable[str]) -> str:
    """Return the first of the different texts, and how many there are."""
    different = list(dict.fromkeys(texts))
    more = f" (and {len(different) - SHOWN} more)" if len(different) > SHOWN else ""
    return f"{'; '.join(different[:SHOWN])}{more}"
