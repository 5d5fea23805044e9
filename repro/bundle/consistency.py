"""What a record must hold besides its figures: all that was planned, nothing else, every start, the right logs.

An index of hashes shows what was altered after it was made; these show what was altered before a new one was.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.core.events import Event
from repro.record.ledger import Attempt
from repro.record.status import meaning
from repro.record.store import RunFolder
from repro.suite.model import Trial
from repro.suite.plan import Plan

Contradiction = tuple[str, str, str]
"""(file relative to the run, what is wrong with it, kind as in `verify.Problem`)."""
BESIDE = ("sha256sums.txt", "ro-crate-metadata.json", "run.lock")
"""At the top of a run, and judged elsewhere or not at all."""

ROUNDED_SECONDS = 0.01
"""What the ledger's seconds may be off."""


def left_out(plan: Plan, lost_cells: Sequence[str]) -> Iterator[Contradiction]:
    """Cells of the suite, or seeds of a cell, that the plan does not run and gives no reason for.

    Args:
        lost_cells: labels of the cells that the suite expands to and the plan does not have.
    """
    if plan.kind == "reproduction":
        return
    if lost_cells:
        yield "plan.json", f"leaves out cells of its suite: {'; '.join(lost_cells[:8])}", "plan"
    wanted = {(index, repeat) for index in range(len(plan.cells)) for repeat in range(plan.suite.seeds)}
    if missing := sorted(wanted - set(plan.order)):
        index, repeat = missing[0]
        yield ("plan.json", f"its order leaves out {len(missing)} trials of its suite, the first of them seed {repeat} "
               f"of {plan.cells[index].label}", "plan")
    if strange := sorted(set(plan.order) - wanted):
        yield "plan.json", f"its order names {len(strange)} trials that its suite does not ask for", "plan"


def strange_folders(folder: RunFolder, plan: Plan) -> Iterator[Contradiction]:
    """Folders and files below trials/ that belong to no trial of the plan (a renamed one, another run's)."""
    planned = {trial.trial_id for trial in plan.trials()}
    if folder.trials.is_symlink() or not folder.trials.is_dir():
        return
    for name in sorted(path.name for path in folder.trials.iterdir()):
        if name not in planned:
            yield f"trials/{ascii(name)[1:-1][:120]}", "is of no trial of the plan", "plan"


def skipped_attempts(attempts: Sequence[Attempt]) -> Iterator[Contradiction]:
    """Starts are numbered from 1 without a gap: a line that is gone leaves one."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for item in attempts:
        numbers[item.trial_id].add(item.attempt)
    for trial_id, found in sorted(numbers.items()):
        if lost := sorted(set(range(1, max(found) + 1)) - found):
            yield ("ledger.jsonl", f"has no line for attempt {lost[0]} of {trial_id[:120]}, though one for attempt "
                   f"{max(found)}", "ledger")


def too_soon(plan: Plan, attempts: Sequence[Attempt]) -> Iterator[Contradiction]:
    """Starts that are said to have been ended by a limit, and by their own seconds ended before it.

    One that went on from a checkpoint had spent some of its time before, so its seconds do not say.
    """
    choices = {cell.cell_id: cell.choices for cell in plan.cells}
    for item in attempts:
        if item.cell_id not in choices or item.resumed_from:
            continue
        field = meaning(item.status).limit
        limit = getattr(choices[item.cell_id], field) if field else None
        if limit is not None and item.seconds < limit - ROUNDED_SECONDS:
            yield ("ledger.jsonl", f"{item.trial_id[:120]} ended as {item.status!r} after {item.seconds:g} s, its "
                   f"limit is {limit:g} s", "ledger")


def unlisted_logs(folder: RunFolder, trial: Trial, attempts: Sequence[Attempt]) -> Iterator[Contradiction]:
    """Logs of starts that the ledger does not know."""
    known = {item.attempt for item in attempts if item.trial_id == trial.trial_id}
    for path in sorted(folder.trial(trial.trial_id).glob("result_*.txt")):
        number = path.stem.rpartition("_")[2]
        if number.isdecimal() and int(number) not in known:
            yield f"trials/{trial.trial_id}/{path.name}", "is the log of an attempt that the ledger has no line for", \
                "ledger"


def another_trial(trial: Trial, events: Sequence[Event]) -> str:
    """How the log describes another trial than this one; "" where it does not.

    A trial whose choices have other defaults by now is compared by its own words in the log, as they were written.
    """
    described = next((event.value for event in events if event.key == "x_trial"), None)
    if not isinstance(described, dict):
        return ""
    ours = trial.model_dump(mode="json", by_alias=True)
    for name in ("suite_digest", "repeat", "master_seed", "choices"):
        if name in described and described[name] != ours[name]:
            return f"is the log of another trial: its {name.replace('_', ' ')} is {_short(described[name])}"
    return ""


def beside(root: Path, judged: Sequence[str]) -> list[str]:
    """Names at the top of a run that no check looks at: reports, tracking, whatever was put there."""
    return sorted(path.name for path in root.iterdir() if path.name not in {*judged, *BESIDE})


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else "not this trial's"
