"""What a reader must know before using the figures: notices, parity gate, checklists, the ends of all trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from repro.audit.rules import Finding, failing_first
from repro.compare.findings import Findings
from repro.core.numbers import significant
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.tables.text import plural

from .sections.settings import effective

GROUPS = {"F": "FireCaffe (arXiv:1511.00175)", "HB": "Hoefler & Belli (SC 2015)", "MLP": "MLPerf Training rules",
          "NEU": "NeurIPS paper checklist", "ACM": "ACM artifact badges v1.1",
          "AP": "AlgoPerf (arXiv:2306.07179)"}
"""Letters of a rule id -> their source."""

@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to know; `level` is fail, warn or note."""

    level: str
    title: str
    text: str
    link: str = ""
    consequence: str = ""
    """What it means for the figures; "": the text says it."""


@dataclass(frozen=True, slots=True)
class ParityView:
    """The outcome of the parity gate and its findings."""

    outcome: str
    text: str
    findings: tuple[tuple[str, str, str, str, str], ...]
    """(group, reference, candidate, problem or "", largest difference)."""


def progress(record: Record) -> str:
    done, planned = len(record.results), record.planned
    if record.budget_spent:
        return f"{done} trials have run, then the budget was spent"
    return f"all {planned} trials have run" if done == planned else f"{done} of {planned} trials so far"


def notices(findings: Findings) -> list[Notice]:
    """Return all notices: failures, then cautions, then notes."""
    record = findings.record
    found = [*_parity_notices(record), *_failed_trials(record), *_doubts(findings), *_notes(record)]
    order = ("fail", "warn", "note")
    return sorted(found, key=lambda notice: order.index(notice.level))


def parity(record: Record) -> ParityView:
    """Return the outcome of the gate, also if it was not needed."""
    data = record.parity
    if data is None:
        return ParityView("unknown", "no outcome is recorded, so it is unknown whether the engines train alike", ())
    left_out = data.get("skipped", {})
    by_reason: dict[str, list[str]] = {}
    for label, reason in left_out.items():
        by_reason.setdefault(reason, []).append(label)
    ungated = "".join(f"; not gated: {labels[0] if len(labels) == 1 else plural(len(labels), 'cell')} ({reason})"
                      for reason, labels in by_reason.items())
    if not data.get("needed"):
        why_not = str(data.get("why", "no reason recorded"))
        return ParityView("skipped", why_not, ()) if left_out else \
            ParityView("not run" if any(getattr(cell.choices, "unverified", "") for cell in record.plan.cells)
                       else "not needed", why_not.removeprefix("not gated: "), ())
    found = tuple(
        (str(item["group"]), str(item["reference"]), str(item["candidate"]), str(item["problem"] or ""),
         significant(float(item["largest_difference"]), 2))
        for item in data.get("findings", ())
    )
    limits = f"{data.get('steps', '?')} steps in fp32, relative tolerance {data.get('tolerance', 0):g}" \
        if data.get("tolerance") else f"up to step {data.get('steps', '?')}, within three times what rounding does"
    bad = sum(bool(item[3]) for item in found)
    count = plural(len(found), "candidate")
    outcome, text = ("failed", f"{bad} of {count} trained differently") if bad else \
        ("passed", f"{count} trained like the reference")
    return ParityView(outcome, f"{text} ({limits}){ungated}", found)


def _parity_notices(record: Record) -> Iterator[Notice]:
    gate = parity(record)
    for _, reference, candidate, problem, _ in gate.findings:
        if problem:
            yield Notice("fail", "Parity gate failed", f"{candidate} against {reference}: {problem}", "#parity")
    if gate.outcome in ("unknown", "skipped"):
        yield Notice("warn", "Parity gate", gate.text, "#parity")


def _failed_trials(record: Record) -> Iterator[Notice]:
    by_status: dict[str, list[Result]] = {}
    for result in record.results:
        if result.status != "ok":
            by_status.setdefault(result.status, []).append(result)
    for status, results in by_status.items():
        reasons = list(dict.fromkeys(result.reason for result in results if result.reasons))
        more = f" (and {len(reasons) - 2} others)" if len(reasons) > 2 else ""
        text = f": {'; '.join(reasons[:2])}{more}" if reasons else ""
        end = meaning(status)
        yield Notice(end.level, end.page_word.capitalize(), plural(len(results), "trial") + text, "#trials")
    again = len(record.attempts) - len({attempt.trial_id for attempt in record.attempts})
    if again > 0:
        yield Notice("warn", "Repeated attempts", f"{plural(again, 'further attempt')}; the ledger lists all attempts",
                     "#attempts", "each trial counts once, with the attempt that ended")


def _doubts(findings: Findings) -> Iterator[Notice]:
    record = findings.record
    found = [(item.about, Notice("note" if item.is_note else "warn", item.title, item.text, f"#{item.about}",
                                 item.consequence))
             for item in findings.warnings]
    yield from (notice for about, notice in found if about != "trials")
    if record.missing():
        yield Notice("warn", "Partial record", f"{progress(record)}; all figures can still change", "#trials")
    for note in record.plan.notes:
        yield Notice("warn", "Smoke test" if note == record.plan.smoke_note else "Plan", note)
    yield from (notice for about, notice in found if about == "trials")
    for line in effective(record):
        if not line.steady:
            text = f"{line.name} differs between seeds of cell {line.cells}: {line.found}"
            yield Notice("warn", "Requested and effective settings", text[:300], "#effective")
    if "simulated" in findings.origins.values():
        yield Notice("warn", "Simulated", "an engine of this suite simulates its figures: it trained nothing")
    for data in record.environment.data:
        if data.synthetic:
            yield Notice("warn", "Synthetic data",
                         f"{data.name} is synthetic; a result on it says nothing about real data", "#data")
    if record.environment.dirty:
        yield Notice("warn", "Code", "the run used a checkout with uncommitted changes", "#machine")


def _notes(record: Record) -> Iterator[Notice]:
    if record.plan.skipped:
        count = plural(len(record.plan.skipped), "combination")
        yield Notice("note", "Skipped", f"{count} did not run; the reasons are below", "#skipped")
    gate = parity(record)
    if gate.outcome in ("passed", "not needed", "not run"):
        yield Notice("note", f"Parity gate {gate.outcome}", gate.text, "#parity")


def by_source(rules: tuple[Finding, ...]) -> dict[str, list[Finding]]:
    """Group the rules of the checklists by their source; in each the failing ones first."""
    groups: dict[str, list[Finding]] = {_source(rule): [] for rule in rules}
    for rule in failing_first(rules):
        groups[_source(rule)].append(rule)
    return groups


def _source(rule: Finding) -> str:
    letters = rule.id.rstrip("0123456789.-abcdefghijklmnopqrstuvwxyz")
    return GROUPS.get(letters, rule.source)


def end_word(status: str, record: Record) -> str:
    """Return the word for a trial's end; `ok` is the end of a contest's budget, whatever its quality."""
    return "ended" if record.plan.design.is_contest and meaning(status).reached else meaning(status).page_word


def account(item: Attempt) -> str:
    """Return how an attempt resumed, if it did, and how it ended."""
    began = f"resumed from {item.resumed_from}" if item.resumed_from else ""
    return "; ".join(part for part in (began, *item.passed_over, item.reason) if part)


def trials(record: Record) -> list[Result]:
    """Return the results by cell and seed, failed ones first."""
    order = {cell.cell_id: place for place, cell in enumerate(record.plan.cells)}
    return sorted((item for item in record.results if item.cell_id in order),
                  key=lambda item: (item.status == "ok", order[item.cell_id], item.repeat))
