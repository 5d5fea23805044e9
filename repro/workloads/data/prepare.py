"""Prepare a data set: find its files, convert them if necessary, examine and hash each, and write the manifest.

Hashes are appended to `partial.txt`. A preparation that was interrupted resumes from it: a file of the size and the
modification time noted there is not read again.

Everything is written to a folder beside that of the data set and takes its place at the end: if anything fails, an
earlier preparation is unchanged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from repro.core import registry
from repro.core.errors import OutputError, ReproError, TrialError, UnknownName, UsageError
from repro.core.random_streams import Streams
from repro.workloads.data import manifest
from repro.workloads.data.manifest import VARIABLE, DataForm, Entry, Facts, Manifest, Prepared, Progress, folder_of

THREADS = min(8, os.cpu_count() or 1)
"""Hashing and decoding release the interpreter's lock."""
SLICE = 512
"""Files between two writes of `partial.txt`."""
CHUNK = 1 << 20
PARTIAL = "partial.txt"
FRESH, OLD = ".new", ".old"
"""Endings of the folders beside that of a data set: of the preparation being made, and of the earlier one."""


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
    lines = "".join(f"{item.sha256} {item.size} {item.path}\n" for item in entries).encode()
    made = Manifest(
        name=form.name, version=form.version(facts), licence=form.licence, source=form.source, facts=facts,
        files=len(entries), bytes=sum(item.size for item in entries), files_sha256=sha256(lines).hexdigest(),
    )
    found = manifest.write(home, made, lines, mtimes, folder)
    (home / PARTIAL).unlink(missing_ok=True)
    return found


def _swap(fresh: Path, home: Path) -> None:
    """Put the new preparation in the place of the earlier one."""
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
    if not known:
        partial.write_text(f"{folder.absolute()}\n", encoding="utf-8")
    with threads() as pool, partial.open("a", encoding="utf-8") as notes:
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


SAMPLE_FILES = 16
SAMPLE_BYTES = 256 << 20
"""Most bytes of the sample of files that every run hashes; at least one file."""


def required(form: DataForm) -> Prepared:
    """Return the prepared data set of a form.

    Raises:
        TrialError: it is not prepared; the message says what is missing, where, and what to do.
    """
    found = manifest.find(form.name)
    if found is None:
        raise TrialError(form.absent())
    return found


def check_for_run(data: Prepared) -> None:
    """Compare size and time of every file with the manifest, and the hash of a sample and of files with a new time.

    The sample is drawn by the manifest and the date, so that other files are read on other days.

    Raises:
        TrialError: a file is absent or has changed; the message names it.
    """
    mtimes, changed = data.mtimes.copy(), []
    for index, entry in enumerate(data.entries):
        mtime = _stat(data, entry)
        if mtime != mtimes[index]:
            changed.append(index)
            mtimes[index] = mtime
    for index in dict.fromkeys((*changed, *_sample(data))):
        _compare(data, data.entries[index])
    if changed:
        with suppress(OutputError):  # the store is another user's: the files are hashed again next time
            manifest.write_mtimes(data.home, mtimes)


def check_all(data: Prepared, progress: Progress) -> None:
    """Hash every file and compare it with the manifest.

    Raises:
        TrialError: a file is absent or has changed; the message names it.
    """
    entries = iter(data.entries)
    progress("files", done := 0, len(data.entries))
    with threads() as pool:
        while part := list(islice(entries, SLICE)):
            for _ in pool.map(lambda entry: _compare(data, entry), part):
                progress("files", done := done + 1, len(data.entries))


def _sample(data: Prepared) -> Iterable[int]:
    drawn = Streams(int(data.sha256, 16), datetime.now(timezone.utc).toordinal()).generator("data-check")
    left = SAMPLE_BYTES
    for index in drawn.permutation(len(data.entries))[:SAMPLE_FILES].tolist():
        left -= data.entries[index].size
        yield index
        if left <= 0:
            return


def _stat(data: Prepared, entry: Entry) -> int:
    """Return when a file was changed, in nanoseconds, if it has the size of the manifest."""
    try:
        found = (data.folder / entry.path).stat()
    except OSError as error:
        raise TrialError(f"{data.name}: {entry.path} in {data.folder} cannot be read: {error.strerror}; restore it, or "
                         f"{data.again}") from error
    if found.st_size != entry.size:
        raise _altered(data, entry, f"it has {found.st_size} bytes, the manifest {entry.size}")
    return found.st_mtime_ns


def _compare(data: Prepared, entry: Entry) -> None:
    _stat(data, entry)
    try:
        sha256 = hash_file(data.folder / entry.path)
    except OSError as error:
        raise TrialError(f"{data.name}: {entry.path} in {data.folder} cannot be read: {error.strerror}") from error
    if sha256 != entry.sha256:
        raise _altered(data, entry, f"its sha256 is {sha256[:12]}, in the manifest {entry.sha256[:12]}")


def _altered(data: Prepared, entry: Entry, how: str) -> TrialError:
    return TrialError(f"{data.name}: {entry.path} in {data.folder} has changed since the manifest was made: {how}; "
                      f"restore the file, or if the change is meant, {data.again}")
