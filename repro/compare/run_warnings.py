"""Warnings about the run for a reader of any figure: a busy or throttled machine, interruptions, odd trials.

One source for the page, the terminal, papers, tables and MLflow: a format that drops a warning would be believed more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from repro.record.store import Record

BUSY = 0.25
"""Load per core (1 min, before the run) above which a reader is warned: one other process on four cores."""
SHOWN = 3
"""Texts of one kind that are written out."""
TITLES = {
    "resumed": "Resumed", "difference": "Resumed in another environment", "lock": "Stale lock", "machine": "Machine",
    "clock": "Clock", "lost": "Result lost", "rerun": "Started again", "stopped": "Stopped", "budget": "Budget spent",
    "calibration": "Calibration", "checkpoint": "Checkpoint skipped", "throttled": "Throttled", "energy": "Energy",
    "edited": "Plug-in edited", "nodes": "Nodes",
}
"""Kind of an incident -> its title."""
Subject = Literal["machine", "attempts", "trials"]


@dataclass(frozen=True, slots=True)
class RunWarning:
    """One thing to know before the figures are used."""

    title: str
    text: str
    about: Subject

    @property
    def line(self) -> str:
        """`Throttled: the hypervisor gave 12 % of the processors' time to others`."""
        return f"{self.title}: {self.text}"


def run_warnings(record: Record) -> tuple[RunWarning, ...]:
    """Return the warnings about the machine, the course of the run and its trials."""
    return (*_busy(record), *_incidents(record), *_trials(record))


def _busy(record: Record) -> Iterator[RunWarning]:
    load, cores = record.environment.load_1min, record.environment.cores
    if load is not None and load > BUSY * cores:
        many = f"{cores} cores" if cores != 1 else "1 core"
        yield RunWarning("Busy machine", f"the load was {load:g} on {many} before the run ({load / cores:.2g} per "
                         "core): other work slows trials down, some more than others", "machine")


def _incidents(record: Record) -> Iterator[RunWarning]:
    """Yield the incidents of the run by kind."""
    by_kind: dict[str, list[str]] = {}
    for item in record.incidents:
        by_kind.setdefault(item.kind, []).append(f"{item.trial_id}: {item.text}" if item.trial_id else item.text)
    for kind, texts in by_kind.items():
        yield RunWarning(TITLES.get(kind, kind), _listed(texts), "attempts")


def _trials(record: Record) -> Iterator[RunWarning]:
    """Yield the warnings of trials; those that differ only in their numbers as one."""
    alike: dict[str, list[str]] = {}
    for result in record.results:
        for text in result.warnings:
            alike.setdefault(re.sub(r"[\d.]+", "#", text), []).append(f"{result.trial_id}: {text}")
    for texts in alike.values():
        others = len(texts) - 1
        more = f" (and {others} other trial{'s' if others > 1 else ''})" if others else ""
        yield RunWarning("Trial", f"{texts[0]}{more}", "trials")


def _listed(texts: Iterable[str]) -> str:
    """Return the first of the different texts, and how many there are."""
    different = list(dict.fromkeys(texts))
    more = f" (and {len(different) - SHOWN} more)" if len(different) > SHOWN else ""
    return f"{'; '.join(different[:SHOWN])}{more}"
