"""Sources of an audit: a path or the name of an MLflow experiment becomes facts."""

from __future__ import annotations

from pathlib import Path

from repro.audit.rules import Facts
from repro.audit.rules.from_record import record_facts
from repro.bundle.source import is_bundle, open_record
from repro.core import registry
from repro.core.errors import UsageError
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
    if not is_bundle(path) and not (path / "plan.json").is_file():
        found: Facts = registry.part("published", "facts")(path)
        return found
    with open_record(path) as root:
        return record_facts(read_record(root))
