"""Checks of the source that a record brings: it is what the plan names by hash, and there is no other."""

from __future__ import annotations

from repro.bundle.verification import Verification
from repro.bundle.verify_files import without_root
from repro.core.errors import OutputError
from repro.core.source_code import PLACE_DIGITS, stored_source
from repro.record.environment.environment import Environment
from repro.record.folder.store import RunFolder
from repro.record.folder.stored_code import classes_from_files, programs_of
from repro.suite.planning.consent import carried_by
from repro.suite.planning.plan import Plan


def check_code(folder: RunFolder, plan: Plan, environment: Environment | None, found: Verification) -> None:
    """Check every source against its hash in the plan, and the plan against the environment; nothing is executed."""
    chosen = classes_from_files(plan)
    named = {item.plugin: item.sha256 for item in environment.plugins} if environment else {}
    for choice in chosen:
        place = f"code/{choice.code[:PLACE_DIGITS]}"
        try:
            stored_source(folder.code, choice.code, choice.kind.partition(":")[0])
            found.count("sources of classes by their hash")
        except OutputError as error:
            found.add(place, without_root(folder.root, str(error)).removeprefix(f"{place}: "), "code")
        said = named.get(f"{choice.seam} {choice.kind}", choice.code)
        if said != choice.code:
            found.add("environment.json", f"{choice.seam} {choice.kind} ran with source {said[:16]}, the plan names "
                      f"{choice.code[:16]}", "code")
    for choices in programs_of(plan):
        place = f"code/{choices.engine.sha256[:PLACE_DIGITS]}"
        try:
            stored_source(folder.code, choices.engine.sha256)
            found.count("sources of programs by their hash")
        except OutputError as error:
            found.add(place, without_root(folder.root, str(error)).removeprefix(f"{place}: "), "code")
    known = {item.place.split("/")[1] for item in carried_by(plan.cells)}
    for name in sorted(path.name for path in folder.code.glob("*")):
        if name not in known:
            found.add(f"code/{ascii(name)[1:-1][:120]}", "is not the source of anything in the plan", "code")
