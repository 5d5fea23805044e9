"""Checks of the files of a record: hashes against the index, the schema of each file, files that do not belong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.bundle.verification import Problem, Verification
from repro.core.errors import OutputError
from repro.core.files import MAX_JSON_BYTES, read_bounded, read_model, refuse_crowded
from repro.record.folder import index as record_index
from repro.record.folder.ledger import Attempt, read_attempts, read_incidents
from repro.record.folder.store import RunFolder
from repro.suite.planning.plan import Plan

INCIDENTS = "incidents.jsonl"
CHECKED_ELSEWHERE = ("sha256sums.txt", "ro-crate-metadata.json", "run.lock")
"""Names at the top of a run that other checks read, or that belong to no record."""


def check_index(root: Path, found: Verification, packed: bool) -> None:
    """Check every file against the index, and the index against the files.

    Args:
        packed: the record came as a bundle, which must hold an index and no unlisted file.
    """
    present = {item.name: item for item in record_index.members(root)}
    if packed:
        present |= {name: record_index.Member(name, root.joinpath(*name.split("/"))) for name in _all_names(root)}
    for item in present.values():
        if item.refusal:
            found.add(item.name, item.refusal, "schema")
    if not (root / record_index.NAME).exists():
        if packed:
            found.add(record_index.NAME, "is missing: without it no file can be checked", "missing")
        else:
            found.notes.append("no index of hashes: the run has not ended, or was made before the index existed; only "
                               "contradictions within the record can be found")
        return
    try:
        listed = record_index.read_sums(root / record_index.NAME)
    except OutputError as error:
        found.add(record_index.NAME, without_root(root, str(error)), "schema")
        return
    found.identity = record_index.identity(listed)
    for item in record_index.listed_members(root, listed):
        if item.name not in present and item.refusal:
            found.add(item.name, item.refusal, "schema")
        present.setdefault(item.name, item)
    _check_hashes(listed, present, found)
    _check_unlisted(present.keys() - listed.keys() - {record_index.NAME}, found, packed)
    found.problems.sort(key=lambda item: item.place)


def _check_hashes(listed: dict[str, str], present: dict[str, record_index.Member], found: Verification) -> None:
    for name, digest in listed.items():
        member = present.get(name)
        if member is None:
            found.add(name, "is missing: the index lists it", "missing")
        elif not member.refusal:
            found.count("hashes of files")
            if record_index.file_sha256(member.path) != digest:
                found.add(name, "was modified: its hash differs from the index", "hash")


def _check_unlisted(names: set[str], found: Verification, packed: bool) -> None:
    if not packed and INCIDENTS in names:  # written by versions that did not list it; it only adds warnings
        names = names - {INCIDENTS}
        found.notes.append(f"{INCIDENTS} is not in the index, as in runs made before it was listed: its content cannot "
                           "be checked")
    for name in names:
        found.add(name, "is not in the index: it was added later", "unlisted")


def _all_names(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


def verified_model(path: Path, cls: Any, root: Path, found: Verification) -> Any:
    """Read a file as `cls`; report a problem and return None if that fails."""
    place = path.relative_to(root).as_posix()
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        found.add(place, "is missing, too large, or not a regular file", "missing")
        return None
    try:
        item = read_model(path, cls)
    except (OutputError, RecursionError) as error:
        found.add(place, without_place(place, root, error), "schema")
        return None
    found.count("files by their schema")
    if found.read is not None:
        found.read[path] = item
    return item


def check_json(path: Path, root: Path, found: Verification) -> None:
    """Check that a file holds one JSON object."""
    place = path.relative_to(root).as_posix()
    try:
        raw = read_bounded(path)
        refuse_crowded(place, raw)
        if not isinstance(json.loads(raw), dict):
            raise ValueError("not a JSON object")
        found.count("files by their schema")
    except (OutputError, OSError, ValueError, RecursionError) as error:
        found.add(place, f"not JSON: {' '.join(str(error).split())[:120]}", "schema")


def verified_ledger(folder: RunFolder, found: Verification) -> list[Attempt] | None:
    """Read the ledger; report a problem and return None if that fails."""
    try:
        attempts = read_attempts(folder.ledger)
    except (OutputError, OSError, RecursionError) as error:
        found.add(folder.ledger.name, without_place(folder.ledger.name, folder.root, error), "schema")
        return None
    found.count("files by their schema")
    return attempts


def check_incidents(folder: RunFolder, found: Verification) -> None:
    """Check the file of incidents, which exists only if there was one."""
    if not folder.incidents.exists():
        return
    try:
        read_incidents(folder.incidents)
    except (OutputError, OSError, RecursionError) as error:
        found.add(folder.incidents.name, without_place(folder.incidents.name, folder.root, error), "schema")
        return
    found.count("files by their schema")


def unplanned_folders(folder: RunFolder, plan: Plan) -> Iterator[Problem]:
    """Find folders and files below trials/ that belong to no planned trial (renamed, or of another run)."""
    planned = {trial.trial_id for trial in plan.trials()}
    if not folder.trials.is_dir():
        return
    for name in sorted(path.name for path in folder.trials.iterdir()):
        if name not in planned:
            yield Problem(f"trials/{ascii(name)[1:-1][:120]}", "belongs to no trial of the plan", "plan")


def unchecked_names(root: Path) -> list[str]:
    """Return the names at the top of a run that no check reads: reports, tracking, foreign files."""
    checked = {*record_index.TOP, *record_index.BELOW, record_index.TUNING, *CHECKED_ELSEWHERE}
    return sorted(path.name for path in root.iterdir() if path.name not in checked)


def without_root(root: Path, text: str) -> str:
    """Remove the path of the folder from a message: that of a bundle is temporary."""
    return text.replace(f"{root}/", "")


def without_place(place: str, root: Path, error: Exception) -> str:
    """Remove the name of the file `place` from a message that is shown after it; the line number stays."""
    text = without_root(root, str(error))
    if text.startswith(f"{place}:") and text[len(place) + 1:len(place) + 2].isdecimal():
        return f"line {text[len(place) + 1:]}"
    return text.removeprefix(f"{place}: ")
