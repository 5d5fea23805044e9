"""Checks of the ledger, which lists every attempt and contradicts no result, limit or log; and of the looks of a
sequential record, each derived again from the results."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from repro.bundle.verify_files import Problem, Verification, without_place
from repro.compare.design.sequential import TakenLook, looks_taken, stages
from repro.core.errors import OutputError
from repro.record.environment.nodes import Nodes
from repro.record.folder.execution import Execution, execution_of
from repro.record.folder.index import MERGED
from repro.record.folder.ledger import (
    ADJUSTED_MS,
    WASH_OUT,
    Attempt,
    Incident,
    Look,
    end_of,
    latest,
    read_lines,
    read_starts,
)
from repro.record.folder.resume import may_run_again
from repro.record.folder.store import RunFolder
from repro.record.log.reading import read_lines as log_lines
from repro.record.result.remarks import joined
from repro.record.result.results import Result
from repro.record.result.status import STARTED, WASHED_OUT, meaning
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan, washed_out

LEDGER = "ledger.jsonl"
ROUNDED_SECONDS = 0.01
"""Largest rounding error of the seconds in the ledger."""


def check_ledger(
    folder: RunFolder, plan: Plan, results: list[Result], attempts: list[Attempt], found: Verification
) -> None:
    """Check the ledger against the results and the plan."""
    with suppress(OutputError, OSError, RecursionError):  # the caller reports them
        incidents = read_lines(folder.incidents, Incident)
        resumed = [item.at_ms for item in incidents if item.kind == "resumed"]
        was_set = any(item.kind == "clock" for item in incidents)
        if not was_set:  # a clock that was set orders nothing
            wash_outs = [item for item in read_starts(folder.ledger) if item.attempt == WASH_OUT]
            found.add_each(LEDGER, wrong_wash_outs(plan, attempts, wash_outs, resumed), "ledger")
        merged = (folder.root / MERGED).is_file()  # only its shards still have an order
        listed = [item for item in attempts if item.shard] if merged else attempts
        found.add_each(LEDGER, _out_of_order(plan, results, listed, was_set), "ledger")
        found.add_each(LEDGER, other_times(folder, plan, results, attempts, was_set), "ledger")
    named = next((item for item in attempts if item.source), None)
    if named is not None and not (folder.root / MERGED).is_file():
        found.add(LEDGER, f"attempt {named.attempt} of {named.trial_id[:120]} is of the run {named.source[:80]}, but "
                  "this record was not merged from several", "ledger")
    for texts in (_contradicted_results(results, attempts), missing_attempts(attempts), early_ends(plan, attempts),
                  _unknown_trials(plan, results, attempts)):
        found.add_each(LEDGER, texts, "ledger")
    found.count("ledgers against results")


def _contradicted_results(results: list[Result], attempts: list[Attempt]) -> Iterator[str]:
    ends = {(item.trial_id, item.attempt): item for item in attempts}
    for result in results:
        line = ends.get((result.trial_id, result.attempt))
        if line is None:
            yield f"has no line for attempt {result.attempt} of {result.trial_id}, which has a result"
        elif line.status not in (result.status, STARTED):
            yield f"{result.trial_id} ended as {line.status!r}, but its result says {result.status!r}"
        elif line.status != STARTED and line.reasons != result.reasons:
            yield (f"{result.trial_id} ended because of {joined(line.reasons)[:80]!r}, but its result says "
                   f"{joined(result.reasons)[:80]!r}")


def _out_of_order(
    plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt], clock_was_set: bool
) -> Iterator[str]:
    """Find starts that the ledger has in another order than that of time, and first ones in another than the plan's:
    a pair of which one trial is moved away counts for no time.

    Each shard of a pool has an order of its own, of the starts that count: a lost block is taken when its turn comes.
    """
    places = {trial.trial_id: place for place, trial in enumerate(plan.trials())}
    numbers = {result.trial_id: result.attempt for result in results}
    by_shard: dict[str, list[Attempt]] = defaultdict(list)
    for item in attempts:
        if item.started_ms and (not item.shard or numbers.get(item.trial_id) == item.attempt):
            by_shard[item.shard].append(item)
    for shard, listed in by_shard.items():
        of = f" in shard {shard}" if shard else ""
        for before, item in pairwise(listed):
            if not clock_was_set and item.started_ms < before.started_ms - ADJUSTED_MS:
                yield f"{item.trial_id} stands after {before.trial_id}{of}, which started later"
        for before, item in pairwise(item for item in listed
                                     if (shard or item.attempt == 1) and item.trial_id in places):
            if places[item.trial_id] < places[before.trial_id]:
                yield f"{item.trial_id} stands after {before.trial_id}{of}, before which the plan has it"


def _unknown_trials(plan: Plan, results: list[Result], attempts: list[Attempt]) -> Iterator[str]:
    planned = {trial.trial_id for trial in plan.trials()}
    for name in sorted({item.trial_id for item in attempts} - planned):
        yield f"names {name[:120]}, which is not in the plan"
    cells = {cell.cell_id for cell in plan.cells}
    for name in sorted({item.cell_id for item in attempts} - cells):
        yield f"names the cell {name[:120]}, which is not in the plan"
    without = planned - {result.trial_id for result in results}
    for item in attempts:
        if meaning(item.status).logged and item.trial_id in without:
            yield f"{item.trial_id} ended as {item.status!r} but has no result"


def missing_attempts(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find gaps in the numbers of the attempts, which start at 1: a removed line leaves a gap."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for item in attempts:
        numbers[item.trial_id].add(item.attempt)
    for trial_id, found in sorted(numbers.items()):
        if missing := sorted(set(range(1, max(found) + 1)) - found):
            yield f"has no line for attempt {missing[0]} of {trial_id[:120]}, but one for attempt {max(found)}"


def early_ends(plan: Plan, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find attempts with a status of a limit whose seconds are below this limit.

    The seconds of an attempt that resumed from a checkpoint do not include those before the checkpoint, so they are
    not checked.
    """
    choices = {cell.cell_id: cell.choices for cell in plan.cells}
    for item in attempts:
        if item.cell_id not in choices or item.resumed_from:
            continue
        field = meaning(item.status).limit
        limit = getattr(choices[item.cell_id], field) if field else None
        if limit is not None and item.seconds < limit - ROUNDED_SECONDS:
            yield (f"{item.trial_id[:120]} ended as {item.status!r} after {item.seconds:g} s, but its limit is "
                   f"{limit:g} s")


