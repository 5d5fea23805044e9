"""Rules of best practice: what a record must show so that its verdicts can be trusted.

Each rule has an id, a source, a title and a function from facts to a verdict (pass, fail, not applicable, cannot tell)
with its evidence. A rule says "cannot tell" instead of guessing.

To add a rule: write its function in the file of its source (or in a new file, listed below), add one `Rule` to `RULES`
there, and add one line to the table in docs/checklists.md; a test compares the two. A rule that needs a new fact adds a
field to `Facts` and fills it where facts are read (`from_record`, `published/audit_facts`, `mlflow_facts`).
"""

from __future__ import annotations

from repro.audit.rules import checklists, firecaffe, hoefler_belli, mlperf
from repro.audit.rules.facts import Facts
from repro.audit.rules.from_record import record_facts
from repro.audit.rules.rule import Finding, Rule, Verdict
from repro.record.folder.store import Record

__all__ = ["ORDER", "RULES", "Facts", "Finding", "Rule", "Verdict", "check", "check_facts", "failing_first"]

RULES: tuple[Rule, ...] = (*firecaffe.RULES, *hoefler_belli.RULES, *mlperf.RULES, *checklists.RULES)
ORDER: tuple[Verdict, ...] = ("fail", "cannot tell", "pass", "not applicable")


def check(record: Record) -> tuple[Finding, ...]:
    """Apply every rule to a record, in the order of `RULES`."""
    return check_facts(record_facts(record))


def check_facts(facts: Facts) -> tuple[Finding, ...]:
    """Apply every rule to an experiment of any origin."""
    return tuple(rule.find(facts) for rule in RULES)


def failing_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """Sort by verdict in the order of `ORDER`; of one verdict, required rules first."""
    return sorted(findings, key=lambda item: (ORDER.index(item.verdict), not item.required))
