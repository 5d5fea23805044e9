"""Is a record whole, and what it was? Every hash, every file's form, every figure from its log again.

What this shows: that files are as they were when the run ended, and that figures follow from logs. What no check of a
folder by itself can show: that a log was not invented with its index. Against that stands only `repro reproduce`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import repro
from repro.bundle import archive, crate
from repro.bundle.consistency import beside, left_out, skipped_attempts, strange_folders, too_soon, unlisted_logs
from repro.bundle.rederive import differences, unsound
from repro.compare import PAIRED_HASHES
from repro.core.errors import OutputError, ReproError
from repro.core.files import MAX_JSON_BYTES, read_bounded, read_model, refuse_crowded
from repro.core.machine import Machine
from repro.record import index as record_index
from repro.record.environment import Environment, commit
from repro.record.ledger import Attempt, read_attempts, read_incidents
from repro.record.results import Result
from repro.record.resume import may_run_again
from repro.record.status import STARTED, meaning
from repro.record.store import MAX_TRIALS, RunFolder
from repro.suite.identity import canonical
from repro.suite.model import Trial
from repro.suite.plan import Plan, make_plan, suite_digest

INCIDENTS = "incidents.jsonl"
BY_CHOICE = ("workload", "batch", "precision")
"""What the hashes of one seed may depend on, besides the seed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was, or cannot have been."""

    place: str
    """File, relative to the run."""
    what: str
    kind: str
    """hash, missing, unlisted, schema, plan, result, ledger, conservation, pairing."""

    def text(self) -> str:
        return f"{self.place}: {self.what}"


@dataclass(slots=True)
class Verified:
    """What was looked at, and what was found."""

    source: str
    identity: str | None = None
    """sha256 of the index; None: the run has none."""
    checked: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems

    def count(self, what: str) -> None:
        self.checked[what] = self.checked.get(what, 0) + 1

    def add(self, place: str, what: str, kind: str) -> None:
        self.problems.append(Problem(place, what, kind))

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, "source": self.source, "sound": self.sound, "identity": self.identity,
                "checked": self.checked, "notes": self.notes,
                "problems": [{"place": item.place, "kind": item.kind, "what": item.what} for item in self.problems]}


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The run folder behind `path`: itself, or a bundle's, unpacked for as long as the context.

    Raises:
        OutputError: there is nothing, or no bundle.
    """
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise OutputError(f"{path}: there is no such run folder or bundle")
    with archive.unpacked(path) as folder:
        yield folder


def verify(path: Path) -> Verified:
    """Check the run folder or bundle at `path`.

    Raises:
        OutputError: there is neither, or a bundle that cannot be unpacked safely.
    """
    with opened(path) as root:
        found = Verified(str(path))
        if not (root / "plan.json").is_file() and not (root / record_index.NAME).is_file():
            raise OutputError(f"{path}: neither a run folder nor a bundle (no plan.json in it)")
        _index(root, found, packed=not path.is_dir())
        _record(root, found)
    return found


def _index(root: Path, found: Verified, packed: bool) -> None:
    """Every file against the index, and the index against every file."""
    present = {item.name: item for item in record_index.members(root)}
    if packed:  # nothing but what was listed belongs in an archive
        present |= {name: record_index.Member(name, root.joinpath(*name.split("/"))) for name in _all(root)}
    for item in present.values():
        if item.refusal:
            found.add(item.name, item.refusal, "schema")
    if not (root / record_index.NAME).exists():
        if packed:
            found.add(record_index.NAME, "is missing: nothing says what the files were", "missing")
        else:
            found.notes.append("no index of hashes: the run has not ended, or is from before there was one; only what "
                               "contradicts itself can show")
        return
    try:
        listed = record_index.read_sums(root / record_index.NAME)
    except OutputError as error:
        found.add(record_index.NAME, _without(root, str(error)), "schema")
        return
    found.identity = record_index.identity(listed)
    for name, digest in listed.items():
        member = present.get(name)
        if member is None:
            found.add(name, "is in the index and not there", "missing")
        elif not member.refusal:
            found.count("hashes of files")
            if record_index.file_sha256(member.path) != digest:
                found.add(name, "was altered: its hash is not the index's", "hash")
    added = present.keys() - listed.keys() - {record_index.NAME}
    if not packed and INCIDENTS in added:  # it can only warn: it takes nothing from the figures
        added -= {INCIDENTS}
        found.notes.append(f"{INCIDENTS} is not in the index, as in runs from before it was part of it: what it says "
                           "cannot be checked")
    for name in added:
        found.add(name, "is there and not in the index: it was added later", "unlisted")
    found.problems.sort(key=lambda item: item.place)


