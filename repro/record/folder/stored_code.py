"""Source of classes from files in the folder `code/` of a run: written when it starts, imported by every rank of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from repro.core.errors import TrialError, UsageError
from repro.core.files import write_bytes
from repro.core.source_code import SourceCode, allow, allowed, import_class, is_file_kind, stored_source
from repro.suite.choice import Choice
from repro.suite.kinds import program_files
from repro.suite.kinds.program import ProgramConfig
from repro.suite.planning.consent import carried_by
from repro.suite.planning.plan import Plan


def classes_from_files(plan: Plan) -> list[Choice]:
    """Return the classes from files that a plan uses, one choice of each name and source."""
    found = {(choice.kind, choice.code): choice for cell in plan.cells for choice in cell.choices.plugins()
             if choice.code}
    return list(found.values())


def keep_code(code: Path, plan: Plan) -> None:
    """Write the source of every class from a file and of every program, as it was when the plan was made, into the
    folder `code`.

    Raises:
        UsageError: the files of a program have changed since.
        OutputError: it cannot be written.
    """
    for sha256 in {choice.code for choice in classes_from_files(plan)}:
        source = allowed(sha256)
        assert source is not None, "a plan that runs was made from imported classes"
        _write(code, source)
    engines = {cell.choices.engine.sha256: cell.choices.engine for cell in plan.cells
               if isinstance(cell.choices, ProgramConfig)}
    for engine in list(engines.values()) if plan.base else ():
        source = program_files.read(Path(plan.base) / engine.folder, engine.files, engine.commit)
        if source.sha256 != engine.sha256:
            raise UsageError(f"{engine.name}: its files changed while the plan was made; start again")
        _write(code, source)


def _write(code: Path, source: SourceCode) -> None:
    for name, content in source.files.items():
        write_bytes(code / source.place / name, content)


def copy_code(code: Path, to: Path, plan: Plan) -> None:
    """Copy the source of every class from a file and of every program from one record to another.

    Raises:
        OutputError: a source is missing or is not the one that the plan names, or cannot be written.
    """
    for sha256 in {item.sha256 for item in carried_by(plan.cells)}:
        _write(to, stored_source(code, sha256))


def allow_code_of(code: Path, choices: Iterable[tuple[str, str]]) -> None:
    """Let the classes of a record be imported in this process; only after the user has agreed to run them.

    Args:
        code: the folder `code` of the record.
        choices: name and sha256 of each class.

    Raises:
        OutputError: a source is missing, or is not the one with this hash.
    """
    for kind, sha256 in dict.fromkeys(choices):
        allow(stored_source(code, sha256, kind.partition(":")[0]))


def allow_code_of_trial(payload: Mapping[str, Any]) -> None:
    """Import the classes of a rank's trial from its run folder; source that changed there is refused.

    Args:
        payload: `trial` as JSON, and the folder `code`, as the launcher hands them over.

    Raises:
        TrialError: a source is missing or was changed since the run began, or its import fails here.
    """
    code = Path(payload.get("code", ""))
    chosen = [(item["kind"], item["code"]) for item in payload["trial"]["choices"].values()
              if isinstance(item, Mapping) and is_file_kind(str(item.get("kind"))) and "code" in item]
    try:
        allow_code_of(code, chosen)
        for kind, sha256 in chosen:
            import_class(kind, sha256)
    except UsageError as error:
        raise TrialError(str(error).replace(f"{code.parent}/", "")) from error
