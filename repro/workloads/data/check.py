"""Checks of a prepared data set: sizes, times and a sample of hashes at every run; all hashes on request."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice

from repro.core.errors import OutputError, TrialError
from repro.core.random_streams import Streams
from repro.workloads.data import manifest
from repro.workloads.data.form import DataForm, Progress
from repro.workloads.data.manifest import Entry, Prepared
from repro.workloads.data.prepare import SLICE, hash_file, threads

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
