"""The best-practice checklists, by source; failing rules first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.audit.rules import Finding, check
from repro.record.folder.store import Record

GROUPS = {"F": "FireCaffe (arXiv:1511.00175)", "HB": "Hoefler & Belli (SC 2015)", "MLP": "MLPerf Training rules",
          "NEU": "NeurIPS paper checklist", "ACM": "ACM artifact badges v1.1",
          "AP": "AlgoPerf (arXiv:2306.07179)"}
"""Letters of a rule id -> their source."""
ORDER = ("fail", "cannot tell", "pass", "not applicable")


@dataclass(frozen=True, slots=True)
class Checklist:
    """All rules."""

    failing: tuple[Finding, ...]
    """Required ones first."""
    sources: tuple[tuple[str, tuple[Finding, ...]], ...]
    """(list, its rules, failing first)."""
    counts: tuple[tuple[str, int], ...]
    """(verdict, how many)."""


def checklist(record: Record) -> Checklist:
    """Check the record against all rules."""
    return arranged(check(record))


def arranged(rules: Sequence[Finding]) -> Checklist:
    """Group the rules by source: failing first, then in the order of the list."""
    ranked = sorted(rules, key=lambda rule: (ORDER.index(rule.verdict), not rule.required))
    groups: dict[str, list[Finding]] = {_group(rule): [] for rule in rules}
    for rule in ranked:
        groups[_group(rule)].append(rule)
    return Checklist(
        failing=tuple(rule for rule in ranked if rule.verdict == "fail"),
        sources=tuple((source, tuple(of)) for source, of in groups.items()),
        counts=tuple((verdict, count) for verdict in ORDER
                     if (count := sum(rule.verdict == verdict for rule in rules))),
    )


def _group(rule: Finding) -> str:
    letters = rule.id.rstrip("0123456789.-abcdefghijklmnopqrstuvwxyz")
    return GROUPS.get(letters, rule.source)

