"""Prepare a data set: find its files, convert them if need be, examine and hash each, and write the manifest.

Hashes are kept in `partial.txt` as they are made. A preparation that was interrupted goes on there: a file whose size
and time of change are as noted is not read again.

Everything is written to a folder beside that of the data set and takes its place at the end: whatever goes wrong, an
earlier preparation stays as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np

from repro.core import registry
from repro.core.errors import OutputError, ReproError, UnknownName, UsageError
from repro.workloads.data import manifest
from repro.workloads.data.form import VARIABLE, DataForm, Facts, Progress, folder_of
from repro.workloads.data.manifest import Entry, Manifest, Prepared

THREADS = min(8, os.cpu_count() or 1)
"""Hashing and decoding release the interpreter's lock."""
SLICE = 512
"""Files between two writes of `partial.txt`."""
CHUNK = 1 << 20
PARTIAL = "partial.txt"
FRESH, OLD = ".new", ".old"
"""Endings of the folders beside that of a data set: of the preparation that is being made, and of the one it re
"""


def prepare(form: DataForm, given: Path, progress: Progress) -> Prepared:
    """Prepare the data set `form` from the files in `given` and return it.

    Raises:
        UsageError: the files are absent or not what the data set needs, or too few for any suite; the message names
            the file.
        OutputError: the store cannot be written.
    """
    if not given.exists():
        raise UsageError(f"{given}: does not exist; {form.name} needs {form.wanted}")
    home = folder_of(form.name).resolve()  # a link to a larger disk stays one
    if home in (given.resolve(), *given.resolve().parents):
        raise UsageError(f"{given}: is in the folder of the prepared data set, which is replaced; name the folder that "
                         f"it was made from")
    fresh = home.with_name(home.name + FRESH)
    own = fresh / manifest.OWN
    try:
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{own}: cannot be written: {error.strerror}; {VARIABLE} names another folder"
                          ) from error
    try:
        found = _written(form, given, fresh, progress)
        _swap(fresh, home)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)  # converted files are made anew; hashes of the given ones are kept
        with suppress(OSError):  # there are some
            fresh.rmdir()
        raise
    place = folder_of(form.name)
    return Prepared(place, found.manifest, place / manifest.OWN if found.folder == own else found.folder)


def _written(form: DataForm, given: Path, home: Path, progress: Progress) -> Prepared:
    """Convert, examine and hash the files, and write the data set to `home`, whose folder for own files is empty."""
    own = home / manifest.OWN
    folder = form.source_folder(given, own, progress)
    if folder != own:
        own.rmdir()
    files = form.files(folder)
    if odd := next((name for name in files if not name.isprintable()), None):
        raise UsageError(f"{odd!r}: a file of a data set has only printable characters in its name; rename it")
    entries, mtimes = _hashed(form, folder, files, home / PARTIAL, progress)
    facts = dict(form.facts(folder, files))
    if problem := problem_of(form, facts):
        shutil.rmtree(home, ignore_errors=True)
        raise UsageError(f"{given}: {problem}; {form.name} needs {form.wanted}")
    lines = manifest.list_lines(entries)
    made = Manifest(
        name=form.name, version=form.version(facts), licence=form.licence, source=form.source, facts=facts,
        files=len(entries), bytes=sum(item.size for item in entries), files_sha256=sha256(lines).hexdigest(),
    )
    found = manifest.write(home, made, lines, mtimes, folder)
    (home / PARTIAL).unlink(missing_ok=True)
    return found


def _swap(fresh: Path, home: Path) -> None:
    """Put the new preparation in the place of the earlier one.

    Raises:
        OutputError: the store does not allow it.
    """
    old = home.with_name(home.name + OLD)
    try:
        shutil.rmtree(old, ignore_errors=True)
        if home.exists():
            home.rename(old)
        fresh.rename(home)
    except OSError as error:
        raise OutputError(f"{home}: cannot be replaced: {error.strerror}") from error
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    """Yield threads for hashing; after an error or Ctrl-C files that are waiting are left out."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def hash_file(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    digest = sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _hashed(
    form: DataForm, folder: Path, files: Sequence[str], partial: Path, progress: Progress
) -> tuple[list[Entry], np.ndarray]:
    """Examine and hash every file; return the entries and when each file was changed [n] int64."""
    known = _read_partial(partial, folder)
    found: list[tuple[Entry, int]] = []
    progress("files", 0, len(files))
    with threads() as pool, _open_partial(partial, folder, bool(known)) as notes:
        for start in range(0, len(files), SLICE):
            part = files[start:start + SLICE]
            for entry, mtime, new in pool.map(lambda name: _one(form, folder, name, known), part):
                found.append((entry, mtime))
                if new:
                    notes.write(f"{entry.sha256} {entry.size} {mtime} {entry.path}\n")
                progress("files", len(found), len(files))
            notes.flush()
    return [entry for entry, _ in found], np.array([mtime for _, mtime in found], np.int64)


def _one(form: DataForm, folder: Path, name: str, known: dict[str, tuple[str, int, int]]) -> tuple[Entry, int, bool]:
    path = folder / name
    try:
        before = path.stat()
        noted = known.get(name)
        if noted is not None and noted[1:] == (before.st_size, before.st_mtime_ns):
            return Entry(name, before.st_size, noted[0]), before.st_mtime_ns, False
        form.examine(folder, name)
        return Entry(name, before.st_size, hash_file(path)), before.st_mtime_ns, True
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open_partial(partial: Path, folder: Path, go_on: bool) -> IO[str]:
    stream = partial.open("a" if go_on else "w", encoding="utf-8")
    if not go_on:
        stream.write(f"{folder.absolute()}\n")
    return stream


def _read_partial(partial: Path, folder: Path) -> dict[str, tuple[str, int, int]]:
    """Return path -> (sha256, size, time of change) of files that an interrupted preparation has hashed."""
    try:
        first, *lines = partial.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError):
        return {}
    if first.rstrip("\n") != str(folder.absolute()):
        return {}
    # Without its line break the last line may be half written.
    parts = (line[:-1].split(" ", 3) for line in lines if line.endswith("\n"))
    return {part[3]: (part[0], int(part[1]), int(part[2])) for part in parts if len(part) == 4}


def forms() -> dict[str, DataForm]:
    """Return name -> form of every data set that a workload reads; a workload that cannot be imported has none."""
    return {workload.form.name: workload.form for workload in _readers()}


def form_of(name: str) -> DataForm:
    """Return the form of a data set.

    Raises:
        UnknownName: no workload reads one of this name.
    """
    known = forms()
    if name not in known:
        raise UnknownName("data set", name, known)
    return known[name]


def problem_of(form: DataForm, facts: Facts) -> str:
    """Return why the workload that reads a data set could use none with these facts; empty if it can."""
    found = (workload.problem_of(facts) for workload in _readers() if workload.form.name == form.name)
    return next(filter(None, found), "")


def _readers() -> Iterator[Any]:
    """Yield every `PreparedWorkload`, whose module needs this one, that can be imported."""
    for name in registry.names("workload"):
        try:
            workload = registry.load("workload", name)
        except ReproError:
            continue
        if isinstance(getattr(workload, "form", None), DataForm):
            yield workload
