"""How often the question of a run was answered on this machine, and what its runs may err in together."""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare.figures import DECIDED, AdviceKind, Comparison
from repro.compare.verdict.family import ALPHA
from repro.record.folder.store import Record
from repro.record.questions import earlier_answers, keep_answer
from repro.suite.planning.plan import Plan
from repro.suite.planning.question import question_of

TESTED: tuple[AdviceKind, ...] = ("tested", "tested_in_a_contest", "looks_used_up", "equal_grids", "timely")
"""Advice under a comparison that was tested and is open."""
ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}


def asked_before(plan: Plan) -> str:
    """Return `third run of this question on this machine ...`; "" for the first, and for runs without verdicts."""
    return asked_words("run of this question", earlier_answers(question_of(plan), plan)) if _asks(plan) else ""


def asked_words(what: str, answers: Sequence[str]) -> str:
    """Return how many times `what` was asked before, and what all times err in together; "" for the first."""
    if not answers:
        return ""
    count = len(answers) + 1
    spent = f"{1 - (1 - ALPHA) ** count:.0%}".replace("%", " %")
    counted = f"{ORDINALS[count]} {what}" if count in ORDINALS else f"{what} number {count}"
    return (f"{counted} on this machine; together they spend up to {spent}; earlier answers: "
            f"{', '.join(answers[-3:])}")


def keep_answers(record: Record, found: Sequence[Comparison]) -> None:
    """Keep the answer of a run for the next one, if its question was tested: the declared contrast, else all.

    A run that was interrupted has been looked at: who leaves such runs when they do not look well chooses among more
    runs than have ended, so it counts as one that has not finished.
    """
    chosen = [item for item in found if item.primary] or found
    tested = [item for item in chosen
              if item.verdict in DECIDED or (item.advice is not None and item.advice.kind in TESTED)]
    begun = any(item.advice is not None and item.advice.kind == "missing_pairs" and item.pairs for item in chosen)
    if not (tested or begun) or not _asks(record.plan):
        return
    answer = " and ".join(dict.fromkeys(item.spoken for item in tested)) or "not finished"
    keep_answer(question_of(record.plan), record.plan, record.folder.root, answer)


def _asks(plan: Plan) -> bool:
    return plan.kind == "suite" and plan.design.scored
