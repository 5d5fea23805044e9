"""Checks of the trials: each result follows from its log, conserves time and samples, and pairs with its seed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from repro.bundle.rederive import FieldDifference, conservation_problems, differences
from repro.bundle.verification import Verification
from repro.bundle.verify_files import verified_model, without_place
from repro.bundle.verify_plan import this_code
from repro.compare import PAIRED_HASHES
from repro.core.errors import OutputError
from repro.core.frozen import canonical
from repro.record.folder.store import RunFolder
from repro.record.result.results import Result
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan

HASHES_DEPEND_ON = ("workload", "batch", "precision")
"""The choices that the hashes of one seed may depend on, besides the seed."""


def verified_result(folder: RunFolder, trial: Trial, code: str, found: Verification) -> Result | None:
    """Check the files of one trial: its description, its result, and the log that the result follows from.

    Returns:
        The result, if there is one that belongs to this trial.
    """
    name = trial.trial_id
    directory = folder.trial(name)
    if not directory.exists() or all(path.match(".*.tmp") for path in directory.iterdir()):
        return None  # not started, or ended before its description was written
    place = f"trials/{name}"
    description = verified_model(folder.trial_file(name), Trial, folder.root, found)
    if description is not None and canonical(description) != canonical(trial):
        found.add(f"{place}/trial.json", "describes another trial than the plan", "plan")
    if not folder.result(name).exists():
        return None
    result: Result | None = verified_model(folder.result(name), Result, folder.root, found)
    if result is None:
        return None
    if (result.trial_id, result.cell_id, result.repeat) != (name, trial.cell_id, trial.repeat):
        found.add(f"{place}/result.json", "is the result of another trial", "result")
        return None
    _check_figures(folder, trial, result, code, found)
    return result


def _check_figures(folder: RunFolder, trial: Trial, result: Result, code: str, found: Verification) -> None:
    """Derive the result from its log again and compare; check conservation of time and samples."""
    place = f"trials/{trial.trial_id}"
    try:
        wrong = differences(trial, result, folder.log(trial.trial_id, result.attempt))
    except OutputError as error:
        log = f"{place}/{folder.log(trial.trial_id, result.attempt).name}"
        found.add(log, without_place(log, folder.root, error), "result")
        return
    found.count("results derived from their log again")
    if wrong:
        _report_differences(f"{place}/result.json", wrong, code, found)
    for text in conservation_problems(result):
        found.add(f"{place}/result.json", text, "conservation")
    found.count("conservation of time and samples")


def _report_differences(place: str, wrong: list[FieldDifference], code: str, found: Verification) -> None:
    """Report a result that its log does not give: either was modified, or other code derived the result.

    The two cases cannot be distinguished here, so a different figure is a problem in both. Other warnings or reasons
    may come from another version and are a note.
    """
    text = "; ".join(item.text for item in wrong[:3]) + (f"; {len(wrong) - 3} more fields" if len(wrong) > 3 else "")
    if code == this_code():
        found.add(place, text, "result")
    elif all(item.field in ("warnings", "reasons") for item in wrong):
        found.notes.append(f"{place}: {text}; made by {code}, which may warn of other things")
    else:
        found.add(place, f"{text} (modified, or derived by other rules: made by {code})", "result")


def check_pairing(plan: Plan, results: Sequence[Result], found: Verification) -> None:
    """Check that one seed gives the same initial weights, order and data in all cells with one workload and batch."""
    cells = {plan.trial(cell, 0).cell_id: cell for cell in plan.cells}
    seen: dict[tuple[str, str, int], tuple[str, str]] = {}
    for result in results:
        if result.status != "ok":
            continue
        data = cells[result.cell_id].choices.model_dump(mode="json", by_alias=True, include=set(HASHES_DEPEND_ON))
        data["batch"] = cells[result.cell_id].choices.global_batch
        group = json.dumps(data, sort_keys=True)
        for name in PAIRED_HASHES:
            if (value := result.hashes.get(name)) is None:
                continue
            first, where = seen.setdefault((name, group, result.repeat), (value, result.trial_id))
            found.count("hashes of pairs")
            if first != value:
                found.add(f"trials/{result.trial_id}/result.json", f"{name.replace('_', ' ')} of seed {result.repeat} "
                          f"differ from those of {where}: the two are not a pair", "pairing")
