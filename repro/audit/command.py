"""What `repro audit` does: find out what it was given, look at it by every rule, say what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.audit.published_facts import published_facts
from repro.audit.rules import ORDER, Facts, Finding, check_facts, failing_first
from repro.audit.rules.from_record import record_facts
from repro.core.errors import Exit, UsageError
from repro.published.dawnbench import import_entries
from repro.published.imported import Imported
from repro.published.mlperf.folder import import_folder
from repro.published.record import Program
from repro.published.store import RECORD, read_published
from repro.record.untrusted import read_inside

ORIGINS = {"record": "a run of this harness", "mlperf": "MLPerf results", "dawnbench": "DAWNBench entries",
           "mlflow": "an MLflow experiment"}


@dataclass(frozen=True, slots=True)
class Audit:
    """What the rules say of one experiment."""

    title: str
    origin: str
    cells: int
    runs: int
    findings: tuple[Finding, ...]
    """Failing first."""

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Required rules that fail."""
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
    """Look at a run folder, published results (imported or as they are), or with `mapping` at an MLflow experiment.

    Raises:
        UsageError: it is none of these, or cannot be read.
        TrackingError: the tracking store does not answer.
    """
    facts = _experiment(source, mapping) if mapping is not None else _folder(Path(source))
    return Audit(
        title=facts.title, origin=facts.origin, cells=len(facts.cells), runs=len(facts.runs),
        findings=tuple(failing_first(check_facts(facts))),
    )


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
        raise UsageError(f"{path}: no such folder; an MLflow experiment of that name takes --map mapping.yaml")
    if (path / "plan.json").is_file():
        return record_facts(read_inside(path))
    if (path / RECORD).is_file():
        found = read_published(path)
        record = found.record
        return published_facts(record.program, record.imported, record.cells, record.systems, found.results,
                               found.refused)
    return _as_published(path)


def _as_published(path: Path) -> Facts:
    """A results repository, or part of one, that was not imported; nothing is written."""
    readers: tuple[tuple[Program, Any], ...] = (("mlperf", import_folder), ("dawnbench", import_entries))
    for program, reader in readers:
        found: Imported = reader(path)
        if found.cells:
            return published_facts(program, path.resolve().name, found.cells, found.systems, found.results,
                                   found.refused)
    raise UsageError(f"{path}: neither a run folder (no plan.json), nor imported results (no {RECORD}), nor MLPerf "
                     "results (result_N.txt) or DAWNBench entries")