def other_times(
    folder: RunFolder, plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt], clock_was_set: bool
) -> Iterator[str]:
    """Find starts that were shorter than the run in their log, or whose log began before or after them.

    Left out are resumed starts, whose log has that of an earlier one, and simulated trials, which invent their
    times. If a clock was set, only durations count.
    """
    invented = {cell.cell_id for cell in plan.cells if cell.choices.origin == "simulated"}
    starts = {(item.trial_id, item.attempt): item for item in attempts}
    for result in results:
        start = starts.get((result.trial_id, result.attempt))
        if start is None or start.known_seconds is None or start.resumed_from or result.cell_id in invented:
            continue
        begin = next((item.time_ms for _, item, _ in log_lines(folder.log(result.trial_id, result.attempt)) if item),
                     start.started_ms)
        late_ms = begin - start.started_ms
        if not clock_was_set and not -ADJUSTED_MS <= late_ms <= 1e3 * start.seconds + ADJUSTED_MS:
            order = "before" if late_ms > 0 else "after"
            yield f"{result.trial_id} started {abs(late_ms) / 1e3:.0f} s {order} its log began"
        if result.run_seconds is not None and start.seconds < result.run_seconds - ROUNDED_SECONDS:
            yield (f"{result.trial_id} took {start.seconds:g} s from start to end, but the run in its log took "
                   f"{result.run_seconds:g} s")


def unlisted_logs(folder: RunFolder, trial: Trial, attempts: Sequence[Attempt]) -> Iterator[Problem]:
    """Find logs of attempts that the ledger does not list."""
    name = trial.trial_id
    known = {item.attempt for item in attempts if item.trial_id == name}
    for number, path in folder.logs(name):
        if number not in known:
            yield Problem(f"trials/{name}/{path.name}", "is the log of an attempt that the ledger does not "
                          "list", "ledger")


def unfinished(plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt]) -> list[str]:
    """Return the trials with a result that have not ended: a later attempt has started, or the suite requires one."""
    latest, failed = Counter[str](), Counter[str]()
    for item in attempts:
        if item.source:  # an attempt of another run, in a merged record
            continue
        latest[item.trial_id] = max(latest[item.trial_id], item.attempt)
        failed[item.trial_id] += meaning(item.status).reruns
    return [item.trial_id for item in results if latest[item.trial_id] > item.attempt
            or (meaning(item.status).reruns and may_run_again(plan, failed[item.trial_id]))]


ROUNDED_MS = 50.0
"""Milliseconds by which a start may seem to end behind the next one: its length is of another clock than its begin."""


def wrong_wash_outs(
    plan: Plan, attempts: Sequence[Attempt], wash_outs: Sequence[Attempt], resumed: Sequence[float]
) -> Iterator[str]:
    """Find unmeasured starts that the order of the measured ones does not require, and required ones that are absent.

    A ledger keeps the last unmeasured start of a trial. In a merged record the starts of several runs are mixed; only
    the fields are checked there.
    """
    trials = {trial.trial_id: (trial.cell_id, trial.repeat) for trial in plan.trials()}
    wrong = next((item for item in wash_outs if item.status != WASHED_OUT
                  or trials.get(item.trial_id) != (item.cell_id, item.repeat) or not plan.washes_out), None)
    if wrong is not None:
        yield f"attempt {WASH_OUT} of {wrong.trial_id[:120]} is no wash-out that the suite declares"
    elif plan.washes_out and not any(item.source for item in attempts):
        starts = sorted((*attempts, *wash_outs), key=lambda item: (item.started_ms, item.attempt > WASH_OUT))
        last = {item.trial_id: item.started_ms for item in wash_outs}
        for shard in dict.fromkeys(item.shard for item in starts):
            edges = [-math.inf, *([] if shard else sorted(resumed)), math.inf]
            for begin, end in pairwise(edges):
                yield from _misplaced([item for item in starts
                                       if item.shard == shard and begin <= item.started_ms < end], last)


