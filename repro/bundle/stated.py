"""The answer of a reproduction as its folder states it, in a file that `verify` does not cover."""

from __future__ import annotations

import hashlib
import json

from repro.bundle.judge import Answer
from repro.core.errors import OutputError
from repro.core.files import read_model
from repro.core.frozen import Lenient
from repro.record.folder.store import Record

ANSWER_FILE = "reproduction.json"
"""Its name."""


def figures_sha256(record: Record) -> str:
    """Return a hash over the times and figures of the trials, which identifies an execution as a run or a bundle."""
    starts = [[item.trial_id, item.attempt, item.started_ms] for item in record.attempts]
    figures = [[item.trial_id, item.attempt, item.status, item.run_seconds,
                [[at.samples, at.wall_seconds, at.value] for at in item.curve]] for item in record.results]
    return hashlib.sha256(json.dumps([starts, figures]).encode()).hexdigest()


class StatedClaim(Lenient):
    """The answer for one claim, of a stated answer."""

    label: str
    answer: Answer
    because: str
    cautions: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


class StatedAnswer(Lenient):
    """The answer that the folder of a second execution states in a file that `verify` does not cover."""

    of: str
    """Hash of the figures of the record, as in the terms."""
    again: str = ""
    """Hash of the figures of the second execution."""
    source: str
    """Name of the record's file or folder."""
    answer: Answer | None
    """None: the second execution did not end."""
    claims: tuple[StatedClaim, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        """Statements that stand beside the answer."""
        found = (text for claim in self.claims for text in (*claim.limits, *claim.cautions))
        return tuple(dict.fromkeys((*self.warnings, *found)))


def stated_answer(second: Record) -> StatedAnswer | str:
    """Return the answer that the folder of a second execution states, or why there is none."""
    path, terms = second.folder.root / ANSWER_FILE, second.plan.terms
    if not path.exists():
        return f"{ANSWER_FILE} is not in its folder"
    try:
        found = read_model(path, StatedAnswer)
    except OutputError as error:
        return f"{ANSWER_FILE} cannot be read: {error}"
    if terms is None or found.of != terms.record:
        return f"{ANSWER_FILE} is about another record"
    if found.answer is None:
        return "it did not end"
    return found if found.again == figures_sha256(second) else f"{ANSWER_FILE} is about another execution"
