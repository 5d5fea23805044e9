"""Files of a record: written atomically, and read within bounds that only a hostile file exceeds."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from repro.core import door
from repro.core.errors import OutputError

Model = TypeVar("Model", bound=BaseModel)
MAX_JSON_BYTES = 32 << 20
"""Largest file of a record; the plan of 5,000 cells with 20 seeds has half of it."""
MAX_PARTS = 400_000
"""Most lists and objects in one file or line; the largest plan (MAX_TRIALS) has 325,000."""
MAX_VALUES = 1_500_000
"""Most values in one file. Short values take up to seventy times their text in memory."""
MAX_ENTRIES = 20_000
"""Most entries of one object."""
SMALL_BYTES = 1 << 20
SMALL_VALUES = 50_000
"""In a file within both limits every value may be wrong: an error for each fits in memory."""
LARGEST = 1e100
"""Largest number that a run writes; a count has 63 bits. Larger numbers turn arithmetic into infinities."""
LATEST_MS = 253_402_300_799_999
"""End of the year 9999 in milliseconds since 1970, the last moment that has a date."""
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_SUSPECT, _LONG = (b"NaN", b"Infinity", b"e000", b"e+000"), b"0" * 19
"""Parts of numbers that no run writes, all digits as 0: searching for a part is ten times faster than a pattern."""


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a temporary file, make it durable, rename it: a reader sees the old file or the new one, never a part."""
    try:
        with replacing(path) as stream:
            stream.write(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a temporary file, make it durable, rename it; missing folders are made. An error leaves the old file.

    The temporary file is a new one: a link of its name, or the file of a killed writer, is removed.

    Raises:
        OSError: it cannot be written.
    """
    aside = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        aside.unlink(missing_ok=True)
        with aside.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
        make_durable(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def make_durable(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: a new name survives a power cut only after its
    folder has been synchronised too.

    Raises:
        OSError: the file system refuses.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_model(path: Path, model: BaseModel) -> None:
    """Write a model as indented JSON, keys in the order of the class."""
    write_text(path, json.dumps(model.model_dump(mode="json", by_alias=True), indent=1) + "\n")


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def read_model(path: Path, cls: type[Model]) -> Model:
    """Read a file written by `write_model`.

    Raises:
        OutputError: the file is missing or invalid.
    """
    return parse_model(str(path), read_bounded(path), cls)


def parse_model(place: str, raw: bytes, cls: type[Model]) -> Model:
    """Parse a model from untrusted JSON, in bounded memory.

    Args:
        place: the file, and its line if it has several; for errors.

    Raises:
        OutputError: not such a model, or larger than any run writes.
    """
    refuse_crowded(place, raw)
    try:
        values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")  # about: those inside strings count too
        if len(raw) > SMALL_BYTES or values > SMALL_VALUES:
            _gate(place, cls, json.loads(raw))
        model = cls.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ": ".join(part for part in (place, ".".join(map(str, first["loc"]))) if part)
        raise OutputError(f"{where}: {first['msg']}") from None  # the error keeps values as large as the file
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{place}: not JSON: {error}") from error
    refuse_absurd(place, raw)
    return model


def _gate(place: str, cls: type[Model], data: Any) -> None:
    """Validate parsed data first, so that errors show in bounded memory: an error of pydantic's takes a kilobyte, and
    from JSON also a copy of the value.

    Raises:
        ValidationError: raised by the model.
        OutputError: an object with more entries than any run writes.
    """
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if len(value) > MAX_ENTRIES:
                raise OutputError(f"{place}: an object of {len(value):,} entries; a run writes at most "
                                  f"{MAX_ENTRIES:,}")
            waiting += (inner for inner in value.values() if isinstance(inner, dict | list))
        elif isinstance(value, list):
            waiting += (inner for inner in value if isinstance(inner, dict | list))
    cls.model_validate(data)


def refuse_crowded(place: str, raw: bytes) -> None:
    """Refuse a JSON text that would take many times its size in memory.

    Raises:
        OutputError: more lists and objects, or values, than any file of a run has.
    """
    parts = raw.count(b"[") + raw.count(b"{")
    if parts > MAX_PARTS or parts + raw.count(b",") > MAX_VALUES:
        raise OutputError(f"{place}: holds more values than any file of a run (at most {MAX_VALUES:,}, of which "
                          f"{MAX_PARTS:,} lists and objects)")


def is_deep(value: Any, levels: int) -> bool:
    """Return True if lists and objects in a value are nested deeper than `levels`; it does not recurse."""
    level = [value]
    for _ in range(levels):
        level = [inner for item in level if isinstance(item, dict | list)
                 for inner in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return False
    return True


def read_bounded(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read an untrusted plain file, within `limit` bytes.

    Raises:
        OutputError: it is unreadable, no plain file (a pipe would block), or larger than `limit`.
    """
    try:
        with door.open_plain(path) as stream:
            if os.fstat(stream.fileno()).st_size > limit:
                raise OutputError(f"{path}: is larger than {limit >> 20} MiB")
            found: bytes = stream.read(limit)
            return found
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from error


def refuse_absurd(place: str, raw: bytes) -> None:
    """Refuse numbers that no run writes; a search of the text outside strings avoids the walk for most files.

    Args:
        raw: valid JSON.

    Raises:
        OutputError: NaN, an infinity, or a number beyond LARGEST or 63 bits.
    """
    outside = raw.replace(rb"\\", b"").replace(rb'\"', b"").split(b'"')[::2]
    numbers = b'"'.join(outside).translate(_ALIKE)
    long = numbers.count(_LONG) > numbers.count(b"." + _LONG)  # a fraction may have as many digits
    if not long and not any(part in numbers for part in _SUSPECT):
        return
    waiting: list[tuple[str, Any]] = [("", json.loads(raw))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(path, inner) for inner in value]
        elif isinstance(value, int | float) and not abs(value) <= (LARGEST if isinstance(value, float) else 1 << 63):
            raise OutputError(f"{place}: {path}: a number that no run writes (not finite, or too large)")
