"""What every `--json` prints, as types: their JSON Schemas are what `repro schema COMMAND` prints (docs/json.md)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import NotRequired, TypedDict

from repro.bundle.difference import ExecutionDifference
from repro.bundle.judge import Answer, CellAnswer, Level
from repro.bundle.verify_files import ProblemKind, VerifyAnswer
from repro.cli.text.suite import PoolCost
from repro.compare.design.calibration import Calibration
from repro.compare.design.effect import MainEffect
from repro.compare.design.power import Power
from repro.compare.figures import Claim, Comparison
from repro.compare.verdict.convergence import Convergence
from repro.compare.verdict.summary import Summary
from repro.record.record_schema import DRAFT, AsWritten
from repro.runner.doctor import Diagnosis
from repro.stats.sequential import LookLevel
from repro.suite.planning.cost import Cost
from repro.suite.planning.plan import Plan
from repro.suite.planning.terms import Terms


class Output(TypedDict):
    """An object with these fields and no others."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic reads it


class Figures(Output):
    """Figures of a record, as `compare` and `run` print them."""

    exit_code: int
    calibration: Calibration | None
    cells: list[Summary]
    training: list[dict[str, float]]
    comparisons: list[Comparison]
    claims: list[Claim]
    effects: list[MainEffect]
    warnings: list[str]


class CompareOutput(Figures):
    """`repro compare`: cells, verdicts and what a reader must know of them."""

    schema: Literal[1]
    runs: list[str]
    suite: str
    suite_digest: str
    method: str
    metric: str
    error_budget: str
    convergence: list[Convergence]
    notes: list[str]
    failures: list[str]


class RecordPart(Output):
    """The estimate of one record."""

    name: str
    pairs: int
    ratio: float | None
    left_out: str


class MeanRatio(Output):
    """The mean ratio over a population of records."""

    count: int
    ratio: float
    level: float
    low: float
    high: float
    heterogeneity: float
    heterogeneity_p: float
    between: float
    inconsistent: float
    prediction: list[float] | None


class TogetherContrast(Output):
    """One contrast over all records."""

    contrast: str
    metric: str
    records: list[RecordPart]
    together: MeanRatio | None


class TogetherOutput(Output):
    """`repro compare` of three independent records of one suite or more."""

    schema: Literal[1]
    suite: str
    suite_digest: str
    note: str
    warnings: list[str]
    contrasts: list[TogetherContrast]


class PublishedOutput(Output):
    """`repro compare` of published results."""

    schema: Literal[1]
    origin: Literal["published"]
    exit_code: int
    runs: list[str]
    metric: str
    cells: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    failures: list[str]


class RunOutput(Figures):
    """`repro run`: where the run is, how its trials ended, its verdicts."""

    run: str
    report: str
    mlflow: str | None
    mlflow_problem: str
    mlflow_left: str
    trials: dict[str, int]
    unwritten: NotRequired[str]
    tuning: NotRequired[dict[str, Any]]


class PlanOutput(Plan):
    """`repro plan`: the plan and what it costs."""

    cost: Cost
    out_of_reach: list[str]
    drawn_again_by_run: list[str]
    absent_data: list[str]
    tuning: dict[str, Any] | None = None
    power: Power | None = None
    pool: PoolCost | None = None


class Problem(Output):
    """Something that was modified, is missing, or contradicts the rest of the record."""

    place: str
    kind: ProblemKind
    what: str


class VerifyOutput(Output):
    """`repro verify`."""

    schema: Literal[1]
    source: str
    sound: bool
    answer: VerifyAnswer
    identity: str | None
    missing: list[str]
    checked: dict[str, int]
    notes: list[str]
    emulated: list[str]
    problems: list[Problem]


class MeanOutput(Output):
    """A mean with the standard error of its logarithm."""

    value: float
    error_log: float
    n: int


class ChangeOutput(Output):
    """A change from the record to the new run, with the intervals for a difference and for sameness."""

    ratio: float
    low: float
    high: float
    within_low: float
    within_high: float


class ClaimOutput(Output):
    """One claim of a record, judged by a second execution."""

    candidate: str
    baseline: str | None
    label: str
    metric: str
    answer: Answer
    because: str
    record: MeanOutput | None
    again: MeanOutput | None
    change: ChangeOutput | None
    alone: dict[str, str] | None
    limits: list[str]
    cautions: list[str]


