"""The user's record of questions that runs on this machine have answered: one line for each run.

It is kept outside all runs, in the user's state folder, and it is never required: without it no run fails.
"""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path

from pydantic import Field

from repro.core.errors import OutputError
from repro.core.files import LATEST_MS
from repro.core.frozen import Frozen
from repro.record.folder.ledger import append_line, read_lines

_log = logging.getLogger(__name__)


class Answered(Frozen):
    """A run that tested a question."""

    question: str = Field(pattern="^[0-9a-f]{64}$")
    machine: str
    run: str
    """Name of its folder."""
    master_seed: int
    order_seed: int
    """The seeds identify the run: one that is resumed has one answer, its last."""
    answer: str
    """The verdicts."""
    at_ms: float = Field(ge=0, le=LATEST_MS)


def questions_file() -> Path:
    """Return the file: below `$XDG_STATE_HOME`, else `~/.local/state`.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "repro" / "questions.jsonl"


def earlier_answers(question: str) -> tuple[str, ...]:
    """Return the answers of earlier runs of a question on this machine, one for each run; () if they are unknown."""
    try:
        lines = read_lines(questions_file(), Answered)
    except (OutputError, OSError, RuntimeError) as error:
        _log.debug("earlier questions are unknown: %s", error)
        return ()
    mine = [line for line in lines if (line.question, line.machine) == (question, platform.node())]
    return tuple({(line.master_seed, line.order_seed): line.answer for line in mine}.values())


def keep_answer(line: Answered) -> None:
    """Append the answer of a run; without a word if it cannot be written."""
    try:
        place = questions_file()
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        append_line(place, line)
    except (OutputError, OSError, RuntimeError) as error:
        _log.debug("the answer is not kept: %s", error)
