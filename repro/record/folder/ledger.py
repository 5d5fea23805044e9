"""The append-only files of a run: one line for every start and end of a trial, every incident and every look."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from repro.core import door
from repro.core.errors import OutputError
from repro.core.files import LATEST_MS, Model, read_bounded, refuse_absurd
from repro.core.frozen import Frozen
from repro.record.environment.differences import DifferenceKind
from repro.record.result.reasons import Reason
from repro.record.result.remarks import joined
from repro.record.result.status import STARTED

MAX_LINES_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_LINES = 400_000
"""Largest number of lines of a ledger: two for every start."""


ADJUSTED_MS: Final = 2000.0
"""Milliseconds by which a wall clock may be adjusted without an incident."""
WASH_OUT: Final = 0
"""Number of an unmeasured start; measured ones count from 1."""


class Attempt(Frozen):
    """One start of one trial: a line of the ledger."""

    trial_id: str
    cell_id: str
    repeat: int
    attempt: int = Field(ge=0)
    started_ms: float = Field(ge=0, le=LATEST_MS)
    seconds: float
    status: str
    reasons: tuple[Reason, ...] = ()
    """As of its result; of an attempt without one a text."""
    resumed_from: str = ""
    """The checkpoint that it was resumed from: name and attempt; "" for a start from the beginning."""
    passed_over: tuple[str, ...] = ()
    """Newer checkpoints that it could not be resumed from, each with its reason."""
    nodes: tuple[str, ...] = ()
    """Names of the places of the computers that it ran on, node 0 first (`Placement.name`); (): an early record."""
    shard: str = ""
    """In a run in a pool: the shard that it is of (`NUMBER/RUN`), which is one process on one lane."""
    source: str = ""
    """In a record merged from several runs: the run that this attempt is of, if its seed counts from another one."""

    @property
    def reason(self) -> str:
        """Why it ended as it did, in words."""
        return joined(self.reasons)

    @property
    def known_seconds(self) -> float | None:
        """Duration; None if no process was left to record its end."""
        return None if self.status == STARTED else self.seconds


IncidentKind = Literal["resumed", "difference", "lock", "lost", "machine", "clock", "throttled", "energy", "rerun",
                       "stopped", "budget", "calibration", "checkpoint", "edited",
                       "nodes", "moved", "waited", "asked", "wash_out", "lane"]


class Incident(Frozen):
    """An event of a run that affects the use of its figures: a line of incidents.jsonl."""

    at_ms: float
    """Wall clock, milliseconds since 1970."""
    kind: str
    """One of `IncidentKind`."""
    text: str
    trial_id: str = ""
    difference: DifferenceKind | None = None
    """Kind of the difference; None for an incident of another kind."""


Decision = Literal["settled", "continues", "last", "failed"]
"""settled: the contrast is decided; last: no look is left; failed: a trial of the two cells tells nothing about it, so
no number of further pairs decides."""
ENDS: Final = ("settled", "last")
"""Decisions after which no further trial of the plan runs."""


class Look(Frozen):
    """One look of a sequential run, when the primary contrast was judged: a line of looks.jsonl."""

    model_config = ConfigDict(allow_inf_nan=False)

    number: int = Field(ge=1, le=1000)
    of: int = Field(ge=1, le=1000)
    """Looks that the suite declares."""
    n: int = Field(ge=1, le=1000)
    """Pairs."""
    decision: Decision
    verdict: str
    nominal: float = Field(gt=0, le=1)
    """Level that p was compared with at this look; 0.05 for an e-process."""
    same_nominal: float = Field(gt=0, le=1)
    """The same for each side of sameness."""
    p: float | None = Field(None, ge=0, le=1)
    same_p: float | None = Field(None, ge=0, le=1)
    ratio: float | None = Field(None, gt=0)
    low: float | None = Field(None, gt=0)
    """Ends of the repeated interval: at 1 - nominal; a confidence sequence for an e-process."""
    high: float | None = Field(None, gt=0)
    at_ms: float = 0.0
    """Wall clock, milliseconds since 1970."""


def append_line(path: Path, *lines: Frozen) -> None:
    """Append lines in one write, durable before this returns; on a full disk, remove what was written of them.

    Raises:
        OutputError: it cannot be written.
    """
    text = "".join(json.dumps(line.model_dump(mode="json", exclude_none=True), sort_keys=True) + "\n"
                   for line in lines).encode()
    try:
        handle = door.open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            before = os.fstat(handle).st_size
            try:
                if os.write(handle, text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def cut_torn_line(path: Path) -> None:
    """Remove a last line without its newline, so that the next line does not continue it.

    Raises:
        OutputError: it cannot be read or written.
    """
    if not path.is_file():
        return
    try:
        with door.open_plain(path, "r+b") as stream:
            raw = stream.read()
            if raw and not raw.endswith(b"\n"):
                stream.truncate(raw.rfind(b"\n") + 1)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def read_attempts(path: Path) -> list[Attempt]:
    """Return the measured attempts of a ledger, each by its last line.

    Raises:
        OutputError: a line is not an attempt.
    """
    return [item for item in read_starts(path) if item.attempt != WASH_OUT]


def read_starts(path: Path) -> list[Attempt]:
    """Return all starts of a ledger in their order, each by its last line; of a trial the last unmeasured one.

    Raises:
        OutputError: as `read_attempts`.
    """
    found: dict[tuple[str, int], Attempt] = {}
    for line in read_lines(path, Attempt):
        # Every start has a line when it begins and one when it ends; the later one says more.
        before = found.get((line.trial_id, line.attempt))
        if before is not None and before.started_ms != line.started_ms:
            del found[line.trial_id, line.attempt]  # its place is that of the later start
        found[line.trial_id, line.attempt] = line
    return list(found.values())


def latest(lines: Iterable[Look]) -> tuple[Look, ...]:
    """Return the last line of every look, by number: a look is taken again after a trial before it ran again."""
    return tuple(sorted({line.number: line for line in lines}.values(), key=lambda line: line.number))


def end_of(looks: Sequence[Look]) -> int | None:
    """Return the pairs after which the run ended; None if it goes on."""
    return next((look.n for look in looks if look.decision in ENDS), None)


def read_lines(path: Path, cls: type[Model]) -> list[Model]:
    """Read a file of lines, a model each; [] without the file.

    Raises:
        OutputError: a line is no such model.
    """
    if not path.is_file():
        return []
    # A last line without its newline was being written when the run ended; it says nothing yet.
    complete, _, _ = read_bounded(path, MAX_LINES_BYTES).rpartition(b"\n")
    found: list[Model] = []
    for number, line in enumerate(io.BytesIO(complete), 1):  # not all lines at once: there may be millions, empty
        if number > MAX_LINES:
            raise OutputError(f"{path}:{number}: more lines than any run writes ({MAX_LINES:,} at most)")
        if len(line) > MAX_LINE_BYTES:
            raise OutputError(f"{path}:{number}: a line longer than any run writes ({MAX_LINE_BYTES:,} bytes at most)")
        try:
            found.append(cls.model_validate_json(line))
            refuse_absurd(f"{path}:{number}", line)
        except ValidationError as error:
            what = "ledger line" if cls is Attempt else f"line of {path.name}"
            raise OutputError(f"{path}:{number}: not a {what}: "
                              f"{error.errors(include_input=False)[0]['msg']}") from error
    return found
