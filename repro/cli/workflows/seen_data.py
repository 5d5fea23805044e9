"""Runs that have seen the data of a plan: with its master seed, and the same cells."""

from __future__ import annotations

import json
from pathlib import Path

from repro.core.errors import OutputError, UsageError
from repro.core.files import read_bounded
from repro.record.folder.store import TUNING, RunFolder
from repro.record.questions import answered
from repro.runner.run import has_begun
from repro.suite.planning.plan import Plan
from repro.suite.planning.question import Seen, question_of, seen_by, stop_of

LATEST = 200
"""Runs that are looked at, the latest first: a suite that states its master seed repeats its last run."""


def refuse_same_data(plan: Plan, runs: Path, stated: bool = True) -> None:
    """Refuse a plan whose data a run in the folder `runs` has seen: with its master seed and the same cells.

    Args:
        stated: the suite states the master seed. False: the command line does, which may repeat a run on purpose, but
            not with another target.

    Raises:
        UsageError: there is one; says which, and how to draw new data.
    """
    if why := seen_data(plan, runs, stated):
        raise UsageError(why)


def seen_data(plan: Plan, runs: Path, stated: bool = True) -> str:
    """Return the same as text; "" if no run is known. The plan of a tuning is compared with tunings.

    Runs in other folders are known by the user's record of questions: of these only another target refuses.
    """
    below = f"{TUNING}/" if plan.kind == "tuning" else ""
    earlier = sorted((path for path in runs.glob("*") if (path / f"{below}plan.json").is_file()
                      and has_begun(RunFolder(path / below))),
                     key=lambda path: path.name[-15:], reverse=True)[:LATEST]
    found = ((path, _seen_by(path / f"{below}plan.json", plan)) for path in earlier)
    here = next((text for path, seen in found if (text := seen_words(plan, str(path), seen, stated))), "")
    if here or below:
        return here
    stop = stop_of(plan)
    lines = (line for line in answered(question_of(plan)) if line.master_seed == plan.master_seed)
    other = next((line for line in lines if line.stop not in ("", stop)), None)
    return seen_words(plan, f"the run {other.run!r} of this machine", "other target", stated) if other else ""


def seen_words(plan: Plan, run: str, seen: Seen, stated: bool) -> str:
    """Return why a plan cannot run after a run with its data; "" if it can."""
    if seen == "other target":
        return (f"{run}: is a run of the same cells with master seed {plan.master_seed} and another target, or rule to "
                "stop: one that is chosen after its data were seen has no error rate; leave out master_seed and "
                "--master-seed, so that the run draws new data")
    if seen == "same" and stated:
        return (f"{run}: is a run of {plan.suite.suite!r} with master seed {plan.master_seed}, which the suite states: "
                f"a run now would draw the same data again; for new data: --master-seed with another number, or no "
                f"master_seed in the suite; to repeat it on purpose: --master-seed {plan.master_seed}")
    return ""


def _seen_by(path: Path, plan: Plan) -> Seen:
    try:
        return seen_by(plan, json.loads(read_bounded(path)))
    except (OutputError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""  # no plan, or a damaged one, which `repro verify` reports
