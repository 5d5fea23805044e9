"""The run folder: names every file, appends what befalls a run, reads it back as a Record."""

from __future__ import annotations

import errno
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from repro.core.errors import OutputError
from repro.core.files import Model, read_bounded, read_model, refuse_absurd, refuse_crowded
from repro.record.environment import Environment
from repro.record.results import Result
from repro.suite.model import Frozen, Trial
from repro.suite.plan import Cell, Plan

MAX_LINES_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_LINES = 400_000
"""Of a ledger: two for every start."""
MAX_TRIALS = 200_000


class Attempt(Frozen):
    """One start of one trial: a line of the ledger."""

    trial_id: str
    cell_id: str
    repeat: int
    attempt: int
    started_ms: float
    seconds: float
    status: str
    reason: str = ""
    resumed_from: str = ""
    """The checkpoint that it went on from: name and whose; "" for a start from the beginning."""
    passed_over: str = ""
    """Newer checkpoints that it could not go on from, and why."""

    @property
    def known_seconds(self) -> float | None:
        """What it took; None where nobody lived to write its end down."""
        return None if self.status == "started" else self.seconds


class Incident(Frozen):
    """Something that befell a run and that a reader of its figures should know: a line of incidents.jsonl."""

    at_ms: float
    """Wall clock, milliseconds since 1970."""
    kind: str
    """resumed, difference, lock, lost, machine, clock, throttled, energy, rerun, stopped, calibration, checkpoint."""
    text: str
    trial_id: str = ""


class RunFolder:
    """Names of everything in one run's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = root / "plan.json"
        self.suite = root / "suite.yaml"
        self.environment = root / "environment.json"
        self.ledger = root / "ledger.jsonl"
        self.incidents = root / "incidents.jsonl"
        self.launchers = root / "launchers.json"
        self.parity = root / "parity"
        self.parity_verdict = root / "parity.json"
        self.trials = root / "trials"
        self.reports = root / "report"
        self.tracking = root / "tracking.json"

    def trial(self, trial_id: str) -> Path:
        return self.trials / trial_id

    def trial_file(self, trial_id: str) -> Path:
        return self.trial(trial_id) / "trial.json"

    def log(self, trial_id: str, attempt: int) -> Path:
        """Rank 0's events of one attempt."""
        return self.trial(trial_id) / f"result_{attempt}.txt"

    def system_log(self, trial_id: str, attempt: int) -> Path:
        """System metrics of one attempt, sampled by the parent."""
        return self.trial(trial_id) / f"system_{attempt}.txt"

    def checkpoints(self, trial_id: str) -> Path:
        """What a trial may go on from; there until it has ended."""
        return self.trial(trial_id) / "checkpoints"

    def result(self, trial_id: str) -> Path:
        return self.trial(trial_id) / "result.json"

    @classmethod
    def create(cls, root: Path) -> RunFolder:
        """Make a new, empty run folder.

        Raises:
            OutputError: it exists and is not empty, or cannot be written.
        """
        try:
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise OutputError(f"{root}: exists and is not an empty folder; give another --out")
            folder = cls(root)
            folder.trials.mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"{root}: cannot be written: {error.strerror}; give another --out") from error
        return folder

    def append_attempt(self, attempt: Attempt) -> None:
        """One more line in the ledger, durable before this returns.

        Raises:
            OutputError: it cannot be written.
        """
        _append(self.ledger, attempt)

    def append_incident(self, kind: str, text: str, trial_id: str = "") -> None:
        """One more line of what befell this run, durable before this returns.

        Raises:
            OutputError: it cannot be written.
        """
        self.keep_incident(Incident(at_ms=round(time.time() * 1e3), kind=kind, text=text, trial_id=trial_id))

    def keep_incident(self, incident: Incident) -> None:
        """As `append_incident`, for one that has its time.

        Raises:
            OutputError: it cannot be written.
        """
        _append(self.incidents, incident)

    def mend(self) -> None:
        """Take away what a writer that was killed left half done; for the owner of the folder only."""
        for path in (self.ledger, self.incidents):
            _cut_torn_line(path)
        for aside in (*self.root.glob(".*.tmp"), *self.trials.glob("*/.*.tmp")):
            aside.unlink(missing_ok=True)


