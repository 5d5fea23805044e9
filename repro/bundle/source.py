"""The run folder behind a path, which may name a folder, a bundle or an MLflow experiment.

A bundle is a zip, written reproducibly and read as untrusted input.
"""

from __future__ import annotations

import filecmp
import glob
import os
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from repro.core import door, registry
from repro.core.errors import OutputError, ReproError, UsageError
from repro.core.files import replacing
from repro.record.folder.index import LEFT_BY_OTHERS

EXPERIMENT = re.compile(r"mlflow:/*(?P<name>[^/].*)|(?P<server>https?:/.+?)/*#/experiments/(?P<id>\d+)(?:[/?].*)?")
"""`mlflow:NAME`, of the store of MLFLOW_TRACKING_URI, or the address of an experiment in a browser."""


def expanded(places: Sequence[str | Path]) -> list[Path]:
    """Return the places that are meant: of a pattern such as `runs/quick*` what it matches, in order, without links to
    the same.

    Raises:
        UsageError: a pattern matches no run folder and no bundle.
    """
    found: list[Path] = []
    for place in places:
        text = os.fspath(place)
        if os.path.lexists(text) or not glob.has_magic(text) or EXPERIMENT.fullmatch(text):
            found.append(Path(text))
            continue
        matches = [path for path in map(Path, sorted(glob.glob(text)))  # noqa: PTH207  # its base may be anything
                   if (path / "plan.json").is_file() or is_bundle(path)]
        if not matches:
            raise UsageError(f"{text}: matches no run folder and no bundle")
        known = {path.resolve() for path in found}
        found += [path for path in matches if path.resolve() not in known]
    return found


def _fetch(path: Path, to: Path) -> None:
    """Restore the newest record of an MLflow experiment that this tool wrote."""
    match = EXPERIMENT.fullmatch(os.fspath(path))
    assert match is not None
    server = re.sub(r"^(https?):/+", r"\1://", match["server"] or "") or None  # a path has one slash only
    reporter: Any = registry.load("reporter", "mlflow")(tracking_uri=server)
    reporter.rebuild(match["name"] or f"#{match['id']}", to)


@contextmanager
def open_record(path: Path, name: str = "") -> Iterator[Path]:
    """Yield `path` if only its owner can change the folder; copy another folder, unpack a bundle, or fetch an
    MLflow experiment, into a private temporary folder for as long as the context lasts.

    The temporary folder is named like `path`, because reports name runs by their folders. A message of a failure
    inside the context names `path` instead of it.

    Args:
        name: of the temporary folder instead.

    Raises:
        OutputError: the path does not exist, is no bundle, or cannot be copied or unpacked.
        UsageError, TrackingError: as `_fetch`.
    """
    stored = not path.exists() and EXPERIMENT.fullmatch(os.fspath(path)) is not None
    if not stored and not path.exists():
        raise OutputError(f"{path}: no such run folder or bundle")
    if not is_foreign(path):
        yield path
        return
    enter = _fetch if stored else door.copy_private if path.is_dir() else unpack
    with tempfile.TemporaryDirectory(prefix="repro-bundle-") as place:
        folder = Path(place) / (name or folder_name(path))
        enter(path, folder)
        try:
            yield folder
        except ReproError as error:
            error.args = tuple(item.replace(str(folder), str(path)) if isinstance(item, str) else item
                               for item in error.args)
            raise


