"""The exception tree and the exit codes.

::

    ReproError                     exit 1   any failure that a user sees as one line
    ├── UsageError                 exit 2   the request cannot be carried out as written
    │   ├── SuiteError             exit 2   a suite file or an override is wrong (file, line, field)
    │   ├── UnknownName            exit 2   no plug-in, suite or key has this name (names the nearest one)
    │   ├── OutputError            exit 2   a folder or file cannot be written or read
    │   └── GuardError             exit 2   --strict, and the machine would distort the figures
    ├── RecordModified             exit 3   a record was modified after it was made
    ├── TrialError                 exit 1   a trial could not be completed
    │   ├── OutOfMemory            exit 1   an allocation failed (how much, when, what needs less)
    │   ├── ParityError            exit 1   two engines train differently (step, tensor)
    │   └── CheckpointError        exit 1   a checkpoint cannot be written (which, why)
    │       └── CheckpointRefused  exit 1   a checkpoint cannot be resumed (which, why)
    └── TrackingError              exit 1   the tracking server rejected what was sent

    KeyboardInterrupt
    ├── Interrupted                exit 130 a signal that ends a run, with its number
    └── RunInterrupted                      a signal ended `repro.run` or `repro.gate` (what is left)

Exit codes: 0 done; 1 a trial failed, or an internal error; 2 usage or suite error; 3 a target was missed or a trial
diverged, a condition holds, a record was modified or not reproduced; 130 interrupted, with the partial record kept.
"""

from __future__ import annotations

import difflib
import signal
import unicodedata
from collections.abc import Iterable, Sequence
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the process."""

    DONE = 0
    TRIAL_FAILED = 1
    USAGE = 2
    NOT_REPRODUCED = 3
    INTERRUPTED = 130


LONGEST_MESSAGE = 1500
"""Longest message, in characters; longer ones lose their middle."""


class ShownAsLine(BaseException):
    """An error that a notebook shows as one line, without a traceback."""

    def _render_traceback_(self) -> list[str]:  # of IPython
        return [f"{type(self).__name__}: {self}"]


class ReproError(ShownAsLine, Exception):
    """A failure that the user sees as one line; the command ends with its `exit_code`."""

    exit_code: Exit = Exit.TRIAL_FAILED

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(ReproError):
    """The request cannot be carried out as written."""

    exit_code = Exit.USAGE


class SuiteError(UsageError):
    """A suite is wrong; the message says where (file, line, field) and what would be right."""

    def __init__(self, problem: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        place = ":".join(part for part in (file, str(line) if line else "") if part)
        prefix = ": ".join(part for part in (place, field) if part)
        super().__init__(f"{prefix}: {problem}" if prefix else problem)
        self.problem, self.file, self.line, self.field = problem, file, line, field


class UnknownName(UsageError):
    """`name` is not among `known`; the message offers the nearest one."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {what} named {name!r}{nearest(name, known)}")


class OutputError(UsageError):
    """A folder or file cannot be written or read."""


class GuardError(UsageError):
    """The run is strict, and the machine would distort its figures."""


class RecordModified(ReproError):
    """A record was modified after it was made."""

    exit_code = Exit.NOT_REPRODUCED


class TrialError(ReproError):
    """A trial could not be completed."""


class OutOfMemory(TrialError):
    """An allocation failed; the message says how much, when, and what would need less."""


class ParityError(TrialError):
    """Two engines train differently; the message names the first different step and tensor.

    Args:
        failures: a line each, below the message.
    """

    def __init__(self, message: str, failures: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *map(one_line, self.failures)])


class CheckpointError(TrialError):
    """A checkpoint cannot be written; the message says which and why."""


class CheckpointRefused(CheckpointError):
    """A checkpoint cannot be resumed; the message says which and why. Raised only while a checkpoint is read."""


class TrackingError(ReproError):
    """The tracking server rejected what was sent; the record on disk is complete nevertheless."""


class Interrupted(KeyboardInterrupt):
    """A signal that ends a run as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class RunInterrupted(ShownAsLine, KeyboardInterrupt):
    """A signal ended `repro.run` or `repro.gate` in order; the message says what is left and how to go on."""


def interrupter(error: KeyboardInterrupt) -> str:
    """Return the cause of an interrupt: SIGTERM, SIGHUP, or Ctrl-C for SIGINT and for an exception without a signal."""
    if not isinstance(error, Interrupted) or error.number == signal.SIGINT:
        return "Ctrl-C"
    try:
        return signal.Signals(error.number).name
    except ValueError:
        return f"signal {error.number}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the closest valid name, or `; valid: ...` if none is close."""
    choices = sorted(known)
    close = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(choices)}" if choices else ""


def one_line(text: str) -> str:
    """Return `text` as one line, safe on any terminal: messages often quote untrusted files.

    Lines are joined by ` | `; control, format and direction characters and lone surrogates become escapes; a long text
    loses its middle.
    """
    text = " | ".join(line for line in text.splitlines() if line.strip())
    text = visible(text)
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def visible(text: str, kept: str = "") -> str:
    """Return `text` with control, format and direction characters and lone surrogates, but `kept`, as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(sign if unicodedata.category(sign)[0] != "C" or sign in kept else ascii(sign)[1:-1] for sign in text)
