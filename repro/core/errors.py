"""The exception tree and the exit codes.

::

    ReproError                     exit 1   anything a user may see as one line
    ├── UsageError                 exit 2   what was asked for cannot be done as written
    │   ├── SuiteError             exit 2   a suite file or an override is wrong (file, line, field)
    │   ├── UnknownName            exit 2   no plug-in, suite or key of that name (nearest valid one is named)
    │   ├── OutputError            exit 2   a folder or file cannot be written or read
    │   └── GuardError             exit 2   strict, and the machine would spoil the figures
    ├── RecordModified                 exit 3   a record was altered since it was made
    ├── TrialError                 exit 1   a trial could not be carried through
    │   ├── ParityError            exit 1   two engines do not train alike (step, tensor)
    │   └── CheckpointError        exit 1   a checkpoint cannot be written (which, why)
    │       └── CheckpointRefused  exit 1   a checkpoint cannot be gone on from (which, why)
    └── TrackingError              exit 1   the tracking server did not take what was sent

    KeyboardInterrupt
    └── Interrupted                exit 130 a signal that ends a run; it knows which

Exit codes: 0 done, 1 a trial failed, 2 usage or suite error, 3 compared and not reproduced, altered, or target missed,
130 interrupted with the partial record kept.
"""

from __future__ import annotations

import difflib
import signal
import unicodedata
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    TRIAL_FAILED = 1
    USAGE = 2
    NOT_REPRODUCED = 3
    INTERRUPTED = 130


LONGEST_MESSAGE = 1500
"""Characters of a message; a name of thousands tells nobody more."""


class ReproError(Exception):
    """A failure that a user reads as one line; `exit_code` is what the command ends with."""

    exit_code: Exit = Exit.TRIAL_FAILED

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(ReproError):
    """What was asked for cannot be done as written."""

    exit_code = Exit.USAGE


class SuiteError(UsageError):
    """A suite is wrong: says where (file, line, field) and what would be right."""

    def __init__(self, problem: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        place = ":".join(part for part in (file, str(line) if line else "") if part)
        prefix = ": ".join(part for part in (place, field) if part)
        super().__init__(f"{prefix}: {problem}" if prefix else problem)
        self.problem, self.file, self.line, self.field = problem, file, line, field


class UnknownName(UsageError):
    """No such name among `known`; the nearest one is offered."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {what} named {name!r}{nearest(name, known)}")


class OutputError(UsageError):
    """A folder or file cannot be written or read."""


class GuardError(UsageError):
    """A run that is to be strict meets a machine that would spoil its figures."""


class RecordModified(ReproError):
    """A record was altered since it was made."""

    exit_code = Exit.NOT_REPRODUCED


class TrialError(ReproError):
    """A trial could not be carried through."""


class ParityError(TrialError):
    """Two engines do not train alike; the message names the first step and tensor that differ."""


class CheckpointError(TrialError):
    """A checkpoint cannot be written: which one, and why."""


class CheckpointRefused(CheckpointError):
    """A checkpoint cannot be gone on from: which one, and why. Raised while one is read, and only then."""


class TrackingError(ReproError):
    """The tracking server did not take what was sent; the record on disk is complete all the same."""


class Interrupted(KeyboardInterrupt):
    """A signal that ends a run as Ctrl-C does; which one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def interrupter(error: KeyboardInterrupt) -> str:
    """Who ended a run, in a word: SIGTERM, SIGHUP, or Ctrl-C for SIGINT and for whoever raised it without a signal."""
    if not isinstance(error, Interrupted) or error.number == signal.SIGINT:
        return "Ctrl-C"
    try:
        return signal.Signals(error.number).name
    except ValueError:
        return f"signal {error.number}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A half sentence that names the valid name closest to `name`, or all of them when none is close."""
    choices = sorted(known)
    close = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(choices)}" if choices else ""


def one_line(text: str) -> str:
    """`text` as one line that any terminal can show: what is wrong often quotes a file by a stranger.

    Lines are joined by ` | `; control, format and direction characters and lone surrogates become escapes; a long text
    loses its middle.
    """
    text = " | ".join(line for line in text.splitlines() if line.strip())
    text = "".join(sign if unicodedata.category(sign)[0] != "C" else ascii(sign)[1:-1] for sign in text)
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"
