"""An audit: a path or the name of an MLflow experiment becomes facts, on which every rule gives its verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.audit.rules import ORDER, Facts, Finding, check_facts, failing_first
from repro.audit.rules.from_record import record_facts
from repro.bundle.source import is_bundle, open_record
from repro.core import registry
from repro.core.errors import Exit, UsageError
from repro.record.folder.store import read_record


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings of all rules on one experiment."""

    title: str
    origin: str
    cells: int
    runs: int
    findings: tuple[Finding, ...]
    """Failing rules first."""

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The required rules that fail."""
        return tuple(item for item in self.findings if item.verdict == "fail" and item.required)

    @property
    def exit_code(self) -> Exit:
        return Exit.NOT_REPRODUCED if self.failed else Exit.DONE

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(item.verdict for item in self.findings)
        return {verdict: found[verdict] for verdict in ORDER}

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1, "exit_code": int(self.exit_code), "title": self.title, "origin": self.origin,
            "cells": self.cells, "runs": self.runs, "counts": self.counts,
            "required_failed": [item.id for item in self.failed],
            "findings": [item.model_dump(mode="json") for item in self.findings],
        }


def audit(source: str, mapping: Path | None = None) -> Audit:
    """Check a run folder, published results (imported or not) or, with `mapping`, an MLflow experiment.

    Raises:
        UsageError: the source is none of these, or cannot be read.
        TrackingError: the tracking store does not answer.
    """
    facts = _experiment(source, mapping) if mapping is not None else _folder(Path(source))
    return Audit(
        title=facts.title, origin=facts.origin, cells=len(facts.cells), runs=len(facts.runs),
        findings=tuple(failing_first(check_facts(facts))),
    )


def _experiment(name: str, mapping: Path) -> Facts:
    from repro.audit.mapping import read_mapping
    from repro.audit.mlflow_facts import experiment_facts, read_experiment

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