@contextmanager
def open_records(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Open each path as `open_record` does.

    A record that is named twice is one folder; temporary folders of one name are numbered.

    Raises:
        OutputError: as `open_record`.
    """
    opened: dict[Path, Path] = {}
    with ExitStack() as stack:
        for path in paths:
            if path.resolve() not in opened:
                taken = {other.name for other in opened.values()}
                stem = folder_name(path)
                names = (stem, *(f"{stem} ({number})" for number in range(2, len(paths) + 1)))
                opened[path.resolve()] = stack.enter_context(
                    open_record(path, next(name for name in names if name not in taken)))
        yield [path if path.exists() and opened[path.resolve()].samefile(path) else opened[path.resolve()]
               for path in paths]


def folder_name(path: Path) -> str:
    """Return the name of the folder that a record is copied or unpacked into."""
    stored = EXPERIMENT.fullmatch(os.fspath(path))
    if stored and not path.exists():
        return re.sub(r"[^\w.-]", "-", stored["name"] or f"experiment-{stored['id']}")
    return (path.resolve().name if path.is_dir() else path.stem.strip(".")) or "bundle"


def is_foreign(path: Path) -> bool:
    """Return whether a record is read from a private copy and never changed: a bundle, or a folder of others."""
    return not path.is_dir() or door.is_shared(path)


def is_bundle(path: Path) -> bool:
    """Return whether a path names a bundle, damaged or not, rather than a folder or another file."""
    return path.is_file() and (path.suffix == ".zip" or zipfile.is_zipfile(path))


MAX_ARCHIVE_BYTES = 512 << 20
MAX_TOTAL_BYTES = 512 << 20
MAX_MEMBER_BYTES = 256 << 20
MAX_RATIO = 300
"""Unpacked over packed bytes of the whole archive, beyond a first MAX_FREE_BYTES; logs have 10 to 30."""
MAX_FREE_BYTES = 8 << 20
MAX_MEMBERS = 65_000
MAX_DIRECTORY_BYTES = 12 << 20
MAX_NAME = 400
MAX_DEPTH = 8
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold; the times of the files are in the record."""
PIECE = 1 << 18
DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError, struct.error,
          OverflowError, IndexError)
"""Errors that Python's reader raises for a damaged archive."""


