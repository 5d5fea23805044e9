"""Checks of the plan: its suite expands to it, no cell or trial was dropped, added or changed; its words follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import repro
from repro.bundle.verify_files import UNFIT, Verification
from repro.core.errors import OutputError, SuiteError
from repro.core.files import read_bounded
from repro.core.machine import Machine
from repro.core.pattern import flat
from repro.core.redact import without_users
from repro.core.source_code import is_file_kind
from repro.core.yaml_file import MAX_BYTES, YamlFile
from repro.record.environment.environment import Environment, commit, edits_sha256
from repro.record.folder.store import lists_trials
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan, expand_again, planned_order, suite_digest, wrong_order

SHOWN_CELLS = 8
OTHER_FIELDS = ("suite", "title", "description", "tune")
"""Fields of a suite that are compared otherwise, or that the plan of its phase does not have."""


def made_by(environment: Environment | None) -> str:
    """Return the version and commit of the code that made a record, and its edits."""
    if environment is None:
        return "unknown code"
    return _code(environment.repro_version, environment.commit, environment.diff_sha256)


def _code(version: str, commit: str | None, edits: str | None) -> str:
    return " ".join(filter(None, ("repro", version, commit, f"with edits {edits[:12]}" if edits else "")))


@lru_cache(maxsize=1)  # a process runs the code that it began with
def this_code() -> str:
    """Return the version and commit of the running code, and its edits, as `made_by` writes them."""
    return _code(repro.__version__, commit(), edits_sha256())


def check_plan(plan: Plan, code: str, found: Verification) -> None:
    """Check that the plan is what its suite expands to.

    Args:
        code: version and commit that made the plan. Other code may have other defaults; its plan is then checked on its
            own: complete cells, each with its own id, and the digest over them.
    """
    found.add_each("plan.json", wrong_cells(plan), "plan")
    if (plan.kind == "reproduction") != (plan.terms is not None):
        found.add("plan.json", f"is {'a' if plan.kind == 'reproduction' else 'no'} reproduction, but "
                  f"{'lacks' if plan.terms is None else 'has'} the terms that one declares before it runs", "plan")
    if not lists_trials(plan) or len(set(plan.order)) < len(plan.order):
        found.add("plan.json", "its order names a trial twice, a trial of no cell, or too many trials", "plan")
    absent = plan.absent_plugins()
    found.notes.extend(absent)
    if plan.has_twins:
        found.notes.append("a calibration: its cells are twins, so its plan is not expanded again")
        _check_order(plan, None, found)
        found.add_each("plan.json", missing_trials(plan, ()), "plan")
        return
    try:
        there = Machine(plan.device, plan.device_count, plan.cores, plan.cpp_compiler)
        again = expand_again(plan, there, elsewhere=True)
    except UNFIT as error:
        found.add("plan.json", f"its suite cannot be expanded again: {' '.join(str(error).split())[:160]}", "plan")
        return
    found.count("plans expanded again")
    if lacking := [item.label for item in again.skipped if item.missing]:
        found.notes.append("not checked: something that these cells need was not installed where the run was planned, "
                           f"the plan says: {'; '.join(lacking[:SHOWN_CELLS])}")
    again = _without_refused(plan, again) if absent else again
    _check_order(plan, again, found)
    missing_cells = _check_digest(plan, again, code, found)
    check_words(plan, again, code == this_code(), found)
    found.add_each("plan.json", missing_trials(plan, missing_cells), "plan")


def _without_refused(plan: Plan, again: Plan) -> Plan:
    """Return the plan expanded `again` as the plug-ins would have it: their stand-ins refuse no cell and note nothing.
    """
    refused = {item.label for item in plan.skipped}
    left = again.model_copy(update={"cells": tuple(cell for cell in again.cells if cell.label not in refused),
                                    "skipped": plan.skipped, "notes": plan.notes})
    return left.model_copy(update={"order": tuple(planned_order(left))})


def _check_order(plan: Plan, again: Plan | None, found: Verification) -> None:
    """Check that the order follows from its seed: a chosen order could favour a cell on a machine that drifts."""
    if lists_trials(plan) and (text := wrong_order(plan, again)):
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
    if code != this_code() and plan.digest in _digests(plan):
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


def missing_trials(plan: Plan, missing_cells: Sequence[str]) -> Iterator[str]:
    """Find cells of the suite and seeds of a cell that the plan does not run and gives no reason for.

    Args:
        missing_cells: labels of the cells that the suite expands to and the plan does not have.
    """
    if plan.is_part:
        return
    if missing_cells:
        yield f"lacks cells of its suite: {'; '.join(missing_cells[:SHOWN_CELLS])}"
    wanted = {(index, repeat) for index in range(len(plan.cells)) for repeat in range(plan.design.repeats_of(index))}
    if missing := sorted(wanted - set(plan.order)):
        index, repeat = missing[0]
        yield (f"its order lacks {len(missing)} trials of its suite, the first of them seed {repeat} of "
               f"{plan.cells[index].label}")
    if strange := sorted(set(plan.order) - wanted):
        yield f"its order names {len(strange)} trials that are not in its suite"


SHOWN = 5


def wrong_cells(plan: Plan) -> Iterator[str]:
    """Find cells that are not called what their choices are, and twins that do not name each other."""
    for cell in plan.cells:
        if not cell.well_named:
            yield f"cell {cell.cell_id} does not match its id: its choices give {cell.choices.cell_id}"
        if not cell.well_labelled:
            yield (f"cell {cell.cell_id} is labelled {cell.label[:80]!r}, its choices give "
                   f"{cell.relabelled().label!r}")
        if not cell.well_paired:
            yield f"cell {cell.cell_id} is the twin of {cell.twin_of[:80]!r}, which its choices do not give"
    if plan.has_twins and plan.kind == "suite":
        yield "its cells are sides of a calibration, but it is none"
    if (plan.kind == "calibration" and not plan.has_twins) or (
            not plan.is_part and (plan.kind == "tuning") != (plan.suite.tune is not None)):
        yield f"its kind is {plan.kind}, which its suite and its cells are not"
    if bool(plan.smoke_note) != (plan.smoke and not plan.has_twins) or plan.smoke_note not in ("", *plan.notes):
        yield f"smoke_note contradicts its {plan.suite.seeds} seeds, or is none of its notes"


def check_words(plan: Plan, again: Plan, same_code: bool, found: Verification) -> None:
    """Compare the words of the plan with those of its suite expanded `again`.

    Args:
        same_code: the code that made the plan is the one that runs. Other code may word things otherwise: that is a
            note, because `wrong_cells` has compared the labels with the choices.
    """
    there = {cell.cell_id: cell for cell in again.cells}
    for cell in plan.cells:
        if (wanted := there.get(cell.cell_id)) is not None and list(cell.factors) != list(wanted.factors):
            found.add("plan.json", f"cell {cell.cell_id} has the factors {', '.join(cell.factors)[:80]!r}, its suite "
                      f"gives {', '.join(wanted.factors)!r}", "plan")
    differing = list(_differing(plan, again, there))
    if not same_code and differing:
        found.notes.append("this version of repro words its plan differently: "
                           f"{'; '.join(differing[:SHOWN])}{' ...' if len(differing) > SHOWN else ''}")
        return
    found.add_each("plan.json", differing, "plan")


def _differing(plan: Plan, again: Plan, there: Mapping[str, Cell]) -> Iterator[str]:
    for cell in plan.cells:
        if (other := there.get(cell.cell_id)) is None:
            continue
        said, wanted = (cell.label, cell.factors), (other.label, other.factors)
        if said != wanted:
            yield f"label or factors of cell {cell.cell_id} are {said!r:.160}, its suite gives {wanted!r:.160}"
    if plan.kind not in ("suite", "tuning"):
        return  # a reproduction has the notes and the skipped combinations of the machine that its record was made on
    ours, theirs = ({(item.label, tuple(item.factors.items()), item.reason): item for item in each.skipped}
                    for each in (plan, again))
    yield from (f"skipped: {item.label[:80]!r} with this reason does not follow from its suite"
                for key, item in ours.items() if key not in theirs)
    yield from (f"skipped: lacks {item.label!r} ({item.reason[:80]})"
                for key, item in theirs.items() if key not in ours)
    if plan.smoke_note != again.smoke_note:
        yield f"smoke_note is {plan.smoke_note[:80]!r}, its suite gives {again.smoke_note!r}"
    yield from (f"notes: lacks {note!r:.160}" for note in again.notes if note not in plan.notes)


def other_machine(plan: Plan, environment: Environment) -> Iterator[str]:
    """Compare the machine of the plan with that of the environment; a reproduction keeps the device of its record."""
    for name in ("cores",) if plan.kind == "reproduction" else ("cores", "device"):
        planned, taken = getattr(plan, name), getattr(environment, name)
        if planned != taken:
            yield f"{name} is {planned!r:.80}, environment.json has {taken!r:.80}"
    if plan.device == "cpu" and plan.device_count:
        yield f"device_count is {plan.device_count}, device cpu has none"


def check_suite_file(plan: Plan, written: Path, found: Verification) -> None:
    """Compare the suite as written with the plan; only what no override changes, its name and words, is a problem."""
    if plan.kind != "suite":
        return
    if not written.exists():
        found.notes.append(f"{written.name} is missing: the plan was not compared with the suite as written")
        return
    try:
        data = YamlFile(written.name, read_bounded(written, MAX_BYTES).decode(), stored=True).data
    except (OutputError, SuiteError, UnicodeDecodeError):
        found.add(written.name, "is not a readable suite file", "schema")
        return
    for name in ("suite", "title", "description"):
        stated = data.get(name, "") if isinstance(data, dict) else ""
        if without_users(str(stated)) != str(getattr(plan.suite, name)):
            found.add("plan.json", f"suite.{name} is not the one in {written.name}", "plan")
    if isinstance(data, dict) and (others := _not_as_written(plan, data)):
        more = f" and {len(others) - SHOWN_CELLS} more" if len(others) > SHOWN_CELLS else ""
        found.notes.append(f"{written.name} is not what ran, plan.json is: {'; '.join(others[:SHOWN_CELLS])}{more}; "
                           "options of the command line cause this, and a later edit would")


def _not_as_written(plan: Plan, data: Mapping[str, Any]) -> list[str]:
    """Return `margin: 0.5, ran 0.05` for every field whose value in the suite as written is not the plan's."""
    ran = flat(plan.suite.model_dump(mode="json", by_alias=True))
    wanted = flat({name: value for name, value in data.items() if name not in OTHER_FIELDS})
    return [f"{name}: {value}, ran {ran.get(name)}" for name, value in wanted.items()
            if value != {} and _plain(value) not in (_plain(ran.get(name)), _plain(ran.get(f"{name}.kind")))]


def _plain(value: Any) -> Any:
    """Return a value without folders and hashes of classes from files; a plug-in without options as its name."""
    if isinstance(value, str):
        return value.rpartition("/")[2] if is_file_kind(value) else without_users(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        found = {name: _plain(item) for name, item in value.items() if name != "code"}
        return found["kind"] if found.keys() == {"kind"} else found
    return value