class ReproduceOutput(Output):
    """`repro reproduce`."""

    exit_code: int
    source: str
    identity: str | None
    run: str
    schema: Literal[2]
    answer: Answer
    terms: str
    declared: Terms
    look: LookLevel | None
    claims: list[ClaimOutput]
    cells: list[CellAnswer]
    levels: list[Level]
    differences: list[ExecutionDifference]
    warnings: list[str]


class CalibrateOutput(Output):
    """`repro calibrate`."""

    calibration: Calibration
    added: int
    failures: list[str]
    unfound: str
    path: str
    run: str
    left_out: list[str]


class GateRow(Output):
    """One check of one candidate."""

    candidate: str
    group: str
    check: str
    passed: bool
    step: int | None
    tensor: str | None
    size: float | None
    tolerance: float | None
    text: str


class GateOutput(Output):
    """`repro gate`."""

    rows: list[GateRow]


class DoctorOutput(Output):
    """`repro doctor`."""

    rows: list[Diagnosis]


class ListOutput(Output):
    """`repro list KIND`: name and title of each; runs also have the columns of `repro.listed`."""

    rows: list[dict[str, Any]]


class DataRow(Output):
    """One data set that workloads read."""

    name: str
    title: str
    prepared: bool
    looked_for: str
    folder: str | None
    bytes: int | None
    sha256: str | None
    version: str | None
    target: str | None
    wanted: str | None
    twin: str | None


class DataOutput(Output):
    """`repro data list`."""

    rows: list[DataRow]


class VolumeOutput(Output):
    """`repro volume status`."""

    waiting: int
    in_flight: int
    dead: list[str]


OUTPUTS: Mapping[str, str] = {
    "advise": "repro.papers.advise.workflow:Advised", "audit": "repro.audit.audit:Audit",
    "bench comm": "repro.bench.comm.result:CommOutcome", "bench overhead": "repro.bench.overhead:Overhead",
    "bench turnaround": "repro.bench.trial:BenchOutcome", "bundle": "repro.bundle.contents:Bundle",
    "calibrate": "CalibrateOutput", "compare": "CompareOutput", "compare published": "PublishedOutput",
    "compare together": "TogetherOutput", "data list": "DataOutput",
    "diff": "repro.bundle.difference:RecordDiff", "doctor": "DoctorOutput", "gate": "GateOutput",
    "import": "repro.published.importing:ImportOutput", "list": "ListOutput", "plan": "PlanOutput",
    "predict": "repro.papers.predict.prediction:ScaleModel", "reproduce": "ReproduceOutput", "run": "RunOutput",
    "scores": "repro.scores.runs:Scored", "show": "repro.suite.model:Suite", "verify": "VerifyOutput",
    "volume status": "VolumeOutput",
}
"""Command with `--json` -> its type, in this file or "module:type"."""
OPEN = ("bench comm", "show")
"""Outputs with more fields than their type: figures derived from it, options of plug-ins."""
KINDS = {"ProgramConfig", "MeasurementConfig"}
"""Types of a cell's settings that always state their kind; a training does not, and would fit them too."""


def name_of(output: str) -> str:
    """Return how an output names its schema: `repro:compare`."""
    return f"repro:{output.replace(' ', '-')}"


def output_schema(output: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints."""
    module, _, attribute = OUTPUTS[output].rpartition(":")
    kind = getattr(import_module(module), attribute) if module else globals()[attribute]
    found = TypeAdapter(kind).json_schema(by_alias=True, mode="serialization", schema_generator=AsWritten)
    if output in OPEN:
        found = _opened(found)
    for name in KINDS & found.get("$defs", {}).keys():
        found["$defs"][name].setdefault("required", []).append("kind")
    found["properties"] = {"$schema": {"const": name_of(output)}, **found["properties"]}
    found["required"] = ["$schema", *found.get("required", ())]
    return {"$schema": DRAFT, **found, "title": name_of(output)}


def _opened(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_opened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _opened(item) for key, item in schema.items() if (key, item) != ("additionalProperties", False)}
