"""Doubts that lie in how the whole run was made: drift of the machine, an order not kept. By cell, for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repro.compare import drift
from repro.record.results import Result
from repro.suite.plan import Plan


class Noted:
    """What `drift` found in a run, looked up by pairs of cells."""

    def __init__(self, plan: Plan, results: Sequence[Result], started_ms: Mapping[str, float] | None = None) -> None:
        self._by_cell: dict[str | None, list[drift.Caution]] = {}
        for item in drift.cautions(plan, results, started_ms):
            self._by_cell.setdefault(item.cell_id, []).append(item)

    def refusals(self, candidate: str, baseline: str) -> tuple[str, ...]:
        """Why these two cells get no verdict."""
        return tuple(item.text for item in self._of(candidate, baseline) if item.severity == "refuse")

    def cautions(self, candidate: str, baseline: str) -> tuple[str, ...]:
        """What a reader of their verdict must know."""
        return tuple(item.text for item in self._of(candidate, baseline) if item.severity != "refuse")

    def _of(self, candidate: str, baseline: str) -> list[drift.Caution]:
        found = [item for cell_id in (None, candidate, baseline) for item in self._by_cell.get(cell_id, [])]
        return list({item.text: item for item in found}.values())
