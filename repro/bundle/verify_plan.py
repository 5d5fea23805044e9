"""Checks of the plan: it is what its suite expands to, with no cell or trial dropped, added or changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from pydantic import ValidationError

import repro
from repro.bundle.verification import Problem, Verification
from repro.bundle.verify_words import check_cells, check_words
from repro.core.errors import ReproError
from repro.core.machine import Machine
from repro.record.environment.environment import Environment, commit
from repro.record.folder.store import MAX_TRIALS
from repro.suite.planning.plan import Plan, expand_again, planned_order, suite_digest, wrong_order

SHOWN_CELLS = 8


def made_by(environment: Environment | None) -> str:
    """Return the version and commit of the code that made a record."""
    if environment is None:
        return "unknown code"
    return f"repro {environment.repro_version} {environment.commit or ''}".strip()


@cache  # it asks git, and another commit of a checkout means another process
def this_code() -> str:
    """Return the version and commit of the running code, as `made_by` writes them."""
    return f"repro {repro.__version__} {commit() or ''}".strip()


def can_list_trials(plan: Plan) -> bool:
    """Return whether the plan's order names trials of its cells only, and not too many."""
    return len(plan.order) <= MAX_TRIALS and all(0 <= index < len(plan.cells) and 0 <= repeat < 1 << 32
                                                 for index, repeat in plan.order)


def check_plan(plan: Plan, code: str, found: Verification) -> None:
    """Check that the plan is what its suite expands to.

    Args:
        code: version and commit that made the plan. Other code may have other defaults; its plan is then checked on its
            own: complete cells, each with its own id, and the digest over them.
    """
    check_cells(plan, found)
    if not can_list_trials(plan) or len(set(plan.order)) < len(plan.order):
        found.add("plan.json", "its order names a trial twice, a trial of no cell, or too many trials", "plan")
    absent = plan.absent_plugins()
    found.notes.extend(absent)
    if plan.has_twins:
        found.notes.append("a calibration: its cells are twins, so its plan is not expanded again")
        _check_order(plan, None, found)
        return
    try:
        again = expand_again(plan, Machine(plan.device, plan.device_count, plan.cores, plan.cpp_compiler))
    except (ReproError, ValidationError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        found.add("plan.json", f"its suite cannot be expanded again: {' '.join(str(error).split())[:160]}", "plan")
        return
    found.count("plans expanded again")
    again = _without_refused(plan, again) if absent else again
    _check_order(plan, again, found)
    missing_cells = _check_digest(plan, again, code, found)
    check_words(plan, again, code == this_code(), found)
    found.extend(missing_trials(plan, missing_cells))


def _without_refused(plan: Plan, again: Plan) -> Plan:
    """Return the plan expanded `again` as the plug-ins would have it: their stand-ins refuse no cell and note nothing.
    """
    refused = {item.label for item in plan.skipped}
    left = again.model_copy(update={"cells": tuple(cell for cell in again.cells if cell.label not in refused),
                                    "skipped": plan.skipped, "notes": plan.notes})
    return left.model_copy(update={"order": tuple(planned_order(left))})


def _check_order(plan: Plan, again: Plan | None, found: Verification) -> None:
    """Check that the order follows from its seed: a chosen order could favour a cell on a machine that drifts."""
    if can_list_trials(plan) and (text := wrong_order(plan, again)):
        found.add("plan.json", text, "plan")


def _check_digest(plan: Plan, again: Plan, code: str, found: Verification) -> list[str]:
    """Compare the plan with its suite expanded `again`; return the labels of the cells that the plan lacks."""
    known = {item.cell_id for item in again.cells}
    strange = [cell.cell_id for cell in plan.cells if cell.cell_id not in known]
    if again.digest == plan.digest and not strange:
        kept = {cell.cell_id for cell in plan.cells}
        missing = [item.label for item in again.cells if item.cell_id not in kept]
        if plan.kind == "reproduction":
            found.notes.append(f"a reproduction of {len(plan.order)} trials of its suite"
                               + (f"; without the cells: {'; '.join(missing[:SHOWN_CELLS])}" if missing else ""))
        return missing
    if plan.digest in _digests(plan):
        found.notes.append("this version of repro expands the suite differently (a default has changed since); the "
                           "digest is that of the cells as written in the plan")
    elif plan.skipped and code != this_code():
        found.notes.append(f"the digest could not be checked: the plan was made by {code}, this is {this_code()}")
    else:
        found.add("plan.json", f"digest is {plan.digest[:16]}, its suite gives {again.digest[:16]}"
                  + (f"; {len(strange)} cells are not in the suite: {', '.join(strange[:3])}" if strange else ""),
                  "plan")
    return []


def _digests(plan: Plan) -> set[str]:
    """Return the digests of the cells as written: with the chosen device, and with the device open as in suites."""
    open_device = [cell.model_copy(update={"choices": cell.choices.model_copy(update={"device": "auto"})})
                   for cell in plan.cells]
    return {suite_digest(plan.suite, cells) for cells in (plan.cells, open_device)}


def missing_trials(plan: Plan, missing_cells: Sequence[str]) -> Iterator[Problem]:
    """Find cells of the suite and seeds of a cell that the plan does not run and gives no reason for.

    Args:
        missing_cells: labels of the cells that the suite expands to and the plan does not have.
    """
    if plan.kind == "reproduction":
        return
    if missing_cells:
        yield Problem("plan.json", f"lacks cells of its suite: {'; '.join(missing_cells[:SHOWN_CELLS])}", "plan")
    wanted = {(index, repeat) for index in range(len(plan.cells)) for repeat in range(plan.design.repeats_of(index))}
    if missing := sorted(wanted - set(plan.order)):
        index, repeat = missing[0]
        yield Problem("plan.json", f"its order lacks {len(missing)} trials of its suite, the first of them seed "
                      f"{repeat} of {plan.cells[index].label}", "plan")
    if strange := sorted(set(plan.order) - wanted):
        yield Problem("plan.json", f"its order names {len(strange)} trials that are not in its suite", "plan")
