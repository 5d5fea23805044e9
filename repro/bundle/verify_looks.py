"""Checks of the looks of a sequential record: the declared ones, each derived again from the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from repro.bundle.verification import Problem, Verification
from repro.bundle.verify_files import without_place
from repro.compare.design.sequential import TakenLook, looks_taken, stages
from repro.core.errors import OutputError
from repro.record.folder.ledger import Attempt, Look, end_of, latest, read_incidents, read_look_lines
from repro.record.folder.store import RunFolder
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan

LOOKS = "looks.jsonl"
RERUN = ("lost", "rerun")
"""Kinds of incidents after which a trial runs again, and a look is taken again."""
FIGURES = ("nominal", "same_nominal", "p", "same_p", "ratio", "low", "high")
ROUNDED = 1e-9
"""Relative difference of figures that other versions of numerical libraries may cause."""


def check_looks(
    folder: RunFolder, plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt], found: Verification
) -> tuple[Look, ...]:
    """Check the looks of a record; return them."""
    try:
        lines = read_look_lines(folder.looks)
        again = any(item.kind in RERUN for item in read_incidents(folder.incidents))
    except (OutputError, OSError, RecursionError) as error:
        found.add(LOOKS, without_place(LOOKS, folder.root, error), "schema")
        return ()
    looks = latest(lines)
    if not plan.design.looks:
        if looks:
            found.add(LOOKS, "the plan declares no looks", "looks")
        return ()
    for _ in looks:
        found.count("looks derived again")
    found.extend(_undeclared(plan, lines))
    if not again:
        found.extend(_replaced(lines, looks))
    starts = {(item.trial_id, item.attempt): item.started_ms for item in attempts}
    started = {item.trial_id: starts[item.trial_id, item.attempt] for item in results
               if (item.trial_id, item.attempt) in starts}
    found.extend(_differences(plan, results, started, looks))
    return looks


def _undeclared(plan: Plan, looks: Sequence[Look]) -> Iterator[Problem]:
    """Find looks that the suite does not declare at this place."""
    declared = {stage.number: stage.n for stage in stages(plan)}
    for look in looks:
        if declared.get(look.number) != look.n or look.of != len(declared):
            said = f"look {look.number} of {len(declared)} is at {declared[look.number]} pairs" \
                if look.number in declared else f"there are {len(declared)} looks"
            yield Problem(LOOKS, f"look {look.number} of {look.of} was taken at {look.n} pairs; the suite declares: "
                          f"{said}", "looks")


def _replaced(lines: Sequence[Look], looks: Sequence[Look]) -> Iterator[Problem]:
    """Find lines that say that a look settled the contrast, although it was taken again: the run had ended there."""
    final = {look.number: look.decision for look in looks}
    for line in lines:
        if line.decision == "settled" and final[line.number] != "settled":
            yield Problem(LOOKS, f"look {line.number} at {line.n} pairs was settled ({line.verdict}) in an earlier "
                          "line, and taken again", "looks")


def _differences(
    plan: Plan, results: Sequence[Result], started: Mapping[str, float], looks: Sequence[Look]
) -> Iterator[Problem]:
    """Compare the looks with those that the results give."""
    derived = {taken.stage.number: taken for taken in looks_taken(plan, results, started)}
    for look in looks:
        taken = derived.get(look.number)
        if taken is None:
            yield Problem(LOOKS, f"look {look.number} at {look.n} pairs does not follow from the results: an earlier "
                          "look settles the contrast, or pairs are missing", "looks")
        elif text := _difference(look, taken):
            yield Problem(LOOKS, f"look {look.number} at {look.n} pairs: {text}", "looks")
    taken_numbers = {look.number for look in looks}
    last = max((item.repeat for item in results), default=-1)
    for number, taken in derived.items():
        if number not in taken_numbers and last >= taken.stage.n:
            yield Problem(LOOKS, f"look {number} at {taken.stage.n} pairs was not taken, but later pairs have run",
                          "looks")
    end = end_of([taken.line() for taken in derived.values()])
    if end is not None and last >= end:
        yield Problem(LOOKS, f"the contrast was settled at {end} pairs, but trials of seed {last} have run", "looks")


def _difference(look: Look, taken: TakenLook) -> str:
    """Return how a look differs from the one that the results give; "" if it does not."""
    again = taken.line()
    if (look.decision, look.verdict) != (again.decision, again.verdict):
        return f"it says {look.verdict} ({look.decision}), the results give {again.verdict} ({again.decision})"
    for name in FIGURES:
        ours, theirs = getattr(look, name), getattr(again, name)
        if (ours is None) != (theirs is None) or (
                ours is not None and not math.isclose(ours, theirs, rel_tol=ROUNDED, abs_tol=ROUNDED)):
            return f"{name} is {ours}, the results give {theirs}"
    return ""
