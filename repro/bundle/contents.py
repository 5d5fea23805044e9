"""The content of a bundle: the files of the record without credentials and paths of the machine, and their RO-Crate."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from getpass import getuser
from pathlib import Path
from shlex import quote
from typing import Any

import repro
from repro.bundle import source
from repro.bundle.source import open_record
from repro.bundle.verify import verify, verify_opened
from repro.bundle.verify_files import CRATE
from repro.core.errors import OutputError, RecordModified
from repro.core.files import read_bounded
from repro.core.frozen import Frozen
from repro.core.redact import Scrubber
from repro.record.folder import index as record_index
from repro.record.folder.store import TUNING, Record, read_record


class Bundle(Frozen):
    """A bundle that was written, as `repro bundle --json` prints it."""

    path: Path
    identity: str
    """sha256 of its index: identifies the content, however the zip library compressed it."""
    files: int
    scrubbed: tuple[str, ...]
    """Files in which a credential or a path was replaced."""
    emulated: tuple[str, ...]
    """Devices of the record that stand for GPUs."""


def scrubber(root: Path) -> Scrubber:
    """Return the scrubber of the run at `root`, in this process."""
    package = Path(repro.__file__).resolve().parent
    temporary = tempfile.gettempdir()
    places = {str(root.resolve()): "<run>", str(Path.cwd()): "<work>", str(package.parent): "<packages>",
              temporary: "<temporary>"}
    with suppress(RuntimeError):  # not every user has a home folder
        places[str(Path.home())] = "<home>"
    with suppress(OSError, ImportError, KeyError):  # not every user has a name; torch names its cache after the user
        places[f"{temporary}/torchinductor_{getuser()}"] = "<temporary>/torchinductor"
    return Scrubber.here(os.environ, places)


def write_bundle(root: Path, out: Path, licence: str = "not stated", run: Path | None = None) -> Bundle:
    """Pack the run at `root` into the file `out`.

    Args:
        run: the path that the user gave, if `root` is a copy of it.

    Raises:
        OutputError: no run folder, a damaged one, a file that cannot be bundled, or `out` cannot be written.
    """
    record = read_record(root)
    clean = scrubber(run or root)
    files, scrubbed = record_files(root, clean)
    index = {name: _sha256(content) for name, content in files.items()}
    files[CRATE] = clean.text(metadata(record, files, index, licence).decode()).encode()
    index[CRATE] = _sha256(files[CRATE])
    if left := clean.left(files[CRATE].decode()):
        raise OutputError(f"{root}: the metadata would hold {left}; nothing was written")
    files[record_index.NAME] = record_index.text_of(index).encode()
    source.pack(out, files)
    return Bundle(path=out, identity=record_index.identity(index), files=len(files), scrubbed=scrubbed,
                  emulated=record.emulated_devices)


def record_files(root: Path, clean: Scrubber) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Read the files of a record without credentials and paths.

    Returns:
        Name -> content of every file, and the names of the files that were changed.

    Raises:
        OutputError: a file is a link, a special file, too large, or its name holds a credential.
    """
    found: dict[str, bytes] = {}
    changed: list[str] = []
    members = list(record_index.members(root))
    for item in members:
        if item.refusal:
            raise OutputError(f"{item.path}: {item.refusal}; move it out of the run folder")
    # Before reading: all files are held in memory at once.
    source.refuse_large(root, len(members), sum(item.path.lstat().st_size for item in members))
    for item in members:
        if left := clean.left(item.name):
            raise OutputError(f"{item.path}: its name holds {left}")
        content = read_bounded(item.path, record_index.MAX_FILE_BYTES)
        # Its hash is part of the cells' names: paths that its author wrote stay, and so do bytes that are no text.
        if item.name.removeprefix(f"{TUNING}/").startswith("code/"):
            if any(value.encode() in content for value in clean.hidden):
                raise OutputError(f"{item.path}: holds a credential; source is stored as it is, so nothing was bundled")
            found[item.name] = content
            continue
        before = content.decode("utf-8", errors="replace")
        after = clean.text(before)
        if after != before:
            changed.append(item.name)
        found[item.name] = after.encode()
    return found, tuple(changed)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_bundle(run: Path, out: Path | None, licence: str) -> Bundle:
    """Verify the run, pack it, verify the bundle.

    Raises:
        RecordModified: the run was modified; a bundle would give it a new, valid index.
        OutputError: the run cannot be read, the bundle cannot be written, or removing credentials and paths damages
            the record.
    """
    with open_record(run) as root:
        before = verify_opened(root, run)
        if not before.unmodified:
            raise RecordModified(f"{run}: {before.problems[0].text()}; {len(before.problems)} problems in all, nothing "
                                 f"was bundled; list them with: repro verify {quote(str(run))}")
        if not run.is_dir():
            raise OutputError(f"{run}: is already a bundle")
        plan = read_record(root).plan
        target = out or Path(f"{plan.suite.suite}-{plan.digest[:12]}.zip")
        made = write_bundle(root, target, licence, run)
    after = verify(target)
    if not after.unmodified:
        target.unlink()
        raise OutputError(f"{run}: a credential or a path is part of a name or value that the record needs "
                          f"({after.problems[0].text()}); nothing was bundled")
    return made


PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
FORMATS = {"json": "application/json", "jsonl": "application/jsonl", "yaml": "application/yaml", "txt": "text/plain",
           "log": "text/plain", "html": "text/html"}
DESCRIPTIONS = {
    "plan.json": "The expanded suite: every cell, every seed, in order of execution",
    "suite.yaml": "The suite as written", "environment.json": "Libraries, devices, settings, identity of the data",
    "ledger.jsonl": "Every attempt of every trial, and how it ended",
    "parity.json": "Result of the parity gate: whether the engines train alike",
    "lanes.jsonl": "Shards of a run in a pool: their lanes and their seeds",
    "looks.jsonl": "Looks of a sequential run: figures and decisions",
    "incidents.jsonl": "Incidents of the run, and warnings about the machine",
    "declared.json": "The suite of both phases as declared, with the seeds of the scored one",
    "tuned.yaml": "The suite with the settings that its tuning chose",
    "launchers.json": "Load times of the launchers", "nodes.jsonl": "Computers, links and jobs, and their changes",
    "sha256sums.txt": "sha256 of every file",
}


def metadata(record: Record, files: Mapping[str, bytes], sums: Mapping[str, str], licence: str) -> bytes:
    """Return the text of `ro-crate-metadata.json` for `files` (name -> content); a pure function of the record."""
    from rocrate.model.contextentity import ContextEntity
    from rocrate.model.file import File
    from rocrate.rocrate import ROCrate

    plan, environment = record.plan, record.environment
    crate: Any = ROCrate(gen_preview=False)
    root = crate.root_dataset
    crate.name = f"Run of the suite {plan.suite.suite}"
    crate.description = plan.suite.title or plan.suite.description or f"Time-to-accuracy run of {plan.suite.suite}"
    crate.license = licence
    root["datePublished"] = _when(environment.started_ms)
    root["identifier"] = f"sha256:{plan.digest}"
    crate.add(ContextEntity(crate, PROFILE, {"@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}))
    root["conformsTo"] = {"@id": PROFILE}
    parts = [
        crate.add(File(crate, dest_path=name, properties={
            "name": DESCRIPTIONS.get(name, name), "contentSize": str(len(content)),
            "encodingFormat": FORMATS.get(name.rpartition(".")[2], "application/octet-stream"),
        } | ({"sha256": sums[name]} if name in sums else {})))
        for name, content in sorted(files.items())
    ]
    tool = crate.add(ContextEntity(crate, "#repro-harness", {
        "@type": "SoftwareApplication", "name": "repro-harness", "version": environment.repro_version,
        "softwareVersion": environment.commit or environment.repro_version,
        "softwareRequirements": list(environment.packages),
    }))
    data = [
        crate.add(ContextEntity(crate, f"#data-{item.sha256[:16]}", {
            "@type": "Dataset", "name": item.name, "version": item.version, "sha256": item.sha256,
            "license": item.licence, "description": f"{item.train_samples} training and {item.eval_samples} evaluation "
            f"samples; not in this crate; {item.source}",
        }))
        for item in {item.sha256: item for item in environment.data}.values()
    ]
    suite = [item for item in parts if item.id == "suite.yaml"]
    action = crate.add(ContextEntity(crate, "#run", {
        "@type": "CreateAction", "name": f"repro run {plan.suite.suite}", "startTime": _when(environment.started_ms),
        **({"endTime": _when(max(item.started_ms + item.seconds * 1e3 for item in record.attempts))}
           if record.attempts else {}),
        "actionStatus": {"@id": "http://schema.org/FailedActionStatus" if record.missing() else
                         "http://schema.org/CompletedActionStatus"},
        "description": f"{len(record.results)} of {record.planned} planned trials, method {plan.method}, "
                       f"device {plan.device}"
                       f"{f'; emulated: {record.emulated_devices[0]}' if record.emulated_devices else ''}",
    }))
    action["instrument"] = tool
    action["object"] = [*suite, *data]
    action["result"] = [item for item in parts if item.id not in ("suite.yaml", "plan.json")]
    root["mentions"] = [action]
    return (json.dumps(crate.metadata.generate(), indent=1, sort_keys=True) + "\n").encode()


def _when(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1e3, timezone.utc).isoformat(timespec="seconds")