def pack(path: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` (name -> content) to a zip, sorted by name; the same files and zlib give the same bytes.

    Raises:
        OutputError: the archive cannot be written, or a file with other content has its name.
    """
    refuse_large(path, len(files), sum(map(len, files.values())))
    try:
        with replacing(path) as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, False, 6) as archive:
                for name, content in sorted(files.items()):
                    archive.writestr(_entry(name), content)
            stream.flush()
            if path.exists() and not path.is_symlink() and not filecmp.cmp(path, stream.name, shallow=False):
                raise OutputError(f"{path}: exists and is not this bundle; name another file with -o, or remove it")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def refuse_large(path: Path, count: int, size: int) -> None:
    """Refuse a record that `unpack` would refuse.

    Args:
        count: files.
        size: bytes of all of them.

    Raises:
        OutputError: the record exceeds a limit of bundles.
    """
    if count > MAX_MEMBERS or size > MAX_TOTAL_BYTES:
        raise OutputError(f"{path}: a bundle holds at most {MAX_MEMBERS:,} files and {MAX_TOTAL_BYTES >> 20} MiB; "
                          f"this run has {count:,} and {size >> 20:,} MiB")


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def unpack(path: Path, to: Path) -> None:
    """Write every member below `to`: nothing outside it, no links, bounded sizes.

    A file manager zips a folder with its name in front of every member, and files of its own: both are left out.

    Raises:
        OutputError: the archive holds what `pack` does not write, or exceeds a limit; the message names the member.
    """
    to.mkdir(exist_ok=True)
    try:
        with path.open("rb") as stream:
            _check_end(path, stream)
            with zipfile.ZipFile(stream) as archive:
                # Other tools write folders too; those of the files are made in any case.
                entries = [entry for entry in archive.infolist() if entry.file_size or not entry.is_dir()]
                _check_members(path, entries)
                entries = [entry for entry in entries if not entry.filename.startswith("__MACOSX/")
                           and not LEFT_BY_OTHERS.fullmatch(entry.filename.rpartition("/")[2])]
                tops = {entry.filename.partition("/")[0] for entry in entries}
                if len(tops) == 1 and f"{min(tops)}/plan.json" in {entry.filename for entry in entries}:
                    for entry in entries:
                        entry.filename = entry.filename.partition("/")[2]
                allowed = min(max(MAX_FREE_BYTES, MAX_RATIO * os.fstat(stream.fileno()).st_size), MAX_TOTAL_BYTES)
                _write(path, archive, entries, to, allowed)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise OutputError(f"{path}: a damaged zip: {text}; nothing was unpacked; request the bundle again") from error


def _check_end(path: Path, stream: BinaryIO) -> None:
    """Check the size of the directory before Python's reader loads it: the reader trusts the stated size."""
    size = stream.seek(0, os.SEEK_END)
    if size > MAX_ARCHIVE_BYTES:
        raise OutputError(f"{path}: larger than {MAX_ARCHIVE_BYTES >> 20} MiB, the limit of a bundle")
    stream.seek(max(0, size - 42))
    tail = stream.read(42)
    end = tail[-22:]
    if len(end) < 22 or end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
        raise OutputError(f"{path}: not a bundle: not a zip, or truncated at {size:,} bytes")
    _, count, directory = struct.unpack("<8xHHLxxxxxx", end)
    if tail[:4] == b"PK\6\7" or (count >= 0xFFFF and directory >= 0xFFFFFFFF):
        raise OutputError(f"{path}: not a bundle: a zip64 archive; bundles are plain zip")
    if directory > MAX_DIRECTORY_BYTES:
        raise OutputError(f"{path}: its directory is larger than {MAX_DIRECTORY_BYTES >> 20} MiB, the limit of a "
                          "bundle")
    stream.seek(0)


def _check_members(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_MEMBERS:
        raise OutputError(f"{path}: more than {MAX_MEMBERS:,} files, the limit of a bundle")
    seen: set[str] = set()
    for entry in entries:
        if why := _unfit(entry) or ("occurs twice" if entry.filename in seen else ""):
            raise OutputError(f"{path}: member {entry.filename[:120]!a}: {why}; nothing was unpacked")
        seen.add(entry.filename)
    files = [name for name in seen if any(str(other) in seen for other in PurePosixPath(name).parents)]
    if files:
        raise OutputError(f"{path}: member {min(files)[:120]!a}: is below another file; nothing was unpacked")
    stated = sum(entry.file_size for entry in entries)
    if stated > MAX_TOTAL_BYTES:
        raise OutputError(f"{path}: would unpack to {stated >> 20:,} MiB (limit {MAX_TOTAL_BYTES >> 20}); "
                          "nothing was unpacked")


def _unfit(entry: zipfile.ZipInfo) -> str:
    """Return why a member must not be unpacked, or ""."""
    # `filename` ends at a NUL and has changed separators; `orig_filename` is what the archive holds.
    name, parts = entry.orig_filename, entry.orig_filename.split("/")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if name != entry.filename or "\\" in name or any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        return "its name holds a backslash or control character"
    if name.startswith("/") or ":" in name or any(part in ("", ".", "..") for part in parts):
        return "its name leads out of the folder, or names a folder"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME or len(parts) > MAX_DEPTH:
        return f"its name is longer than {MAX_NAME} bytes or {MAX_DEPTH} levels"
    if kind not in (0, stat.S_IFREG):
        return "a link or special file; links are not followed"
    if entry.flag_bits & 0x1:
        return "encrypted"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "compressed by a method that bundles do not use"
    return ""


def _write(path: Path, archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], to: Path, allowed: int) -> None:
    """Unpack piece by piece, counting bytes: the sizes in the directory may be wrong."""
    written = 0
    made = {to}
    for entry in entries:
        place = to.joinpath(*entry.filename.split("/"))
        if place.parent not in made:
            place.parent.mkdir(parents=True, exist_ok=True)
            made.add(place.parent)
        size = 0
        with archive.open(entry) as source, place.open("xb") as target:
            while piece := source.read(PIECE):
                size += len(piece)
                written += len(piece)
                if size > MAX_MEMBER_BYTES or written > allowed:
                    raise OutputError(f"{path}: member {entry.filename[:120]!a}: unpacks to more than the limit of a "
                                      f"bundle ({allowed >> 20} MiB in all); unpacking stopped")
                target.write(piece)