def _all(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


def _record(root: Path, found: Verified) -> None:
    folder = RunFolder(root)
    plan = _model(folder.plan, Plan, root, found)
    environment = _model(folder.environment, Environment, root, found)
    for path in (folder.parity_verdict, folder.launchers, root / crate.NAME):
        if path.exists():
            _json(path, root, found)
    attempts = _ledger(folder, found)
    _incidents(folder, found)
    if plan is None:
        return
    code = f"repro {environment.repro_version} {environment.commit or ''}".strip() if environment else "unknown code"
    _expansion(plan, code, found)
    if not _ordered(plan):
        return  # said by _expansion; there is no telling which trials are meant
    results = [item for trial in plan.trials() if (item := _trial(folder, trial, code, found)) is not None]
    for contradiction in strange_folders(folder, plan):
        found.add(*contradiction)
    if attempts is not None:
        _counted(plan, results, attempts, found)
        for trial in plan.trials():
            for contradiction in unlisted_logs(folder, trial, attempts):
                found.add(*contradiction)
    _pairing(plan, results, found)
    missing = len(plan.order) - len(results)
    if missing:
        found.notes.append(f"{missing} of {len(plan.order)} planned trials have no result that could be read")
    elif again := _begun_again(plan, results, attempts or []):
        found.notes.append(f"{again} of {len(plan.order)} trials failed and were yet to run again when the run ended")
    elif found.identity is None and not (root / record_index.NAME).exists():
        verb = "reproduce SOURCE" if plan.kind == "reproduction" else "run"
        found.add(record_index.NAME, "is missing, though every trial has ended; if the run was killed at its very end, "
                  f"`repro {verb} --resume` makes it", "missing")
    if others := beside(root, (*record_index.TOP, *record_index.BELOW)):
        found.notes.append(f"not part of the record, not checked: {', '.join(ascii(name)[1:-1] for name in others[:8])}"
                           f"{' ...' if len(others) > 8 else ''}")


def _ordered(plan: Plan) -> bool:
    return len(plan.order) <= MAX_TRIALS and all(0 <= index < len(plan.cells) and 0 <= repeat < 1 << 32
                                                 for index, repeat in plan.order)


def _model(path: Path, cls: Any, root: Path, found: Verified) -> Any:
    """A file as its model; None, and a problem, where it is none."""
    place = path.relative_to(root).as_posix()
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        found.add(place, "is missing, or no plain file of a sensible size", "missing")
        return None
    try:
        item = read_model(path, cls)
    except (OutputError, RecursionError) as error:
        found.add(place, _at(place, root, error), "schema")
        return None
    found.count("files by their schema")
    return item


def _json(path: Path, root: Path, found: Verified) -> None:
    place = path.relative_to(root).as_posix()
    try:
        if path.is_symlink():
            raise ValueError("no plain file")
        raw = read_bounded(path)
        refuse_crowded(place, raw)
        if not isinstance(json.loads(raw), dict):
            raise ValueError("no JSON object")
        found.count("files by their schema")
    except (OutputError, OSError, ValueError, RecursionError) as error:
        found.add(place, f"not JSON: {' '.join(str(error).split())[:120]}", "schema")


def _ledger(folder: RunFolder, found: Verified) -> list[Attempt] | None:
    try:
        attempts = read_attempts(folder.ledger)
    except (OutputError, OSError, RecursionError) as error:
        found.add(folder.ledger.name, _at(folder.ledger.name, folder.root, error), "schema")
        return None
    found.count("files by their schema")
    return attempts


def _incidents(folder: RunFolder, found: Verified) -> None:
    """What befell the run: a file only where something did."""
    if not folder.incidents.exists():
        return
    try:
        read_incidents(folder.incidents)
    except (OutputError, OSError, RecursionError) as error:
        found.add(folder.incidents.name, _at(folder.incidents.name, folder.root, error), "schema")
        return
    found.count("files by their schema")


def _expansion(plan: Plan, code: str, found: Verified) -> None:
    """The plan is what its suite expands to: no cell dropped, none changed, the digest its own.

    Args:
        code: version and commit that made the plan. Other code may have other defaults; its plan is then judged by
            itself: complete cells, each with its own name, and the digest over them.
    """
    for cell in plan.cells:
        if not cell.well_named:
            found.add("plan.json", f"cell {cell.cell_id} is not what its name says: its choices give "
                      f"{cell.choices.cell_id}", "plan")
    if not _ordered(plan) or len(set(plan.order)) < len(plan.order):
        found.add("plan.json", "order names a trial twice, or one of no cell, or too many", "plan")
    if plan.has_twins:
        found.notes.append("a calibration: its cells are twins, so its plan is not expanded again")
        return
    try:
        again = make_plan(plan.suite, Machine(plan.device, plan.device_count, plan.cores), overridden=True)
    except (ReproError, ValidationError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        found.add("plan.json", f"its suite cannot be expanded again: {' '.join(str(error).split())[:160]}", "plan")
        return
    found.count("plans expanded again")
    known = {item.cell_id for item in again.cells}
    strange = [cell.cell_id for cell in plan.cells if cell.cell_id not in known]
    lost: list[str] = []
    if again.digest == plan.digest and not strange:
        kept = {cell.cell_id for cell in plan.cells}
        lost = [item.label for item in again.cells if item.cell_id not in kept]
        if plan.kind == "reproduction":
            found.notes.append(f"a reproduction of {len(plan.order)} trials of its suite"
                               + (f"; cells left out: {'; '.join(lost[:8])}" if lost else ""))
    elif plan.digest in _digests(plan):
        found.notes.append("this version of repro expands the suite otherwise (a default has changed since); the "
                           "digest holds for the cells as they are written out")
    elif plan.skipped and code != _code():
        found.notes.append(f"the digest could not be checked: the plan is by {code}, this is {_code()}")
    else:
        found.add("plan.json", f"digest is {plan.digest[:16]}, its suite gives {again.digest[:16]}"
                  + (f"; {len(strange)} cells are none of the suite's: {', '.join(strange[:3])}" if strange else ""),
                  "plan")
    for contradiction in left_out(plan, lost):
        found.add(*contradiction)


def _digests(plan: Plan) -> set[str]:
    """Of the cells as they are written out: with the device that was settled, and with the one that suites leave
    open."""
    open_device = [cell.model_copy(update={"choices": cell.choices.model_copy(update={"device": "auto"})})
                   for cell in plan.cells]
    return {suite_digest(plan.suite, cells) for cells in (plan.cells, open_device)}


def _code() -> str:
    return f"repro {repro.__version__} {commit() or ''}".strip()


def _begun_again(plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt]) -> int:
    """How many trials with a result have not ended: a later attempt has begun, or the suite wants one."""
    latest, failed = Counter[str](), Counter[str]()
    for item in attempts:
        if item.source:  # of another run, in a merged record
            continue
        latest[item.trial_id] = max(latest[item.trial_id], item.attempt)
        failed[item.trial_id] += meaning(item.status).reruns
    return sum(latest[item.trial_id] > item.attempt
               or (meaning(item.status).reruns and may_run_again(plan, failed[item.trial_id])) for item in results)


def _trial(folder: RunFolder, trial: Trial, code: str, found: Verified) -> Result | None:
    """One trial's files: its own description, its result, and its log, which gives that result."""
    directory = folder.trial(trial.trial_id)
    if not directory.exists() or all(path.match(".*.tmp") for path in directory.iterdir()):
        return None  # not begun, or ended before its description was written
    description = _model(folder.trial_file(trial.trial_id), Trial, folder.root, found)
    place = f"trials/{trial.trial_id}"
    if description is not None and canonical(description) != canonical(trial):
        found.add(f"{place}/trial.json", "is another trial than the plan's", "plan")
    if not folder.result(trial.trial_id).exists():
        return None
    result: Result | None = _model(folder.result(trial.trial_id), Result, folder.root, found)
    if result is None:
        return None
    if (result.trial_id, result.cell_id, result.repeat) != (trial.trial_id, trial.cell_id, trial.repeat):
        found.add(f"{place}/result.json", "is the result of another trial", "result")
        return None
    try:
        wrong = differences(trial, result, folder.log(trial.trial_id, result.attempt))
    except OutputError as error:
        log = f"{place}/{folder.log(trial.trial_id, result.attempt).name}"
        found.add(log, _at(log, folder.root, error), "result")
        return result
    found.count("results derived from their log again")
    if wrong:
        _contradicted(place, wrong, code, found)
    for text in unsound(result):
        found.add(f"{place}/result.json", text, "conservation")
    found.count("conservation of time and samples")
    return result


def _contradicted(place: str, wrong: list[str], code: str, found: Verified) -> None:
    """A result and its log say different things: one was altered, or another version of the rules made the result.

    The two cannot be told apart from here, so a figure that does not follow from its log is a problem either way;
    only what warns of something may have come with a later version.
    """
    told = "; ".join(wrong[:3]) + (f"; {len(wrong) - 3} more fields" if len(wrong) > 3 else "")
    if code == _code():
        found.add(f"{place}/result.json", told, "result")
    elif all(text.startswith("warnings") for text in wrong):
        found.notes.append(f"{place}/result.json: {told}; made by {code}, which may have warned of other things")
    else:
        found.add(f"{place}/result.json", f"{told} (altered, or derived by other rules: made by {code})", "result")


def _counted(plan: Plan, results: list[Result], attempts: list[Attempt], found: Verified) -> None:
    """Every result has its line in the ledger, with the same end; nothing in the ledger is of another run."""
    ends = {(item.trial_id, item.attempt): item for item in attempts}
    for result in results:
        line = ends.get((result.trial_id, result.attempt))
        if line is None:
            found.add("ledger.jsonl", f"has no line for attempt {result.attempt} of {result.trial_id}, whose result is "
                      "there", "ledger")
        elif line.status not in (result.status, STARTED):
            found.add("ledger.jsonl", f"{result.trial_id} ended as {line.status!r}, its result says "
                      f"{result.status!r}", "ledger")
    for contradiction in (*skipped_attempts(attempts), *too_soon(plan, attempts)):
        found.add(*contradiction)
    planned = {trial.trial_id for trial in plan.trials()}
    for name in sorted({item.trial_id for item in attempts} - planned):
        found.add("ledger.jsonl", f"names {name[:120]}, which the plan does not", "ledger")
    told = {result.trial_id for result in results}
    for item in attempts:
        if meaning(item.status).logged and item.trial_id in planned - told:
            found.add("ledger.jsonl", f"{item.trial_id} ended as {item.status!r} and has no result", "ledger")
    found.count("ledgers against results")


def _pairing(plan: Plan, results: list[Result], found: Verified) -> None:
    """One seed, one workload, one batch: the same initial weights, order and data, whatever the engine."""
    cells = {plan.trial(cell, 0).cell_id: cell for cell in plan.cells}
    seen: dict[tuple[str, str, int], tuple[str, str]] = {}
    for result in results:
        if not meaning(result.status).reached:
            continue
        data = cells[result.cell_id].choices.model_dump(mode="json", by_alias=True, include=set(BY_CHOICE))
        data["batch"] = data["batch"]["global"]
        kind = json.dumps(data, sort_keys=True)
        for name in PAIRED_HASHES:
            if (value := result.hashes.get(name)) is None:
                continue
            first, where = seen.setdefault((name, kind, result.repeat), (value, result.trial_id))
            found.count("hashes of pairs")
            if first != value:
                found.add(f"trials/{result.trial_id}/result.json", f"{name.replace('_', ' ')} of seed {result.repeat} "
                          f"are not those of {where}: no pair", "pairing")


def _without(root: Path, text: str) -> str:
    """A message without the folder's own place, which for a bundle is gone when it is read."""
    return text.replace(f"{root}/", "")


def _at(place: str, root: Path, error: Exception) -> str:
    """A message about the file `place` without its name, which is said beside it; the line stays."""
    text = _without(root, str(error))
    if text.startswith(f"{place}:") and text[len(place) + 1:len(place) + 2].isdecimal():
        return f"line {text[len(place) + 1:]}"
    return text.removeprefix(f"{place}: ")


def text_of(found: Verified) -> str:
    """For people: what was looked at, what was found, what can still be done."""
    looked = ", ".join(f"{count} {what}" for what, count in found.checked.items()) or "nothing could be checked"
    lines = [f"checked: {looked}"]
    if found.identity:
        lines.append(f"index:   sha256 {found.identity}")
    lines += [f"note: {text}" for text in found.notes]
    if found.sound:
        return "\n".join([*lines, f"{found.source}: sound"])
    lines += [f"{item.kind}: {item.text()}" for item in found.problems]
    count = f"{len(found.problems)} problem{'s' if len(found.problems) != 1 else ''}"
    return "\n".join([*lines, f"{found.source}: NOT as it was, {count}; {_still(found.problems)}"])


def _still(problems: list[Problem]) -> str:
    kinds = {item.kind for item in problems}
    if "plan.json" in {item.place for item in problems}:
        return "without its plan no trial can be judged: ask for the record again"
    trials = sorted({item.place.split("/")[1] for item in problems if item.place.startswith("trials/")})
    if trials and kinds <= {"hash", "missing", "unlisted", "result", "schema", "conservation", "pairing"}:
        return f"trials concerned: {', '.join(trials[:5])}{' ...' if len(trials) > 5 else ''}; the others still hold"
    return "the trials themselves still hold" if not trials else "ask for the record again, or reproduce it"



