"""An audit: the verdict of every rule on one experiment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.audit.rules import ORDER, Finding, check_facts, failing_first
from repro.audit.sources import read_facts
from repro.core.errors import Exit


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
    facts = read_facts(source, mapping)
    return Audit(
        title=facts.title, origin=facts.origin, cells=len(facts.cells), runs=len(facts.runs),
        findings=tuple(failing_first(check_facts(facts))),
    )
