"""The result of verifying a record; checks of its files: hashes, schemas, files that do not belong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from repro.core.errors import Exit, OutputError, ReproError, visible
from repro.core.files import Model, read_model
from repro.record.folder import index as record_index
from repro.record.folder.store import SOLO, TUNING, RunFolder
from repro.suite.planning.plan import Plan

ProblemKind = Literal["hash", "missing", "unlisted", "schema", "plan", "result", "ledger", "conservation", "pairing",
                      "looks", "code", "tuning", "signature", "lanes"]
TRIAL_KINDS: frozenset[ProblemKind] = frozenset(
    {"hash", "missing", "unlisted", "result", "schema", "conservation", "pairing"})
"""Kinds of problem that, within the folder of a trial, concern only this trial."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was modified, is missing, or contradicts the rest of the record."""

    place: str
    """File, relative to the run."""
    what: str
    kind: ProblemKind

    def text(self) -> str:
        return f"{self.place}: {self.what}"


VerifyAnswer = Literal["sound", "incomplete", "modified"]
EXITS: Mapping[VerifyAnswer, Exit] = {"sound": Exit.DONE, "incomplete": Exit.TRIAL_FAILED,
                                      "modified": Exit.NOT_REPRODUCED}
SHOWN_TRIALS = 3


@dataclass(slots=True)
class Verification:
    """Everything that was checked in one record, and everything that was found."""

    source: str
    identity: str | None = None
    """sha256 of the index; None: the run has none."""
    checked: dict[str, int] = field(default_factory=dict)
    """Kind of check -> number of checks made."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    emulated: tuple[str, ...] = ()
    """Devices that stand for GPUs."""
    registered: bool = False
    """It has a registration of its plan."""
    missing: list[str] = field(default_factory=list)
    """Trials of the plan without a result, or whose last one is a failure after which they run again: they have not
    run, or somebody took them out, which nothing in a record tells."""

    @property
    def sound(self) -> bool:
        """Complete and unmodified."""
        return self.answer == "sound"

    @property
    def unmodified(self) -> bool:
        """No file of the record was modified; trials may be missing."""
        return not self.problems

    @property
    def answer(self) -> VerifyAnswer:
        return "modified" if self.problems else "incomplete" if self.missing else "sound"

    @property
    def exit_code(self) -> Exit:
        return EXITS[self.answer]

    def count(self, what: str) -> None:
        self.checked[what] = self.checked.get(what, 0) + 1

    def add(self, place: str, what: str, kind: ProblemKind) -> None:
        self.problems.append(Problem(place, what, kind))

    def add_each(self, place: str, texts: Iterable[str], kind: ProblemKind) -> None:
        self.problems.extend(Problem(place, text, kind) for text in texts)

    def extend(self, problems: Iterable[Problem]) -> None:
        self.problems.extend(problems)

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, "source": self.source, "sound": self.sound, "answer": self.answer,
                "identity": self.identity, "missing": self.missing, "checked": self.checked, "notes": self.notes,
                "emulated": list(self.emulated),
                "problems": [{"place": item.place, "kind": item.kind, "what": item.what} for item in self.problems]}

    def text(self) -> str:
        """Return what was checked, what was found, and which trials are unaffected."""
        checked = ", ".join(f"{count} {what}" for what, count in self.checked.items()) or "nothing could be checked"
        lines = [f"checked: {checked}"]
        if self.identity:
            lines.append(f"index:   sha256 {self.identity}")
        lines += [f"note: {visible(text)}" for text in self.notes]
        if self.emulated:
            lines.append(f"EMULATED: {visible(', '.join(self.emulated))} stands for a GPU; no figure of this record "
                         "says anything about one")
        if self.sound:
            declared = ("that the question was declared before the run, the registration shows if it was published then"
                        if self.registered else
                        "there is no registration: that the question was declared before the run is the author's word")
            lines.append("means:   nothing in it contradicts anything else. Only another execution can show that the "
                         f"figures were measured; {declared}")
            return "\n".join([*lines, f"{self.source}: sound"])
        more = f" and {len(self.missing) - SHOWN_TRIALS} more" if len(self.missing) > SHOWN_TRIALS else ""
        without = f"without a result of {visible(', '.join(self.missing[:SHOWN_TRIALS]))}{more}"
        if self.answer == "incomplete":
            return "\n".join([*lines, f"{self.source}: INCOMPLETE, {without}; they have not run to their end, or "
                              "somebody took them out (a record cannot tell); what is there is unmodified"])
        lines += [without] if self.missing else []
        lines += [f"{item.kind}: {visible(item.text())}" for item in self.problems]
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        found = ("NOT AS SIGNED OR REGISTERED" if all(item.kind == "signature" for item in self.problems) else
                 "MODIFIED")
        return "\n".join([*lines, f"{self.source}: {found}, {count}; {_advice(self.problems, self.missing)}"])


def _advice(problems: list[Problem], missing: list[str]) -> str:
    """Return which trials are unaffected, or what to do if none can be trusted."""
    if any(item.place == "plan.json" for item in problems):
        return "without its plan no trial can be checked: request the record again"
    if any(item.kind == "tuning" or item.place.startswith("tuning/") for item in problems):
        return "the settings that were scored cannot be trusted to be those that the declared tuning chose"
    trials = sorted({item.place.split("/")[1] for item in problems if item.place.startswith("trials/")})
    if not trials and not missing:
        return "no trial is affected"
    if trials and all(item.kind in TRIAL_KINDS and item.place.startswith("trials/") for item in problems):
        return f"affected trials: {', '.join(trials[:5])}{' ...' if len(trials) > 5 else ''}; the others are unaffected"
    return "request the record again, or reproduce it"


Part = TypeVar("Part")
UNFIT = (ReproError, OSError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
         RecursionError)
"""Errors that a foreign file may cause while it is used: a suite expanded, a tuning ranked, figures derived."""
CRATE = "ro-crate-metadata.json"
ALTERED: Mapping[record_index.Alteration, tuple[str, ProblemKind]] = {
    "missing": ("is missing: the index lists it", "missing"),
    "modified": ("was modified: its hash differs from the index", "hash"),
    "added": ("is not in the index: it was added later", "unlisted"),
}
CHECKED_ELSEWHERE = ("sha256sums.txt", CRATE, "run.lock")
"""Names at the top of a run that other checks read, or that belong to no record."""


def check_index(root: Path, found: Verification, packed: bool) -> None:
    """Check every file against the index, and the index against the files.

    Args:
        packed: the record came as a bundle, which must hold an index and no unlisted file.
    """
    path, listed = root / record_index.NAME, dict[str, str]()
    try:
        listed = record_index.read_sums(path) if path.exists() else {}
        found.identity = record_index.identity(listed) if path.exists() else None
    except OutputError as error:
        found.add(record_index.NAME, without_place(record_index.NAME, root, error), "schema")
    present = record_index.present_members(root, listed)
    if packed:
        names = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        present |= {name: record_index.Member(name, str(path)) for name, path in names.items()}
    for item in present.values():
        if item.refusal:
            found.add(item.name, item.refusal, "schema")
    if found.identity is not None:
        for name, item in present.items():
            if name in listed and not item.refusal:
                found.count("hashes of files")
        for name, how in record_index.alterations(present, listed):
            found.add(name, *ALTERED[how])
        found.problems.sort(key=lambda item: item.place)
    elif packed and not path.exists():
        found.add(record_index.NAME, "is missing: without it no file can be checked", "missing")
    elif not path.exists():
        found.notes.append("no index of hashes: the run has not ended; only contradictions within the record can be "
                           "found")


def checked(path: Path, read: Callable[[], Part], root: Path, found: Verification) -> Part | None:
    """Return what `read` makes of a file; report a problem and return None if that fails."""
    place = path.relative_to(root).as_posix()
    try:
        part = read()
    except (OutputError, OSError, RecursionError) as error:
        found.add(place, without_place(place, root, error), "schema")
        return None
    found.count("files by their schema")
    return part


def checked_model(path: Path, cls: type[Model], root: Path, found: Verification) -> Model | None:
    """Read a file as `cls`; report a problem and return None if that fails."""
    if path.is_file():
        return checked(path, lambda: read_model(path, cls), root, found)
    found.add(path.relative_to(root).as_posix(), "is missing, or not a regular file", "missing")
    return None


def unplanned_folders(folder: RunFolder, plan: Plan) -> Iterator[Problem]:
    """Find folders and files below trials/ that belong to no planned trial (renamed, or of another run)."""
    planned = {trial.trial_id for trial in plan.trials()}
    if not folder.trials.is_dir():
        return
    names = (path.name for path in folder.trials.iterdir()
             if path.is_dir() or not record_index.LEFT_BY_OTHERS.fullmatch(path.name))
    for name in sorted(names):
        if name not in planned:
            yield Problem(f"trials/{ascii(name)[1:-1][:120]}", "belongs to no trial of the plan", "plan")


def unchecked_names(root: Path) -> list[str]:
    """Return the names at the top of a run that no check reads: reports, tracking, foreign files."""
    checked = {*record_index.TOP, *record_index.BELOW, SOLO, TUNING, *CHECKED_ELSEWHERE}
    return sorted(path.name for path in root.iterdir() if path.name not in checked)


def without_root(root: Path, text: str) -> str:
    """Remove the path of the folder from a message: that of a bundle is temporary."""
    return text.replace(f"{root}/", "")


def without_place(place: str, root: Path, error: Exception) -> str:
    """Remove the name of the file `place` from a message that is shown after it; the line number stays."""
    text = without_root(root, str(error))
    if text.startswith(f"{place}:") and text[len(place) + 1:len(place) + 2].isdecimal():
        return f"line {text[len(place) + 1:]}"
    return text.removeprefix(f"{place}: ")
