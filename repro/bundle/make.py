"""A bundle of a run: the run is verified, packed, and the bundle verified."""

from __future__ import annotations

from pathlib import Path

from repro.bundle.contents import Bundle, default_name, write_bundle
from repro.bundle.source import open_record
from repro.bundle.verify import verify, verify_opened
from repro.core.errors import OutputError, RecordModified
from repro.record.folder.store import read_record


def make_bundle(run: Path, out: Path | None, licence: str) -> Bundle:
    """Verify the run, pack it, verify the bundle.

    Raises:
        RecordModified: the run was modified; a bundle would give it a new, valid index.
        OutputError: the run cannot be read, the bundle cannot be written, or removing credentials and paths damages
            the record.
    """
    with open_record(run) as root:
        return _bundle(run, root, out, licence)


def _bundle(run: Path, root: Path, out: Path | None, licence: str) -> Bundle:
    """Verify and pack the record in `root`, which `run` names."""
    before = verify_opened(root, run)
    if not before.sound:
        raise RecordModified(f"{run}: {before.problems[0].text()}; {len(before.problems)} problems in all, nothing was "
                             f"bundled; list them with: repro verify {run}")
    if not run.is_dir():
        raise OutputError(f"{run}: is already a bundle")
    target = out or Path(default_name(read_record(root)))
    made = write_bundle(root, target, licence, run)
    after = verify(target)
    if not after.sound:
        target.unlink()
        raise OutputError(f"{run}: a credential or a path is part of a name or value that the record needs "
                          f"({after.problems[0].text()}); nothing was bundled")
    return made