def unknown_nodes(attempts: Sequence[Attempt], history: Sequence[Nodes]) -> Iterator[str]:
    """Find places in the ledger that the record describes nowhere."""
    known = {name for moment in history for name in moment.names()}
    for item in attempts:
        if other := next((name for name in item.nodes if name not in known), None):
            yield (f"{item.trial_id}, attempt {item.attempt}: ran on {other[:80]!r}, which nodes.jsonl does not "
                   "describe")


def _misplaced(starts: Sequence[Attempt], last: Mapping[str, float]) -> Iterator[str]:
    """Find the same among the starts of a run from one resume to the next.

    Args:
        last: trial -> moment of its last wash-out, in whichever part of the run.
    """
    first = {(item.cell_id, item.repeat): item for item in reversed(starts)}
    order = dict.fromkeys((item.cell_id, item.repeat) for item in starts)
    due = {first[key].trial_id for key in washed_out(order)}
    for place, item in enumerate(starts):
        if item.attempt != WASH_OUT:
            continue
        after = starts[place + 1] if place + 1 < len(starts) else None
        is_first = first[item.cell_id, item.repeat] is item
        if item.trial_id not in due or not is_first or (after is not None and after.trial_id != item.trial_id):
            yield f"the wash-out of {item.trial_id} is not where the order of the starts has one"
        elif after is not None and not 0 < 1e3 * item.seconds <= after.started_ms - item.started_ms + ROUNDED_MS:
            yield f"the wash-out of {item.trial_id} had not ended when its trial began"
    for item in first.values():
        if item.trial_id in due and item.attempt > WASH_OUT and last.get(item.trial_id, -math.inf) <= item.started_ms:
            yield f"no wash-out is listed before {item.trial_id}, and the suite declares one"


LOOKS = "looks.jsonl"
RERUN = ("lost", "rerun")
"""Kinds of incidents after which a trial runs again, and a look is taken again."""
FIGURES = ("nominal", "same_nominal", "p", "same_p", "ratio", "low", "high")
ROUNDED = 1e-9
"""Relative difference of figures that other versions of numerical libraries may cause."""


def check_looks(folder: RunFolder, plan: Plan, results: Sequence[Result], found: Verification) -> tuple[Look, ...]:
    """Check the looks of a record; return them."""
    try:
        lines = read_lines(folder.looks, Look)
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
    found.add_each(LOOKS, _undeclared(plan, lines), "looks")
    with suppress(OutputError, OSError, RecursionError):  # the caller reports ledger and incidents
        incidents = read_lines(folder.incidents, Incident)
        if not any(item.kind in RERUN for item in incidents):
            found.add_each(LOOKS, _replaced(lines, looks), "looks")
        execution = execution_of(read_starts(folder.ledger),
                                 [item.at_ms for item in incidents if item.kind == "resumed"])
        found.add_each(LOOKS, _differences(plan, results, execution, looks), "looks")
    return looks


def _undeclared(plan: Plan, looks: Sequence[Look]) -> Iterator[str]:
    """Find looks that the suite does not declare at this place."""
    declared = {stage.number: stage.n for stage in stages(plan)}
    for look in looks:
        if declared.get(look.number) != look.n or look.of != len(declared):
            said = f"look {look.number} of {len(declared)} is at {declared[look.number]} pairs" \
                if look.number in declared else f"there are {len(declared)} looks"
            yield f"look {look.number} of {look.of} was taken at {look.n} pairs; the suite declares: {said}"


def _replaced(lines: Sequence[Look], looks: Sequence[Look]) -> Iterator[str]:
    """Find lines that say that a look settled the contrast, although it was taken again: the run had ended there."""
    final = {look.number: look.decision for look in looks}
    for line in lines:
        if line.decision == "settled" and final[line.number] != "settled":
            yield (f"look {line.number} at {line.n} pairs was settled ({line.verdict}) in an earlier line, and taken "
                   "again")


def _differences(plan: Plan, results: Sequence[Result], execution: Execution, looks: Sequence[Look]) -> Iterator[str]:
    """Compare the looks with those that the results give."""
    derived = {taken.stage.number: taken for taken in looks_taken(plan, results, execution)}
    for look in looks:
        taken = derived.get(look.number)
        if taken is None:
            yield (f"look {look.number} at {look.n} pairs does not follow from the results: an earlier look settles "
                   "the contrast, or pairs are missing")
        elif text := _difference(look, taken):
            yield f"look {look.number} at {look.n} pairs: {text}"
    taken_numbers = {look.number for look in looks}
    last = max((item.repeat for item in results), default=-1)
    for number, taken in derived.items():
        if number not in taken_numbers and last >= taken.stage.n:
            yield f"look {number} at {taken.stage.n} pairs was not taken, but later pairs have run"
    end = end_of([taken.line() for taken in derived.values()])
    if end is not None and last >= end:
        yield f"the contrast was settled at {end} pairs, but trials of seed {last} have run"


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
