"""The user's record of runs on this machine: questions that they have answered, and what they were let do.

It is kept outside all runs, in the user's state folder, and it is never required: without it no run fails.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from pathlib import Path

from pydantic import Field

from repro.core.errors import UsageError
from repro.core.files import LATEST_MS
from repro.core.frozen import Frozen
from repro.core.machine import user_folder
from repro.record.folder.ledger import append_line, read_lines
from repro.suite.planning.plan import Plan
from repro.suite.planning.question import stop_of

_log = logging.getLogger(__name__)
BEGUN, QUESTIONS = "begun.jsonl", "questions.jsonl"


class Answered(Frozen):
    """A run that tested a question."""

    question: str = Field(pattern="^[0-9a-f]{64}$")
    machine: str
    run: str
    """Name of its folder."""
    master_seed: int
    order_seed: int
    """The seeds identify the run: one that is resumed has one answer, its last."""
    stop: str = ""
    """Hash of its targets and rules to stop; "": an earlier version wrote the line."""
    terms: str = ""
    """Hash of the terms of a reproduction; "": none, or an earlier version wrote the line."""
    answer: str
    """The verdicts."""
    at_ms: float = Field(ge=0, le=LATEST_MS)


class Begun(Frozen):
    """A run that the user began here."""

    machine: str
    run: str
    """Its folder, absolute."""
    permits: str = Field(pattern="^[0-9a-f]{64}$")
    """Hash of its code, commands, files and options that lead out of it."""
    at_ms: float = Field(ge=0, le=LATEST_MS)


def questions_file() -> Path:
    """Return the file: below `$XDG_STATE_HOME`, else `~/.local/state`.

    Raises:
        UsageError: the user has no home folder.
    """
    return _state() / QUESTIONS


def _state() -> Path:
    return user_folder("XDG_STATE_HOME", ".local/state") / "repro"


def _keep(name: str, line: Frozen) -> None:
    """Append a line to a file of the user's state; without a word if it cannot be written."""
    try:
        _state().mkdir(mode=0o700, parents=True, exist_ok=True)
        append_line(_state() / name, line)
    except (UsageError, OSError) as error:
        _log.debug("%s is not written: %s", name, error)


def keep_begun(run: Path, permits: str) -> None:
    """Note that the user began a run in the folder `run`; without a word if it cannot be written."""
    _keep(BEGUN, Begun(machine=platform.node(), run=str(run.resolve()), permits=permits,
                       at_ms=round(time.time() * 1e3)))


def begun_here(run: Path, permits: str) -> bool:
    """Return whether the user began the run in this folder on this machine, with the same code and options."""
    try:
        lines = read_lines(_state() / BEGUN, Begun)
    except (UsageError, OSError) as error:
        _log.debug("runs that began here are unknown: %s", error)
        return False
    wanted = platform.node(), str(run.resolve()), permits
    return any((line.machine, line.run, line.permits) == wanted for line in lines)


def answered(question: str) -> list[Answered]:
    """Return the latest line of each run of a question on this machine; [] if they are unknown."""
    try:
        lines = read_lines(questions_file(), Answered)
    except (UsageError, OSError) as error:
        _log.debug("earlier questions are unknown: %s", error)
        return []
    mine = [line for line in lines if (line.question, line.machine) == (question, platform.node())]
    return list({(line.master_seed, line.order_seed): line for line in mine}.values())


def earlier_answers(question: str, plan: Plan) -> tuple[str, ...]:
    """Return the answers of other runs than that of `plan` to a question on this machine; () if they are unknown."""
    own = plan.master_seed, plan.order_seed
    return tuple(line.answer for line in answered(question) if (line.master_seed, line.order_seed) != own)


def began_otherwise(question: str, plan: Plan) -> bool:
    """Return whether the run of `plan` began on this machine with other terms."""
    return any(line.terms not in ("", _terms_of(plan)) for line in answered(question)
               if (line.master_seed, line.order_seed) == (plan.master_seed, plan.order_seed))


def _terms_of(plan: Plan) -> str:
    return hashlib.sha256(plan.terms.model_dump_json().encode()).hexdigest() if plan.terms else ""


def keep_answer(question: str, plan: Plan, run: Path, answer: str) -> None:
    """Append the answer of a run in the folder `run`; without a word if it cannot be written."""
    _keep(QUESTIONS, Answered(
        question=question, machine=platform.node(), run=run.resolve().name, master_seed=plan.master_seed,
        order_seed=plan.order_seed, stop=stop_of(plan), terms=_terms_of(plan), answer=answer,
        at_ms=round(time.time() * 1e3)))
