"""How often the question of a run was answered on this machine, and what its runs may err in together."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence

from repro.compare.figures import DECIDED, AdviceKind, Comparison
from repro.compare.verdict.family import ALPHA
from repro.record.folder.store import Record
from repro.record.questions import Answered, earlier_answers, keep_answer
from repro.suite.planning.plan import Plan
from repro.suite.planning.question import question_of

TESTED: tuple[AdviceKind, ...] = ("tested", "tested_in_a_contest", "looks_used_up", "equal_grids")
"""Advice under a comparison that was tested and is open."""
ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}


def asked_before(plan: Plan) -> str:
    """Return `third run of this question on this machine ...`; "" for the first, and for runs without verdicts."""
    answers = earlier_answers(question_of(plan)) if _asks(plan) else ()
    if not answers:
        return ""
    count = len(answers) + 1
    spent = f"{1 - (1 - ALPHA) ** count:.0%}".replace("%", " %")
    return (f"{ORDINALS.get(count, f'{count}th')} run of this question on this machine; together they spend up to "
            f"{spent}; earlier answers: {', '.join(answers[-3:])}")


def keep_answers(record: Record, found: Sequence[Comparison]) -> None:
    """Keep the answer of a run for the next one, if its question was tested: the declared contrast, else all."""
    chosen = [item for item in found if item.primary] or found
    tested = [item for item in chosen if _is_tested(item)]
    if not tested or not _asks(record.plan):
        return
    plan = record.plan
    keep_answer(Answered(
        question=question_of(plan), machine=platform.node(), run=record.folder.root.resolve().name,
        master_seed=plan.master_seed, order_seed=plan.order_seed,
        answer=" and ".join(dict.fromkeys(item.verdict for item in tested)), at_ms=round(time.time() * 1e3)))


def _asks(plan: Plan) -> bool:
    return plan.kind == "suite" and plan.design.scored


def _is_tested(item: Comparison) -> bool:
    return item.verdict in DECIDED or (item.advice is not None and item.advice.kind in TESTED)
