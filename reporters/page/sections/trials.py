"""All attempts and all trials, failed ones first, with links into the run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.suite.quality import Quality
from repro.tables.text import Number, gibibytes, moment, number, seconds, share

from ..cells import CellMark, end_word, marks
from ..traffic import milliseconds

FOLDER = "../trials"
"""Relative to <run>/report: links stay inside the run folder and contain no path of the machine."""
HASHES = {
    "init_weights": "initial weights", "data_order": "data order", "data": "data", "final_weights": "final weights",
}


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One line of the ledger."""

    mark: CellMark | None
    trial_id: str
    repeat: int
    attempt: int
    status: str
    word: str
    reason: str
    started: str
    took: Number | None
    link: str


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial with a result."""

    mark: CellMark
    trial_id: str
    link: str
    log: str
    repeat: int
    attempt: int
    status: str
    word: str
    reason: str
    wall: Number | None
    train: Number | None
    cold: Number | None
    epochs: Number | None
    rate: Number | None
    token_rate: Number | None
    final: Number | None
    derived: str
    peak: Number | None
    step: Number | None
    training: Number | None
    """Samples or items a second."""
    wait: Number | None
    """Input wait a step."""
    wait_share: Number | None
    conservation: Number | None
    observer: Number | None
    starts: int
    """Recorded attempts."""
    record: str
    """Link to the trial's result as JSON."""
    hashes: tuple[tuple[str, str, str], ...]
    """(name, short hash, full hash)."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A planned trial without a result."""

    mark: CellMark
    trial_id: str
    repeat: int


def attempts(record: Record) -> list[AttemptRow]:
    """Return the attempts in the order of the ledger, failed ones first."""
    known = marks(record)
    rows = [
        AttemptRow(
            mark=known.get(item.cell_id), trial_id=item.trial_id, repeat=item.repeat, attempt=item.attempt,
            status=item.status, word=end_word(item.status, record), reason=_account(item),
            started=moment(item.started_ms), took=seconds(item.known_seconds),
            link=f"{FOLDER}/{item.trial_id}/result_{item.attempt}.txt",
        )
        for item in record.attempts
    ]
    return sorted(rows, key=lambda row: row.status == "ok")


def _account(item: Attempt) -> str:
    """Return how an attempt resumed, if it did, and how it ended."""
    began = f"resumed from {item.resumed_from}" if item.resumed_from else ""
    return "; ".join(part for part in (began, *item.passed_over, item.reason) if part)


def trials(record: Record) -> list[TrialRow]:
    """Return the results by cell and seed, failed ones first."""
    known = marks(record)
    starts = Counter(item.trial_id for item in record.attempts)
    rows = [_trial(item, known[item.cell_id], starts[item.trial_id], record.cell(item.cell_id).choices.quality,
                   end_word(item.status, record))
            for item in record.results
            if item.cell_id in known]
    return sorted(rows, key=lambda row: (row.status == "ok", row.mark.number, row.repeat))


def missing(record: Record) -> list[Missing]:
    known = marks(record)
    return [Missing(known[trial.cell_id], trial.trial_id, trial.repeat) for trial in record.missing()]


def by_cell(known: Sequence[CellMark], rows: Sequence[TrialRow]) -> list[tuple[CellMark, list[TrialRow]]]:
    """Group the rows by cell and seed, as targets for links; cells without a trial are included."""
    found: dict[int, list[TrialRow]] = {mark.number: [] for mark in known}
    for row in sorted(rows, key=lambda row: row.repeat):
        found[row.mark.number].append(row)
    return [(mark, found[mark.number]) for mark in known]


def _trial(item: Result, mark: CellMark, starts: int, quality: Quality, word: str) -> TrialRow:
    return TrialRow(
        mark=mark, trial_id=item.trial_id, link=f"{FOLDER}/{item.trial_id}/",
        log=f"{FOLDER}/{item.trial_id}/result_{item.attempt}.txt", repeat=item.repeat, attempt=item.attempt,
        status=item.status, word=word, reason=item.reason, wall=seconds(item.tta_wall),
        train=seconds(item.tta_train), cold=seconds(item.tta_cold), epochs=number(item.epochs_to_target),
        rate=number(item.samples_per_second), token_rate=number(quality.tokens(item.samples_per_second)),
        final=number(item.final, 4), derived=quality.words(item.final), peak=gibibytes(item.peak_bytes),
        step=seconds(item.operation.median_seconds if item.operation else item.step_seconds),
        training=number(item.operation.items_per_second if item.operation else item.train_samples_per_second),
        wait=None if item.input_wait_seconds is None else milliseconds(item.input_wait_seconds),
        wait_share=share(item.input_wait_share),
        conservation=share(item.conservation_error), observer=share(item.observer_effect), starts=starts,
        record=f"{FOLDER}/{item.trial_id}/result.json",
        hashes=tuple((HASHES.get(name, name), value[:8], value) for name, value in item.hashes.items()),
        warnings=tuple(one.words for one in item.warnings),
    )
