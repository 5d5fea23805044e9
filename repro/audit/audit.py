"""An audit: a path or the name of an MLflow experiment becomes facts, on which every rule gives its verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field

from repro.audit.rules import ORDER, Facts, Finding, check_facts, failing_first
from repro.audit.rules.from_record import record_facts
from repro.bundle.source import is_bundle, open_record
from repro.core import registry
from repro.core.errors import Exit, UsageError
from repro.core.frozen import Frozen
from repro.record.folder.store import read_record


class Audit(Frozen):
    """The findings of all rules on one experiment, as `repro audit --json` prints them."""

    schema_: Literal[1] = Field(alias="schema")
    exit_code: int
    title: str
    origin: str
    cells: int
    runs: int
    counts: dict[str, int]
    """Verdict -> rules."""
    required_failed: tuple[str, ...]
    """Ids of required rules."""
    findings: tuple[Finding, ...]
    """Failing rules first."""


def audit(source: str, mapping: Path | None = None) -> Audit:
    """Check a run folder, published results (imported or not) or, with `mapping`, an MLflow experiment.

    Raises:
        UsageError: the source is none of these, or cannot be read.
        TrackingError: the tracking store does not answer.
    """
    facts = _experiment(source, mapping) if mapping is not None else _folder(Path(source))
    found = tuple(failing_first(check_facts(facts)))
    counts, failed = Counter(item.verdict for item in found), tuple(
        item.id for item in found if item.verdict == "fail" and item.required)
    return Audit(
        schema_=1, exit_code=Exit.NOT_REPRODUCED if failed else Exit.DONE, title=facts.title, origin=facts.origin,
        cells=len(facts.cells), runs=len(facts.runs), counts={verdict: counts[verdict] for verdict in ORDER},
        required_failed=failed, findings=found)


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
