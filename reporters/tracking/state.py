"""tracking.json: how far a record has been sent to each tracking store. A cache: lost, it is found again by tags."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from repro.core.errors import OutputError
from repro.core.files import read_bounded, refuse_crowded, write_text
from repro.record.store import Record

MAX_BYTES = 64 << 20
"""Of a hundred thousand trials."""


class Cursor(BaseModel):
    """How much of one log the server has taken."""

    offset: int = 0
    """Bytes."""
    count: int = 0
    """Points made of them."""


class Sent(BaseModel):
    """What the server has taken of one run."""

    run_id: str
    logs: dict[str, Cursor] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """Artifact path -> sha256 of what was uploaded."""
    done: tuple[int, int] | None = None
    """Start and end, milliseconds since 1970, of a trial that has ended and of which all was taken."""


class Store(BaseModel):
    """One tracking store."""

    experiment: str = ""
    runs: dict[str, Sent] = Field(default_factory=dict)
    whole: bool = False
    """All that there was at the last replay was taken."""


class State(BaseModel):
    """The whole file; stores by their URI without credentials."""

    version: int = 1
    run: str = ""
    stores: dict[str, Store] = Field(default_factory=dict)


def read_state(path: Path) -> State:
    """The state on disk, or an empty one where there is none that can be read."""
    try:
        raw = read_bounded(path, MAX_BYTES)
        refuse_crowded(str(path), raw)
        return State.model_validate_json(raw)
    except (OutputError, ValidationError):
        return State()


def remember(path: Path, state: State) -> None:
    """Write it down; in a folder that cannot be written the next replay asks the store what it has."""
    with suppress(OutputError):
        write_text(path, state.model_dump_json(exclude_defaults=True) + "\n")


def identity(record: Record) -> str:
    """Names one execution of a plan, the same for as long as its folder lives, whether or not tracking.json does.

    Plan and environment say what was run, where and when, and are never written again.
    """
    folder = record.folder
    found = hashlib.sha256(folder.plan.read_bytes() + folder.environment.read_bytes())
    return found.hexdigest()[:24]
