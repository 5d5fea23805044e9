"""tracking.json: how much of a record each tracking store has. A cache: if it is lost, tags restore it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from repro.core.errors import OutputError
from repro.core.files import read_bounded, refuse_crowded, write_text
from repro.record.folder.store import Record

MAX_BYTES = 64 << 20
"""Enough for a hundred thousand trials."""


class Cursor(BaseModel):
    """The part of one log that the server has."""

    offset: int = 0
    """Bytes."""
    count: int = 0
    """Points in these bytes."""


class Sent(BaseModel):
    """The part of one run that the server has."""

    run_id: str
    logs: dict[str, Cursor] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """Artifact path -> sha256 of the uploaded file."""
    done: tuple[int, int] | None = None
    """Start and end, milliseconds since 1970, of an ended trial that was sent completely."""


class Store(BaseModel):
    """One tracking store."""

    experiment: str = ""
    runs: dict[str, Sent] = Field(default_factory=dict)
    whole: bool = False
    """True if the last replay sent everything."""


class State(BaseModel):
    """The complete file; stores by their URI without credentials."""

    run: str = ""
    stores: dict[str, Store] = Field(default_factory=dict)


def read_state(path: Path) -> State:
    """Read the state; an empty one if there is no readable file."""
    try:
        raw = read_bounded(path, MAX_BYTES)
        refuse_crowded(str(path), raw)
        return State.model_validate_json(raw)
    except (OutputError, ValidationError):
        return State()


def own_state(record: Record) -> tuple[State, str]:
    """Return the state of a record, and a warning if the file is of another record, which is not used then.

    A record of a stranger could name runs that belong to another of the user's records, and they would be written to.
    """
    state, run = read_state(record.folder.tracking), identity(record)
    if state.run in ("", run):
        return state.model_copy(update={"run": run}), ""
    return State(run=run), (f"{record.folder.tracking}: names the MLflow runs of another record; they are left as they "
                            "are, and this record gets its own")


def remember(path: Path, state: State) -> None:
    """Write the state; if the folder is not writable, the next replay asks the store what it has."""
    with suppress(OutputError):
        write_text(path, state.model_dump_json(exclude_defaults=True) + "\n")


def identity(record: Record) -> str:
    """Return the id of one execution of a plan; it does not depend on tracking.json.

    It is a hash of plan and environment, which say what ran where and when, and which are written only once.
    """
    folder = record.folder
    found = hashlib.sha256(folder.plan.read_bytes() + folder.environment.read_bytes())
    return found.hexdigest()[:24]
