"""The notices: what a reader must know before using the figures, and the outcome of the parity gate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from repro.record import legacy
from repro.record.results import Result
from repro.record.status import meaning
from repro.record.store import Record

from ..text import plural, significant
from .cells import origin
from .settings import effective

BUSY = 0.25
"""Load per core (1 min, before the run) above which the page warns: one other process on four cores."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to know; `level` is fail, warn or note."""

    level: str
    title: str
    text: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class ParityView:
    """The outcome of the parity gate and its findings."""

    outcome: str
    text: str
    findings: tuple[tuple[str, str, str, str, str], ...]
    """(group, reference, candidate, problem or "", largest difference)."""


def progress(record: Record) -> str:
    done, planned = len(record.results), record.planned
    if record.budget_spent:
        return f"{done} trials have run, then the budget was spent"
    return f"all {planned} trials have run" if done == planned else f"{done} of {planned} trials so far"


def notices(record: Record) -> list[Notice]:
    """Return all notices: failures, then cautions, then notes."""
    found = [*_parity_notices(record), *_failed_trials(record), *_doubts(record), *_notes(record)]
    order = ("fail", "warn", "note")
    return sorted(found, key=lambda notice: order.index(notice.level))


def parity(record: Record) -> ParityView:
    """Return the outcome of the gate, also if it was not needed."""
    data = record.parity
    if data is None:
        return ParityView("unknown", "no outcome is recorded, so it is unknown whether the engines train alike", ())
    if not data.get("needed"):
        return ParityView("not needed", str(data.get("why", "no reason recorded")), ())
    found = tuple(
        (str(item["group"]), str(item["reference"]), str(item["candidate"]), str(item["problem"] or ""),
         significant(float(item["largest_difference"]), 2))
        for item in data.get("findings", ())
    )
    limits = f"{data.get('steps', '?')} steps in fp32, relative tolerance {data.get('tolerance', 0):g}"
    bad = sum(bool(item[3]) for item in found)
    if bad:
        return ParityView("failed", f"{bad} of {plural(len(found), 'candidate')} trained differently ({limits})",
                          found)
    return ParityView("passed", f"{plural(len(found), 'candidate')} trained like the reference ({limits})", found)


def _parity_notices(record: Record) -> Iterator[Notice]:
    gate = parity(record)
    if gate.outcome == "failed":
        for _, reference, candidate, problem, _ in gate.findings:
            if problem:
                yield Notice("fail", "Parity gate failed", f"{candidate} against {reference}: {problem}", "#parity")
    if gate.outcome == "unknown":
        yield Notice("warn", "Parity gate", gate.text, "#parity")


def _failed_trials(record: Record) -> Iterator[Notice]:
    by_status: dict[str, list[Result]] = {}
    for result in record.results:
        if result.status != "ok":
            by_status.setdefault(result.status, []).append(result)
    for status, results in by_status.items():
        reasons = list(dict.fromkeys(reason for result in results if (reason := legacy.bare_reason(result))))
        more = f" (and {len(reasons) - 2} other reasons)" if len(reasons) > 2 else ""
        text = f": {'; '.join(reasons[:2])}{more}" if reasons else ""
        end = meaning(status)
        yield Notice(end.level, end.page_word.capitalize(), plural(len(results), "trial") + text, "#trials")
    again = len(record.attempts) - len({attempt.trial_id for attempt in record.attempts})
    if again > 0:
        yield Notice("warn", "Repeated attempts", f"{plural(again, 'further attempt')}; the ledger lists all attempts",
                     "#attempts")


def _doubts(record: Record) -> Iterator[Notice]:
    load, cores = record.environment.load_1min, record.environment.cores
    if load is not None and load > BUSY * cores:
        yield Notice("warn", "Busy machine", f"the load was {load:g} on {plural(cores, 'core')} before the run "
                     f"({load / cores:.2g} per core): other work slows trials down, some more than others", "#machine")
    yield from _incidents(record)
    if record.missing():
        yield Notice("warn", "Partial record", f"{progress(record)}; all figures can still change", "#trials")
    for note in record.plan.notes:
        yield Notice("warn", "Smoke test" if note == record.plan.smoke_note else "Plan", note)
    for example, alike in _warned(record):
        more = f" (and {plural(len(alike) - 1, 'other trial')})" if len(alike) > 1 else ""
        yield Notice("warn", "Trial", f"{alike[0]}: {example}{more}", "#trials")
    for line in effective(record):
        if not line.steady:
            text = f"{line.name} differs between seeds of cell {line.cells}: {line.found}"
            yield Notice("warn", "Requested and effective settings", text[:300], "#effective")
    if any(origin(cell.choices) == "simulated" for cell in record.plan.cells):
        yield Notice("warn", "Simulated", "an engine of this suite simulates its figures: it trained nothing")
    for data in record.environment.data:
        if data.synthetic:
            yield Notice("warn", "Synthetic data",
                         f"{data.name} is synthetic; accuracy on it says nothing about real data", "#data")
    if record.environment.dirty:
        yield Notice("warn", "Code", "the run used a checkout with uncommitted changes", "#machine")


INCIDENTS = {
    "resumed": "Resumed", "difference": "Resumed in another environment", "lock": "Stale lock", "machine": "Machine",
    "clock": "Clock", "lost": "Result lost", "rerun": "Started again", "stopped": "Stopped",
    "budget": "Budget spent", "calibration": "Calibration", "checkpoint": "Checkpoint skipped",
    "throttled": "Throttled", "energy": "Energy",
}


def _incidents(record: Record) -> Iterator[Notice]:
    """Yield the incidents of the run by kind, at most three texts for each."""
    by_kind: dict[str, list[str]] = {}
    for item in record.incidents:
        by_kind.setdefault(item.kind, []).append(f"{item.trial_id}: {item.text}" if item.trial_id else item.text)
    for kind, all_texts in by_kind.items():
        texts = list(dict.fromkeys(all_texts))
        more = f" (and {len(texts) - 3} more)" if len(texts) > 3 else ""
        yield Notice("warn", INCIDENTS.get(kind, kind), f"{'; '.join(texts[:3])}{more}", "#attempts")


def _warned(record: Record) -> list[tuple[str, list[str]]]:
    """Group warnings that differ only in their numbers: (text of the first, trials)."""
    found: dict[str, tuple[str, list[str]]] = {}
    for result in record.results:
        for text in result.warnings:
            found.setdefault(re.sub(r"[\d.]+", "#", text), (text, []))[1].append(result.trial_id)
    return list(found.values())


def _notes(record: Record) -> Iterator[Notice]:
    if record.plan.skipped:
        count = plural(len(record.plan.skipped), "combination")
        yield Notice("note", "Skipped", f"{count} did not run; the reasons are below", "#skipped")
    gate = parity(record)
    if gate.outcome in ("passed", "not needed"):
        yield Notice("note", f"Parity gate {gate.outcome}", gate.text, "#parity")
