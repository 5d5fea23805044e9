"""Record -> the runs of a tracking store: one per cell, one per attempt below it. No server is contacted here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from repro.compare import Comparison
from repro.compare.design.calibration import FILE as CALIBRATION
from repro.compare.findings import findings
from repro.core import pattern
from repro.core.events import follow
from repro.record.environment.environment import DataSet
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import STARTED, meaning
from repro.seams.training import Workload
from repro.suite.choice import Choice
from repro.suite.kinds.kinds import AnyTrialConfig
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell
from repro.tables import tables

from .. import markdown as markdown_page
from ..page.cells import marks
from ..page.document import template
from ..paper.brief import brief
from ..table_files import csv_text
from .metric_points import cell_metrics, levels
from .notes import NOTE, Links, cell_note, trial_note

NOT_A_KEY = r"[^\w\-. :/]"
"""Characters that MLflow accepts in no name."""
LABEL = "Cell"
"""Parameter with the full name of a cell. MLflow's comparison sorts names, capitals first, and draws the first ones:
this one identifies the runs, and the list of runs can be grouped by it."""
ALWAYS = ("kind", "processes", "device", "workload", "engine", "optimizer", "precision")
"""Settings that are parameters also with their default; of a plug-in, its name."""
CODE_DIGITS = 12
"""Digits of the hash of a class from a file that its parameter has."""
UNLINKED = Links()
PARAM_LIMIT, TAG_LIMIT, KEY_LIMIT = 6000, 8000, 250
QUIET_SECONDS = 60.0
"""A running trial writes to its folder every second; after this many seconds without a change it counts as ended."""


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as a tracking store should show it."""

    key: str
    start_ms: int
    tags: dict[str, str]
    params: dict[str, str]
    data: tuple[DataSet, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    """Artifact path -> file; missing files are omitted."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Artifact path -> content, for artifacts that are not files of the record."""
    status: str = "RUNNING"
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptRun:
    """One attempt of one trial, running or ended."""

    trial: Trial
    attempt: int
    log: Path
    system_log: Path
    entry: Attempt | None
    result: Result | None

    @property
    def key(self) -> str:
        return f"trial:{self.trial.trial_id}/{self.attempt}"

    @property
    def ended(self) -> bool:
        """True if the ledger has more than the line from before the launch."""
        return self.result is not None or (self.entry is not None and self.entry.status != STARTED)

    @property
    def status(self) -> str:
        if self.result is not None:
            return self.result.status
        return self.entry.status if self.entry and self.ended else "running"

    @property
    def reason(self) -> str:
        """Why it ended without reaching its target; "" if it did, or runs."""
        if self.result:
            return self.result.reason
        return self.entry.reason if self.entry and self.ended else ""

    def span_ms(self) -> tuple[int, int] | None:
        """Return start and end from the log, so that points and run share a clock; None if both are unknown."""
        first = last = None
        stopped = False
        for event, _ in follow(self.log):
            if event is not None:
                first, last, stopped = first or event, event, stopped or event.key == "run_stop"
        if first is None or last is None:
            entry = self.entry
            return (round(entry.started_ms), round(entry.started_ms + entry.seconds * 1e3)) if entry else None
        start, end = first.time_ms, last.time_ms
        if self.entry and not stopped:
            end = max(end, start + self.entry.seconds * 1e3)
        return round(start), round(end)


def attempt_runs(record: Record) -> dict[str, list[AttemptRun]]:
    """Return all attempts that have started, by cell."""
    entries = {(entry.trial_id, entry.attempt): entry for entry in record.attempts}
    results = {result.trial_id: result for result in record.results}
    found: dict[str, list[AttemptRun]] = {}
    for trial in record.plan.trials():
        name, folder = trial.trial_id, record.folder
        numbers = {number for number, _ in folder.logs(name)}
        numbers |= {attempt for trial_id, attempt in entries if trial_id == name}
        result = results.get(name)
        for number in sorted(numbers):
            found.setdefault(trial.cell_id, []).append(AttemptRun(
                trial, number, folder.log(name, number), folder.system_log(name, number),
                entries.get((name, number)), result if result and result.attempt == number else None,
            ))
    return found


def is_alive(record: Record) -> bool:
    """Return True if a process still writes to the folder."""
    paths = [record.folder.environment, record.folder.ledger, *record.folder.trials.glob("*/*")]
    latest = max((path.stat().st_mtime for path in paths if path.is_file()), default=0.0)
    return time.time() - latest < QUIET_SECONDS


def trial_view(
    record: Record, run: str, cell: Cell, course: AttemptRun, span: tuple[int, int], alive: bool,
    links: Links = UNLINKED,
) -> RunView:
    """Return the run of one attempt; its name begins with the seed, which the table of runs shows below the cell."""
    trial, status = course.trial, course.status
    lane = {"lane": " + ".join(course.entry.nodes)} if course.entry and course.entry.shard else {}
    params, long = flat_params(cell, {"repeat": trial.repeat, "master_seed": trial.master_seed,
                                      "device": trial.choices.device, **lane})
    running = not course.ended and alive
    files = {} if running else _trial_files(record, course)
    seed = f"seed {trial.repeat}" if course.attempt == 1 else f"seed {trial.repeat}, attempt {course.attempt}"
    note = trial_note(record, cell, course.result, course.reason, links)
    tags = common_tags(record, run, course.key, "trial", cell) | {
        "mlflow.runName": f"{seed}: {cell.label}", "repro.trial": trial.trial_id, "repro.attempt": str(course.attempt),
        "repro.status": status if course.ended or running else "killed", **_result_tags(course), **_listed(files),
        **({"repro.shard": course.entry.shard} if course.entry and course.entry.shard else {}),
    } | ({NOTE: note} if note else {})
    ended = "KILLED" if not course.ended else "FAILED" if meaning(status).failed else "FINISHED"
    return RunView(
        key=course.key, start_ms=span[0], tags=_cut(tags), params=params, data=data_of(record, trial.choices),
        files=files, texts=long, status="RUNNING" if running else ended,
        end_ms=None if running else span[1],
    )


def _result_tags(course: AttemptRun) -> dict[str, str]:
    """Return what a trial ended with; what was read back is one tag a kind, in JSON."""
    found = {"hashes": course.result.hashes, "effective": course.result.effective} if course.result else {}
    return ({"repro.reason": course.reason} if course.reason else {}) | {
        f"repro.{name}": json.dumps(values, sort_keys=True) for name, values in found.items() if values}


def _listed(files: Mapping[str, Path]) -> dict[str, str]:
    """List the files of a run in a tag, so that `rebuild` notices files that a store lost."""
    names = sorted(name for name, path in files.items() if path.is_file())
    return {"repro.files": ", ".join(names)} if names else {}


def _trial_files(record: Record, course: AttemptRun) -> dict[str, Path]:
    folder, name = record.folder, course.trial.trial_id
    paths = [course.log, course.system_log, folder.trial_file(name), *sorted(folder.trial(name).glob("rank*.log"))]
    if course.result is not None:
        paths.append(folder.result(name))
    return {path.name: path for path in paths}


def cell_view(
    record: Record, run: str, cell: Cell, spans: Sequence[tuple[int, int]], comparisons: Sequence[Comparison],
    alive: bool, report: bool, links: Links = UNLINKED,
) -> RunView:
    """Return the run of one cell; its name begins with the number that the cell has on the page.

    Args:
        spans: start and end of each of its attempts.
        comparisons: those in which it is the candidate, the most important first.
        report: True if this run carries the report, which can have megabytes.
    """
    folder, (params, texts) = record.folder, flat_params(cell, {"device": cell.choices.device})
    results = record.of_cell(cell.cell_id)
    summaries = [findings(record).summary(cell.cell_id, metric) for metric in cell_metrics(record)] if results else []
    note = cell_note(record, cell, next(iter(summaries), None), comparisons, links)
    tags = common_tags(record, run, cell_key(cell), "cell", cell) | {"mlflow.runName": _cell_name(record, cell)}
    tags |= _verdict_tags(comparisons) | _claim_tags(record, cell) | ({NOTE: note} if note else {})
    tags |= {f"repro.factor.{re.sub(NOT_A_KEY, '_', key)}": value for key, value in cell.factors.items()}
    paths = [folder.plan, folder.environment, folder.ledger, folder.suite, folder.parity_verdict, folder.launchers,
             folder.nodes, folder.lanes, folder.incidents, folder.looks, folder.root / CALIBRATION]
    files = {path.name: path for path in paths}
    tags |= _listed(files)
    files |= {"report.html": folder.reports / "report.html"} if report else {}
    coverage = levels(summaries, comparisons)
    tags |= {"repro.intervals": json.dumps(coverage, sort_keys=True)} if coverage else {}
    over = len(results) == record.due_of(cell.cell_id)
    failed = any(meaning(item.status).failed for item in results)
    ended = "KILLED" if not over else "FAILED" if failed else "FINISHED"
    running = alive and not over
    return RunView(
        key=cell_key(cell), start_ms=min(start for start, _ in spans), tags=_cut(tags), params=params,
        data=data_of(record, cell.choices), files=files, texts=texts | (_tables(record) if report else {}),
        status="RUNNING" if running else ended, end_ms=None if running else max(end for _, end in spans),
    )


def _cell_name(record: Record, cell: Cell) -> str:
    """Return `3: ddp, 2 processes`; numbers of one width, so that names sort in the order of the plan."""
    number = marks(record)[cell.cell_id].number
    width = len(str(len(record.plan.cells)))
    return f"{'tuning ' if record.plan.kind == 'tuning' else ''}{number:0{width}}: {cell.label}"


def _tables(record: Record) -> dict[str, str]:
    """Return name -> text of the most useful tables; none before all trials have run."""
    if record.missing():
        return {}
    found = {f"{table.name}.csv": csv_text(table) for table in tables.tables(record)
             if table.name in ("cells", "main_effects", "interactions", "comparisons", "pairs", "trials", "warnings")}
    return found | {"report.md": markdown_page.render(brief(record))}


def cell_key(cell: Cell) -> str:
    return f"cell:{cell.cell_id}"


def _verdict_tags(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return what runs can be filtered by; reasons and cautions are in the description."""
    if not comparisons:
        return {}
    first = comparisons[0]
    about = {"repro.verdict.unit": first.by_node.unit, "repro.lanes": str(len(first.by_node.nodes))} \
        if first.by_node else {}
    return {"repro.verdict": first.spoken, "repro.baseline": first.baseline,
            "repro.primary": str(first.primary).lower(), "repro.metric": first.metric, **about}


def _claim_tags(record: Record, cell: Cell) -> dict[str, str]:
    """Return the claim of a contest about this cell; none of any other design."""
    claim = next((item for item in findings(record).claims if item.cell_id == cell.cell_id), None)
    if claim is None:
        return {}
    figures = {"mean": claim.mean, "deviation": claim.deviation, "p": claim.p, "alpha": claim.alpha}
    return {
        "repro.claim": claim.verdict, "repro.claim.n": f"{claim.n} of {claim.declared}",
        **{f"repro.claim.{name}": f"{value:.9g}" for name, value in figures.items() if value is not None}}


def common_tags(record: Record, run: str, key: str, level: str, cell: Cell) -> dict[str, str]:
    """Return the tags of every run of a record; `repro.run` and `repro.key` identify it."""
    environment = record.environment
    tags = {
        "repro.run": run, "repro.key": key, "repro.level": level,
        "repro.suite_digest": record.plan.digest, "repro.cell": cell.cell_id, "repro.method": record.plan.method,
        "repro.version": environment.repro_version, "mlflow.source.name": "repro",
        "repro.label": record.origin_of(cell), "mlflow.runColor": _palette()[f"--c{marks(record)[cell.cell_id].color}"],
    }
    data = data_of(record, cell.choices)
    if data:
        tags["repro.data"] = "synthetic" if data[0].synthetic else "real"
    if record.plan.kind == "tuning":
        tags["repro.kind"] = "tuning"
    if environment.commit:
        tags["mlflow.source.git.commit"] = environment.commit
    return tags


@cache
def _palette() -> dict[str, str]:
    """Return the light colours of the page by name."""
    light = template("report.css").partition("}")[0]
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{3,8})", light))


def data_of(record: Record, choices: AnyTrialConfig) -> tuple[DataSet, ...]:
    return tuple(item for item in record.environment.data if item.workload == choices.task)


def flat_params(cell: Cell, more: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (parameters by dotted name, artifacts); params.json has the full values if MLflow's limit cuts any.

    A setting that has its default or follows from others is no parameter, so that the few that matter are seen;
    plan.json of the cell's run has all of them. What the suite varies is always a parameter; of a plug-in that varies,
    `engine` has name and options, and there is no `engine.kind`.
    """
    derived = {*_derived(cell.choices), *(f"{key}.kind" for key in cell.factors)} - cell.factors.keys()
    flat = {key: value for key, value in pattern.flat(_stated(cell.choices)).items() if key not in derived} | dict(more)
    named = {LABEL: cell.label} | cell.factors | flat
    full = {re.sub(NOT_A_KEY, "_", key): _text(value) for key, value in named.items()}
    cut = {key[:KEY_LIMIT]: _shorter(value, PARAM_LIMIT) for key, value in full.items()}
    return cut, {} if cut == full else {"params.json": json.dumps(full, indent=1, sort_keys=True) + "\n"}


def _derived(choices: AnyTrialConfig) -> Iterator[str]:
    """Yield the settings that other settings of the trial give."""
    if not isinstance(choices, TrainingConfig):
        return
    if choices.batch.micro == choices.micro_batch:
        yield "batch.micro"
    direction = choices.stop.direction
    if direction and choices.workload.get(Workload).metrics.get(choices.stop.metric) == direction:
        yield "stop.direction"


def _stated(model: BaseModel) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    whole = model.model_dump(mode="json", by_alias=True)
    found: dict[str, Any] = {}
    for name, field_ in type(model).model_fields.items():
        key, value = field_.serialization_alias or field_.alias or name, getattr(model, name)
        if key not in whole:
            continue
        default = field_.get_default(call_default_factory=True)
        if isinstance(value, Choice):
            changed = value.changed
            if key in ALWAYS or changed or value.code or value.kind != default:
                code = {"code": value.code[:CODE_DIGITS]} if value.code else {}
                found[key] = {"kind": value.kind} | code | changed
        elif value == default and key not in ALWAYS:
            continue
        elif isinstance(value, BaseModel):
            found |= {key: stated} if (stated := _stated(value)) else {}
        else:
            found[key] = whole[key]
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, sort_keys=True)


def _cut(tags: Mapping[str, str]) -> dict[str, str]:
    return {key[:KEY_LIMIT]: _shorter(value, TAG_LIMIT) for key, value in tags.items()}


def _shorter(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit - 3]}..."
