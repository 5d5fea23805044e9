"""Checks of what a plan says of its cells, its suite and its machine: everything that follows from other files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from repro.bundle.verification import Verification
from repro.core.errors import OutputError, SuiteError
from repro.core.files import read_bounded
from repro.core.redact import without_users
from repro.core.yaml_file import MAX_BYTES, YamlFile
from repro.record.environment.environment import Environment
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

SHOWN = 5


def check_cells(plan: Plan, found: Verification) -> None:
    """Check that each cell is called what its choices are, and that twins name each other."""
    for cell in plan.cells:
        if not cell.well_named:
            found.add("plan.json", f"cell {cell.cell_id} does not match its id: its choices give "
                      f"{cell.choices.cell_id}", "plan")
        if not cell.well_labelled:
            found.add("plan.json", f"cell {cell.cell_id} is labelled {cell.label[:80]!r}, its choices give "
                      f"{cell.relabelled().label!r}", "plan")
        if not cell.well_paired:
            found.add("plan.json", f"cell {cell.cell_id} is the twin of {cell.twin_of[:80]!r}, which its choices do "
                      "not give", "plan")
    if plan.has_twins and plan.kind == "suite":
        found.add("plan.json", "its cells are sides of a calibration, but it is none", "plan")
    if bool(plan.smoke_note) != (plan.smoke and not plan.has_twins) or plan.smoke_note not in ("", *plan.notes):
        found.add("plan.json", f"smoke_note contradicts its {plan.suite.seeds} seeds, or is none of its notes", "plan")


def check_words(plan: Plan, again: Plan, same_code: bool, found: Verification) -> None:
    """Compare the words of the plan with those of its suite expanded `again`.

    Args:
        same_code: the code that made the plan is the one that runs. Other code may word things otherwise: that is a
            note, because `check_cells` has compared the labels with the choices.
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
    for text in differing:
        found.add("plan.json", text, "plan")


def _differing(plan: Plan, again: Plan, there: Mapping[str, Cell]) -> Iterator[str]:
    for cell in plan.cells:
        if cell.cell_id in there and _words(cell) != _words(there[cell.cell_id]):
            yield (f"label or factors of cell {cell.cell_id} are {_words(cell)!r:.160}, its suite gives "
                   f"{_words(there[cell.cell_id])!r:.160}")
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
    yield from (f"notes: lacks {note!r:.160}" for note in _missing(again.notes, plan.notes))


def _words(cell: Cell) -> tuple[str, dict[str, str]]:
    return cell.label, cell.factors


def _missing(wanted: Iterable[str], notes: Iterable[str]) -> list[str]:
    have = set(notes)
    return [note for note in wanted if note not in have]


def check_machine(plan: Plan, environment: Environment, found: Verification) -> None:
    """Compare the machine of the plan with that of the environment; a reproduction keeps the device of its record."""
    for name in ("cores",) if plan.kind == "reproduction" else ("cores", "device"):
        planned, taken = getattr(plan, name), getattr(environment, name)
        if planned != taken:
            found.add("plan.json", f"{name} is {planned!r:.80}, environment.json has {taken!r:.80}", "plan")
    if plan.device == "cpu" and plan.device_count:
        found.add("plan.json", f"device_count is {plan.device_count}, device cpu has none", "plan")


def check_title(plan: Plan, written: Path, found: Verification) -> None:
    """Compare name, title and description with those of the suite as written, which no override changes."""
    if plan.kind != "suite":
        return
    if not written.exists():
        found.notes.append(f"{written.name} is missing: name, title and description of the suite were not compared")
        return
    try:
        data = YamlFile(written.name, read_bounded(written, MAX_BYTES).decode()).data
    except (OutputError, SuiteError, UnicodeDecodeError):
        found.add(written.name, "is not a readable suite file", "schema")
        return
    for name in ("suite", "title", "description"):
        stated = data.get(name, "") if isinstance(data, dict) else ""
        if without_users(str(stated)) != str(getattr(plan.suite, name)):
            found.add("plan.json", f"suite.{name} is not the one in {written.name}", "plan")
