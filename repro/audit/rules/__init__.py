"""Best practices as rules: what a record must show so that its verdicts can be believed.

Each rule has an id, a source, a predicate, a verdict (pass, fail, not applicable, cannot tell) and its evidence. A rule
says "cannot tell" rather than guess; docs/checklists.md lists them all.
"""

from __future__ import annotations

from repro.audit.rules import acm, firecaffe, hoefler_belli, mlperf, neurips
from repro.audit.rules.facts import Facts
from repro.audit.rules.from_record import record_facts
from repro.audit.rules.rule import Finding, Rule, Verdict
from repro.record.store import Record

__all__ = ["ORDER", "RULES", "Facts", "Finding", "Rule", "Verdict", "check", "check_facts", "failing_first"]

RULES: tuple[Rule, ...] = (*firecaffe.RULES, *hoefler_belli.RULES, *mlperf.RULES, *neurips.RULES, *acm.RULES)
ORDER: tuple[Verdict, ...] = ("fail", "cannot tell", "pass", "not applicable")


def check(record: Record) -> tuple[Finding, ...]:
    """Every rule over a record, in the order of the lists."""
    return check_facts(record_facts(record))


def check_facts(facts: Facts) -> tuple[Finding, ...]:
    """Every rule over an experiment, whoever made it."""
    return tuple(rule.find(facts) for rule in RULES)


def failing_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """Failing rules first, the required ones before the others; then what cannot be told."""
    return sorted(findings, key=lambda item: (ORDER.index(item.verdict), not item.required))
