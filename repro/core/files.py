"""The files of a record: written aside and renamed, read within bounds that no run reaches and a stranger's may."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repro.core.errors import OutputError

Model = TypeVar("Model", bound=BaseModel)
MAX_JSON_BYTES = 32 << 20
"""Of one file of a record; the plan of 5,000 cells with 20 seeds has half of it."""
MAX_PARTS = 400_000
"""Lists and objects in one file or line; the largest plan (MAX_TRIALS) has 325,000."""
MAX_VALUES = 1_500_000
"""Values in one. A stranger's short ones take up to seventy times their text in memory."""
MAX_ENTRIES = 20_000
"""Of one object."""
SMALL_BYTES = 1 << 20
SMALL_VALUES = 50_000
"""What is no larger than both may be wrong in all of its values: an error for each of them has room in memory."""
LARGEST = 1e100
"""No figure of a run is larger; a count has 63 bits. What is larger turns arithmetic into infinities."""
_SUSPECT = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}|[0-9]{19}")


def write_text(path: Path, text: str) -> None:
    """Text as UTF-8, as `write_bytes` writes."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write aside, make durable, rename: a reader sees the old file or the new one, never half of one."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
        make_durable(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def make_durable(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: a new name survives a power cut only once its
    folder is there as well.

    Raises:
        OSError: it cannot be made so.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_model(path: Path, model: BaseModel) -> None:
    """A model as indented JSON, keys in the order of the class."""
    write_text(path, json.dumps(model.model_dump(mode="json", by_alias=True), indent=1) + "\n")


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def read_model(path: Path, cls: type[Model]) -> Model:
    """Read what `write_model` wrote.

    Raises:
        OutputError: no such file, or not what it should be.
    """
    return parse_model(str(path), read_bounded(path), cls)


def parse_model(place: str, raw: bytes, cls: type[Model]) -> Model:
    """A model out of JSON that a stranger may have written, in bounded memory.

    Args:
        place: the file, and the line where it has several; for errors.

    Raises:
        OutputError: it is none, or more of it than any run writes.
    """
    refuse_crowded(place, raw)
    try:
        if len(raw) > SMALL_BYTES or _values(raw) > SMALL_VALUES:
            _gate(place, cls, json.loads(raw))
        model = cls.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ": ".join(part for part in (place, ".".join(map(str, first["loc"]))) if part)
        raise OutputError(f"{where}: {first['msg']}") from None  # what it holds on to is as large as the file
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{place}: not JSON: {error}") from error
    refuse_absurd(place, raw)
    return model


def _gate(place: str, cls: type[Model], data: Any) -> None:
    """Validate once so that what is wrong shows in bounded memory: an error of pydantic's takes a kilobyte, and from
    JSON also a copy of what it is about.

    Raises:
        ValidationError: as the model's own.
        OutputError: an object with more entries than any run writes.
    """
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if len(value) > MAX_ENTRIES:
                raise OutputError(f"{place}: an object of {len(value):,} entries; no run writes one of more than "
                                  f"{MAX_ENTRIES:,}")
            waiting += (inner for inner in value.values() if isinstance(inner, dict | list))
        elif isinstance(value, list):
            waiting += (inner for inner in value if isinstance(inner, dict | list))
    cls.model_validate(data)


def _values(raw: bytes) -> int:
    """About how many values a JSON text has; signs inside of strings count too."""
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def refuse_crowded(place: str, raw: bytes) -> None:
    """Refuse a JSON text that would take a multiple of its size in memory.

    Raises:
        OutputError: more lists and objects, or values, than any file of a run has.
    """
    parts = raw.count(b"[") + raw.count(b"{")
    if parts > MAX_PARTS or parts + raw.count(b",") > MAX_VALUES:
        raise OutputError(f"{place}: holds more values than any file of a run ({MAX_VALUES:,}, of them {MAX_PARTS:,} "
                          "lists and objects, are the most)")


def read_bounded(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a plain file that a stranger may have written.

    Raises:
        OutputError: it cannot be read, is no plain file (a pipe would be waited for), or is larger than any of a run.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            state = os.fstat(stream.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > limit:
                what = f"is larger than {limit >> 20} MiB" if stat.S_ISREG(state.st_mode) else "is no plain file"
                raise OutputError(f"{path}: {what}")
            return stream.read(limit)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from error


def refuse_absurd(place: str, raw: bytes) -> None:
    """Refuse numbers that nothing measures; a look at the text spares most files the walk.

    Raises:
        OutputError: NaN, an infinity, or a number beyond LARGEST or 63 bits.
    """
    if not _SUSPECT.search(raw):
        return
    waiting: list[tuple[str, Any]] = [("", json.loads(raw))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(path, inner) for inner in value]
        elif isinstance(value, int | float) and not abs(value) <= (LARGEST if isinstance(value, float) else 1 << 63):
            raise OutputError(f"{place}: {path}: a number that no run gives (not finite, or too large)")
