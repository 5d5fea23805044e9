"""The best-practice checklists: what fails first, then by source."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from repro.record.store import Record

GROUPS = {"F": "FireCaffe (arXiv:1511.00175)", "HB": "Hoefler & Belli (SC 2015)", "MLP": "MLPerf Training rules",
          "NEU": "NeurIPS paper checklist", "ACM": "ACM artifact badges v1.1"}
"""What the letters of a rule's id stand for."""
ORDER = ("fail", "cannot tell", "pass", "not applicable")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule and what the record says to it."""

    id: str
    source: str
    title: str
    verdict: str
    required: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Checklist:
    """All rules."""

    failing: tuple[Rule, ...]
    """Required ones first."""
    sources: tuple[tuple[str, tuple[Rule, ...]], ...]
    """(list, its rules, failing first)."""
    counts: tuple[tuple[str, int], ...]
    """(verdict, how many)."""


def checklist(record: Record) -> Checklist | None:
    """What the rules say; None: this version has none."""
    try:
        check = importlib.import_module("repro.audit.rules").check
    except ModuleNotFoundError as error:
        if error.name != "repro.audit.rules":
            raise
        return None
    return arranged([_rule(item) for item in check(record)])


def arranged(rules: list[Rule]) -> Checklist:
    """Failing first; inside a verdict in the order of the list."""
    ranked = sorted(rules, key=lambda rule: (ORDER.index(rule.verdict), not rule.required))
    groups: dict[str, list[Rule]] = {_group(rule): [] for rule in rules}
    for rule in ranked:
        groups[_group(rule)].append(rule)
    return Checklist(
        failing=tuple(rule for rule in ranked if rule.verdict == "fail"),
        sources=tuple((source, tuple(of)) for source, of in groups.items()),
        counts=tuple((verdict, count) for verdict in ORDER
                     if (count := sum(rule.verdict == verdict for rule in rules))),
    )


def _group(rule: Rule) -> str:
    letters = rule.id.rstrip("0123456789.-abcdefghijklmnopqrstuvwxyz")
    return GROUPS.get(letters, rule.source)


def _rule(item: Any) -> Rule:
    return Rule(item.id, item.source, item.title, item.verdict, item.required, item.evidence)
