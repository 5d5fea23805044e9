"""RO-Crate metadata of a bundle (RO-Crate 1.1 and its Process Run Crate profile), readable by other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from repro.record.folder.store import Record

NAME = "ro-crate-metadata.json"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
FORMATS = {"json": "application/json", "jsonl": "application/jsonl", "yaml": "application/yaml", "txt": "text/plain",
           "log": "text/plain", "html": "text/html"}
DESCRIPTIONS = {
    "plan.json": "The expanded suite: every cell, every seed, in order of execution",
    "suite.yaml": "The suite as written", "environment.json": "Libraries, devices, settings, identity of the data",
    "ledger.jsonl": "Every attempt of every trial, and how it ended",
    "parity.json": "Result of the parity gate: whether the engines train alike",
    "looks.jsonl": "Looks of a sequential run: figures and decisions",
    "incidents.jsonl": "Incidents of the run, and warnings about the machine",
    "declared.json": "The suite of both phases as declared, with the seeds of the scored one",
    "tuned.yaml": "The suite with the settings that its tuning chose",
    "launchers.json": "Load times of the launchers", "sha256sums.txt": "sha256 of every file",
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
            "name": DESCRIPTIONS.get(name, name), "contentSize": str(len(content)), "encodingFormat": _format(name),
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
        **({"endTime": _when(_ended_ms(record))} if record.attempts else {}),
        "actionStatus": {"@id": "http://schema.org/FailedActionStatus" if record.missing() else
                         "http://schema.org/CompletedActionStatus"},
        "description": f"{len(record.results)} of {record.planned} planned trials, method {plan.method}, "
                       f"device {plan.device}",
    }))
    action["instrument"] = tool
    action["object"] = [*suite, *data]
    action["result"] = [item for item in parts if item.id not in ("suite.yaml", "plan.json")]
    root["mentions"] = [action]
    return (json.dumps(crate.metadata.generate(), indent=1, sort_keys=True) + "\n").encode()


def _when(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1e3, timezone.utc).isoformat(timespec="seconds")


def _ended_ms(record: Record) -> float:
    return max(item.started_ms + item.seconds * 1e3 for item in record.attempts)


def _format(name: str) -> str:
    return FORMATS.get(name.rpartition(".")[2], "application/octet-stream")