def _append(path: Path, line: Frozen) -> None:
    """One write of one whole line; where the disk is full, what was written of it is taken back."""
    text = (json.dumps(line.model_dump(mode="json"), sort_keys=True) + "\n").encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(handle).st_size
            try:
                if os.write(handle, text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def _cut_torn_line(path: Path) -> None:
    """Remove a last line without its newline: the next line would otherwise be written onto its end."""
    if not path.is_file():
        return
    raw = path.read_bytes()
    if raw and not raw.endswith(b"\n"):
        os.truncate(path, raw.rfind(b"\n") + 1)


@dataclass(frozen=True, slots=True)
class Record:
    """A run folder, read."""

    folder: RunFolder
    plan: Plan
    environment: Environment
    attempts: tuple[Attempt, ...]
    results: tuple[Result, ...]
    parity: Mapping[str, Any] | None
    preload_seconds: float | None
    """What the launchers' fork server took to load its modules, once a run; on no trial's clock."""
    incidents: tuple[Incident, ...] = ()
    """What befell the run, in order."""

    def of_cell(self, cell_id: str) -> list[Result]:
        """The results of one cell, by repeat."""
        return sorted((item for item in self.results if item.cell_id == cell_id), key=lambda item: item.repeat)

    def cell(self, cell_id: str) -> Cell:
        return next(cell for cell in self.plan.cells if cell.cell_id == cell_id)

    @property
    def started_ms(self) -> dict[str, float]:
        """When the attempt that each result is of began, by trial id, as far as the ledger says."""
        starts = {(item.trial_id, item.attempt): item.started_ms for item in self.attempts}
        return {item.trial_id: starts[item.trial_id, item.attempt] for item in self.results
                if (item.trial_id, item.attempt) in starts}

    def missing(self) -> list[Trial]:
        """Planned trials that have no result yet."""
        done = {result.trial_id for result in self.results}
        return [trial for trial in self.plan.trials() if trial.trial_id not in done]

    def next_attempt(self, trial_id: str) -> int:
        """Number of the next start of a trial: above all that the ledger or a log in its folder knows."""
        known = [item.attempt for item in self.attempts if item.trial_id == trial_id]
        logs = [path.stem.rpartition("_")[2] for path in self.folder.trial(trial_id).glob("result_*.txt")]
        return 1 + max([*known, *(int(number) for number in logs if number.isdecimal())], default=0)


def read_record(root: Path) -> Record:
    """Read a run folder.

    Raises:
        OutputError: `root` is no run folder, or a file in it is damaged.
    """
    folder = RunFolder(root)
    if not folder.plan.is_file():
        raise OutputError(f"{root}: is no run folder (no plan.json in it)")
    plan = read_model(folder.plan, Plan)
    check_plan(folder.plan, plan)
    results = tuple(_read_result(folder, trial) for trial in plan.trials() if folder.result(trial.trial_id).is_file())
    return Record(
        folder=folder,
        plan=plan,
        environment=read_model(folder.environment, Environment),
        attempts=tuple(_of_plan(folder.ledger, plan, read_attempts(folder.ledger))),
        incidents=tuple(read_incidents(folder.incidents)),
        preload_seconds=_preload_seconds(folder.launchers),
        results=results,
        parity=_parity(folder.parity_verdict) if folder.parity_verdict.is_file() else None,
    )


def check_plan(path: Path, plan: Plan) -> None:
    """What everything that reads a record takes for granted of its plan.

    Raises:
        OutputError: it does not hold.
    """
    if not plan.cells or len({cell.cell_id for cell in plan.cells}) < len(plan.cells):
        raise OutputError(f"{path}: cells: names no cell, or one twice")
    if other := next((cell for cell in plan.cells if cell.cell_id != cell.choices.cell_id), None):
        raise OutputError(f"{path}: cells: {other.cell_id[:80]} is not what its name says; its choices give "
                          f"{other.choices.cell_id}")
    if len(plan.order) > MAX_TRIALS:
        raise OutputError(f"{path}: order: more than {MAX_TRIALS:,} trials")
    if len(set(plan.order)) < len(plan.order) or not all(
            0 <= index < len(plan.cells) and 0 <= repeat < 1 << 32 for index, repeat in plan.order):
        raise OutputError(f"{path}: order: names a trial twice, or one of no cell")


def _read_result(folder: RunFolder, trial: Trial) -> Result:
    path = folder.result(trial.trial_id)
    try:
        result = read_model(path, Result)
    except OutputError as error:
        raise OutputError(f"{error}; `repro run --resume {folder.root}` sets it aside and runs this trial again"
                          ) from error
    if (result.trial_id, result.cell_id, result.repeat) != (trial.trial_id, trial.cell_id, trial.repeat):
        raise OutputError(f"{path}: is the result of another trial ({result.trial_id[:80]})")
    return result


def _of_plan(path: Path, plan: Plan, attempts: list[Attempt]) -> list[Attempt]:
    cells = {cell.cell_id for cell in plan.cells}
    if other := next((item for item in attempts if item.cell_id not in cells), None):
        raise OutputError(f"{path}: names a cell that the plan has not: {other.cell_id[:80]}")
    return attempts


class _Alike(Frozen):
    """A finding of the parity gate, as far as readers rely on it."""

    model_config = ConfigDict(extra="ignore")

    group: str
    reference: str
    candidate: str
    problem: str | None
    largest_difference: float


class _Gate(Frozen):
    """The parity gate's file, as far as readers rely on it."""

    model_config = ConfigDict(extra="ignore")

    needed: bool = False
    why: str = ""
    steps: int = Field(0, ge=0, lt=1 << 63)
    tolerance: float = 0.0
    findings: tuple[_Alike, ...] = ()


def _parity(path: Path) -> dict[str, Any]:
    data = _read_json(path)
    try:
        _Gate.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise OutputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return data


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = read_bounded(path)
        refuse_crowded(str(path), raw)
        data = json.loads(raw)
        json.dumps(data, ensure_ascii=False).encode()  # half a character can be read and never be written
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise OutputError(f"{path}: holds no JSON object")
    return data


def _preload_seconds(path: Path) -> float | None:
    value = _read_json(path).get("preload_seconds") if path.is_file() else None
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1e9 else None


def read_attempts(path: Path) -> list[Attempt]:
    """Attempts of a ledger, each by the line that says most.

    Raises:
        OutputError: a line that is none.
    """
    # Every attempt has a line when it starts and one when it ends; the later one says more.
    return list({(found.trial_id, found.attempt): found for found in _read_lines(path, Attempt)}.values())


def read_incidents(path: Path) -> list[Incident]:
    """What befell a run, in order.

    Raises:
        OutputError: a line that is none.
    """
    return _read_lines(path, Incident)


def _read_lines(path: Path, cls: type[Model]) -> list[Model]:
    """One model a line."""
    if not path.is_file():
        return []
    # A last line without its newline was being written when the run ended; it says nothing yet.
    complete, _, _ = read_bounded(path, MAX_LINES_BYTES).rpartition(b"\n")
    found: list[Model] = []
    for number, line in enumerate(io.BytesIO(complete), 1):  # not all lines at once: there may be millions, empty
        if number > MAX_LINES:
            raise OutputError(f"{path}:{number}: more lines than any run writes")
        if len(line) > MAX_LINE_BYTES:
            raise OutputError(f"{path}:{number}: a line longer than any run writes")
        try:
            found.append(cls.model_validate_json(line))
            refuse_absurd(f"{path}:{number}", line)
        except ValidationError as error:
            what = "ledger line" if cls is Attempt else f"line of {path.name}"
            raise OutputError(f"{path}:{number}: not a {what}: "
                              f"{error.errors(include_input=False)[0]['msg']}") from error
    return found
