"""What goes into a bundle: the record's own files, without credentials, without places of the machine."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

import repro
from repro.bundle import archive, crate
from repro.core.errors import OutputError
from repro.core.redact import Scrubber
from repro.record import index as record_index
from repro.record.store import Record, read_record


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundle that was written."""

    path: Path
    identity: str
    """sha256 of its index: names the content, whatever the zip library made of it."""
    files: int
    scrubbed: tuple[str, ...]
    """Files in which a credential or a place was replaced."""


def scrubber(root: Path) -> Scrubber:
    """For the run at `root`, in this process."""
    package = Path(repro.__file__).resolve().parent
    temporary = tempfile.gettempdir()
    places = {str(root.resolve()): "<run>", str(Path.cwd()): "<work>", str(package.parent): "<packages>",
              str(Path.home()): "<home>", temporary: "<temporary>"}
    with suppress(OSError, ImportError, KeyError):  # a user without a name; torch names its cache after the others
        places[f"{temporary}/torchinductor_{getuser()}"] = "<temporary>/torchinductor"
    return Scrubber.here(os.environ, places)


def bundle(root: Path, out: Path, licence: str = "not stated") -> Bundled:
    """Pack the run at `root`.

    Raises:
        OutputError: no run folder, a damaged one, a file that cannot be bundled, or `out` cannot be written.
    """
    record = read_record(root)
    clean = scrubber(root)
    files, scrubbed = contents(root, clean)
    index = {name: _sha256(content) for name, content in files.items()}
    files[crate.NAME] = clean.text(crate.metadata(record, files, index, licence).decode()).encode()
    index[crate.NAME] = _sha256(files[crate.NAME])
    if left := clean.left(files[crate.NAME].decode()):
        raise OutputError(f"{root}: the metadata would hold {left}; nothing was written")
    files[record_index.NAME] = record_index.text_of(index).encode()
    archive.pack(out, files)
    return Bundled(out, record_index.identity(index), len(files), scrubbed)


def contents(root: Path, clean: Scrubber) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """(name -> content of every file of the record, names of those that were changed).

    Raises:
        OutputError: a link, a special file, one too large, one that is no text.
    """
    found: dict[str, bytes] = {}
    changed: list[str] = []
    members = list(record_index.members(root))
    for item in members:
        if item.refusal:
            raise OutputError(f"{item.path}: {item.refusal}; move it out of the run folder")
    # Before anything is read: all of it is to be in memory at once.
    archive.refuse_large(root, len(members), sum(item.path.lstat().st_size for item in members))
    for item in members:
        if left := clean.left(item.name):
            raise OutputError(f"{item.path}: its name holds {left}")
        before = _read(item.path)
        after = clean.text(before)
        if after != before:
            changed.append(item.name)
        found[item.name] = after.encode()
    return found, tuple(changed)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def default_name(record: Record) -> str:
    """`SUITE-DIGEST.zip`: the digest of the suite, short."""
    return f"{record.plan.suite.suite}-{record.plan.digest[:12]}.zip"


