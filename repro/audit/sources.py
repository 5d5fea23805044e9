"""Sources of an audit: a path or the name of an MLflow experiment becomes facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.audit.published_facts import published_facts
from repro.audit.rules import Facts
from repro.audit.rules.from_record import record_facts
from repro.bundle.source import is_bundle, open_record
from repro.core.errors import UsageError
from repro.published.dawnbench import import_entries
from repro.published.imported import Imported
from repro.published.mlperf.folder import import_folder
from repro.published.record import Program
from repro.published.speedrun.folder import import_records
from repro.published.store import RECORD, read_published
from repro.record.folder.store import read_record


def read_facts(source: str, mapping: Path | None) -> Facts:
    """Read a run folder, published results (imported or not) or, with `mapping`, an MLflow experiment.

    Raises:
        UsageError: the source is none of these, or cannot be read.
        TrackingError: the tracking store does not answer.
    """
    return _experiment(source, mapping) if mapping is not None else _folder(Path(source))


def _experiment(name: str, mapping: Path) -> Facts:
    from repro.audit.experiment import read_experiment
    from repro.audit.mapping import read_mapping
    from repro.audit.mlflow_facts import experiment_facts

    meaning = read_mapping(mapping)
    accuracy = meaning.accuracy
    history = accuracy.partition(".")[2] if isinstance(accuracy, str) and accuracy.startswith("metrics.") else None
    return experiment_facts(read_experiment(name, meaning.filter, history), meaning)


def _folder(path: Path) -> Facts:
    if not path.exists():
        raise UsageError(f"{path}: no such folder; for an MLflow experiment of this name add --map mapping.yaml")
    if not is_bundle(path) and not any((path / name).is_file() for name in ("plan.json", RECORD)):
        return _as_published(path)
    with open_record(path) as root:
        if not (root / RECORD).is_file():
            return record_facts(read_record(root))
        found = read_published(root)
        record = found.record
        return published_facts(record.program, record.imported, record.cells, record.systems, found.results,
                               found.refused)


def _as_published(path: Path) -> Facts:
    """Read a results repository, or part of one, that was not imported; writes nothing."""
    readers: tuple[tuple[Program, Any], ...] = (
        ("mlperf", import_folder), ("dawnbench", import_entries), ("speedrun", import_records))
    for program, reader in readers:
        found: Imported = reader(path)
        if found.cells:
            return published_facts(program, path.resolve().name, found.cells, found.systems, found.results,
                                   found.refused)
    raise UsageError(f"{path}: neither a run folder (no plan.json), nor imported results (no {RECORD}), nor MLPerf "
                     "results (result_N.txt), DAWNBench entries or logs of a speed-run")
