"""Suite and Trial: what may be written in a suite, checked and frozen."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from repro.core import registry
from repro.core.errors import UnknownName, nearest
from repro.core.strict_numbers import misplaced
from repro.seams.launching import Launcher
from repro.seams.plugin import Plugin, Setting
from repro.seams.training import Direction, Engine, Optimizer, Workload
from repro.suite.schedule import Constant, Scaling, Schedule

P = TypeVar("P", bound=Plugin)
SUITE_SCHEMA = 1
MARGIN = 0.05
"""Relative difference below which two cells count as the same, where a suite says nothing else."""
METHOD = "1.0"
"""Version of the measuring method (docs/method.md); records compare only within one major.minor."""


class FieldProblem(ValueError):
    """A problem below the field being validated; `path` leads to it."""

    def __init__(self, problem: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(problem)
        self.path = path


def _hurried(schema: Any) -> Any:
    """A core schema whose lists and tuples are left at their first error."""
    if isinstance(schema, dict):
        found = {key: _hurried(value) for key, value in schema.items()}
        return {**found, "fail_fast": True} if schema.get("type") in ("list", "tuple") else found
    return [_hurried(item) for item in schema] if isinstance(schema, list) else schema


class Frozen(BaseModel):
    """Base of all records: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As pydantic's.

        Raises:
            KeyboardInterrupt: a signal came while a serializer of ours ran; pydantic makes an error of its own of it.
        """
        try:
            return super().model_dump(**how)
        except PydanticSerializationError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            raise

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Leave a list at the first value that is wrong: an error for each of a stranger's million fills the memory."""
        return _hurried(handler(source))


class Choice(Frozen):
    """A plug-in by name with its options, complete (defaults filled in)."""

    seam: str = Field(exclude=True)
    kind: str
    plugin: SerializeAsAny[Plugin]

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.plugin.model_dump(mode="json")}

    def get(self, cls: type[P]) -> P:
        """The plug-in, as the kind that its seam promises."""
        assert isinstance(self.plugin, cls), f"{self.seam} {self.kind} is no {cls.__name__}"
        return self.plugin

    @property
    def label(self) -> str:
        """The name, the options that differ from their defaults, and those that are always shown."""
        changed = self.plugin.model_dump(mode="json", exclude_defaults=True)
        changed |= self.plugin.model_dump(mode="json", include=set(self.plugin.always_shown))
        options = ", ".join(f"{key}={_short(value)}" for key, value in sorted(changed.items()))
        return f"{self.kind} ({options})" if options else self.kind


def _short(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict | list) else str(value)


def parse_choice(seam: str, value: Any) -> Any:
    """`ring` or `{kind: ring, ...}` -> a Choice whose plug-in accepted the options."""
    if isinstance(value, Choice):
        return value
    data = {"kind": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        article = "an" if seam[0] in "aeiou" else "a"
        raise FieldProblem(f"must be the name of {article} {seam}, or a mapping with `kind: <name>`")
    options = {str(key): item for key, item in data.items() if key != "kind"}
    try:
        cls = registry.load(seam, data["kind"])
    except UnknownName as error:
        raise FieldProblem(str(error), () if isinstance(value, str) else ("kind",)) from error
    refuse_booleans(cls, options)
    try:
        return Choice.model_construct(seam=seam, kind=data["kind"], plugin=cls.model_validate(options))
    except ValidationError as error:
        problem, path = first_problem(error, cls)
        raise FieldProblem(problem, path) from error


def first_problem(error: ValidationError, model: type[BaseModel]) -> tuple[str, tuple[str | int, ...]]:
    """The first problem of a pydantic error: one sentence, and the path to the field."""
    items = error.errors(include_url=False)
    # A key that is missing because it was misspelt: the misspelling is what to mend.
    misspelt = [item for item in items if item["type"] == "extra_forbidden" and items[0]["type"] == "missing"]
    item = (misspelt or items)[0]
    path = tuple(part for part in item["loc"] if part not in ("constant", "step", "polynomial", "cosine"))
    cause = (item.get("ctx") or {}).get("error")
    if isinstance(cause, FieldProblem):
        return str(cause), (*path, *cause.path)
    if item["type"] == "extra_forbidden":
        return f"unknown key{nearest(str(path[-1]), known_keys(model, item['loc'][:-1]))}", path
    if item["type"] == "missing":
        return "is missing", path
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"kind must be one of {item['ctx'].get('expected_tags', 'constant, step, polynomial, cosine')}", path
    text = str(cause) if cause is not None else item["msg"][0].lower() + item["msg"][1:]
    given = item["input"]
    shown = f" (given: {_short(given)[:60]})" if isinstance(given, str | int | float | bool | list) else ""
    return f"{text}{shown}", path


def known_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """The keys that the model at `path` below `model` accepts; none where no single model stands there."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        tagged = [item for item in models if "kind" in item.model_fields and item.model_fields["kind"].default == part]
        models = tagged or [inner for item in models for inner in _models_at(item, part)]
    return [field.alias or name for name, field in models[0].model_fields.items()] if len(models) == 1 else []


def _models_at(model: type[BaseModel], key: str | int) -> list[type[BaseModel]]:
    """The models that may stand at `key`: one, several where there is a choice, none for plain values."""
    found = [field for name, field in model.model_fields.items() if key in (name, field.alias)]
    types = [item for field in found for item in (field.annotation, *get_args(field.annotation))]
    return [item for item in types if isinstance(item, type) and issubclass(item, BaseModel)]


WorkloadChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "workload"))]
EngineChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "engine"))]
CommChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "comm"))]
PrecisionChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "precision"))]
OptimizerChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "optimizer"))]
LauncherChoice = Annotated[Choice, BeforeValidator(partial(parse_choice, "launcher"))]


class Written(Frozen):
    """Base of what a suite says: numbers are finite, and not yes or no."""

    model_config = ConfigDict(allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        return refuse_booleans(cls, data)


def refuse_booleans(model: type[BaseModel], data: Any) -> Any:
    """`data`, where it says yes or no only to what is a question."""
    if key := misplaced(model, data):
        raise FieldProblem(f"must be a number (given: {str(data[key]).lower()})", (key,))
    return data


class Batch(Written):
    """Samples per optimizer step and how they are cut: global = micro x accumulation x processes."""

    global_: int = Field(alias="global", ge=1, description="samples per optimizer step over all processes")
    accumulation: int = Field(1, ge=1, description="forward and backward passes per optimizer step")
    micro: int | None = Field(None, ge=1, description="samples per process and pass; derived where not given")


class Stop(Written):
    """When a trial ends and what counts as success, declared beforehand."""

    metric: str = Field(description="a metric of the workload")
    target: float = Field(description="the quality to reach")
    max_epochs: float = Field(gt=0, le=1e6, description="budget in passes over the training data")
    confirm_evals: int = Field(1, ge=1, description="consecutive evaluations at or past the target that establish it")
    design: Literal["stop_at_target", "fixed_budget"] = "stop_at_target"
    direction: Direction | None = Field(None, description="filled in from the workload's metric")


class TrialConfig(Written):
    """Everything that defines a cell: what two trials of one cell have in common."""

    workload: WorkloadChoice
    engine: EngineChoice
    processes: int = Field(1, ge=1, le=65536, description="ranks")
    batch: Batch
    optimizer: OptimizerChoice
    stop: Stop
    evaluate_every: int = Field(ge=1, le=1 << 53, description="samples between evaluations, rounded up to whole steps")
    comm: CommChoice = Field("backend", validate_default=True)  # validated to a Choice
    precision: PrecisionChoice = Field("fp32", validate_default=True)
    launcher: LauncherChoice = Field("local", validate_default=True)
    schedule: Schedule = Constant()
    scaling: Scaling = Scaling()
    compression: Literal["none", "fp16", "bf16", "powersgd"] = Field("none", description="what gradients are sent as")
    compression_rank: int = Field(1, ge=1, description="rank of PowerSGD's factors")
    overlap: bool | None = Field(None, description="average gradients during back-propagation (true), or only after it "
                                                   "(false); null: as the engine does it")
    gradient_clip: float | None = Field(None, gt=0, description="largest global L2 norm of the mean gradient")
    determinism: Literal["bitwise", "seeded", "free"] = "seeded"
    warmup_steps: bool = Field(True, description="two steps on made-up data before the clock starts, then undone")
    timeout_seconds: float = Field(3600.0, gt=0, le=1e7, description="longest a trial may take, start to end")
    stall_seconds: float | None = Field(
        None, gt=0, le=1e7,
        description="a trial is ended as hung after so long without an event; longer than its start and than the "
                    "longest way between two evaluations; null: only timeout_seconds",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule_by_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _needed(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("batch"), int):
            return {**data, "batch": {"global": data["batch"]}}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> TrialConfig:
        self._check_metric()
        self._check_batch()
        if self.compression_rank != 1 and self.compression != "powersgd":
            raise FieldProblem(f"only powersgd has a rank, not compression {self.compression}", ("compression_rank",))
        return self

    def _check_metric(self) -> None:
        workload = self.workload.get(Workload)
        if self.stop.metric not in workload.metrics:
            known = nearest(self.stop.metric, workload.metrics)
            raise FieldProblem(f"workload {self.workload.kind!r} has no metric {self.stop.metric!r}{known}",
                               ("stop", "metric"))
        natural = workload.metrics[self.stop.metric]
        low, high = workload.ranges.get(self.stop.metric, (float("-inf"), float("inf")))
        if not low <= self.stop.target <= high:
            share = f"; {self.stop.target:g} % is {self.stop.target / 100:g}" if (low, high) == (0, 1) else ""
            raise FieldProblem(f"{self.stop.metric} lies between {low:g} and {high:g}{share} "
                               f"(given: {self.stop.target:g})", ("stop", "target"))
        if self.stop.direction is None:
            object.__setattr__(self, "stop", self.stop.model_copy(update={"direction": natural}))
        elif self.stop.direction != natural:
            raise FieldProblem(f"{self.stop.metric} is better {natural}", ("stop", "direction"))

    def _check_batch(self) -> None:
        parts = self.processes * self.batch.accumulation
        micro, rest = divmod(self.batch.global_, parts)
        if rest:
            raise FieldProblem(
                f"global batch {self.batch.global_} is not divisible by processes x accumulation = "
                f"{self.processes} x {self.batch.accumulation} = {parts}; "
                f"{max(1, round(self.batch.global_ / parts)) * parts} would be",
                ("batch", "global"),
            )
        if self.batch.micro not in (None, micro):
            raise FieldProblem(
                f"micro {self.batch.micro} x accumulation {self.batch.accumulation} x processes {self.processes} = "
                f"{self.batch.micro * parts if self.batch.micro else 0}, not the global batch {self.batch.global_}",
                ("batch", "micro"),
            )
        object.__setattr__(self, "batch", self.batch.model_copy(update={"micro": micro}))

    @property
    def micro_batch(self) -> int:
        """Samples per process and pass."""
        return self.batch.global_ // (self.processes * self.batch.accumulation)

    @property
    def rate(self) -> float:
        """Full learning rate after the scaling rule."""
        return float(self.optimizer.get(Optimizer).lr * self.scaling.scale(self.batch.global_))

    def setting(self, device: str, device_count: int) -> Setting:
        """These choices as plain words, on a machine with `device_count` devices of kind `device`."""
        return Setting(
            workload=self.workload.kind, engine=self.engine.kind, comm=self.comm.kind,
            precision=self.precision.kind, optimizer=self.optimizer.kind, launcher=self.launcher.kind,
            processes=self.processes, accumulation=self.batch.accumulation, device=device, device_count=device_count,
            compression=self.compression, overlap=self.overlap, determinism=self.determinism,
        )

    @property
    def origin(self) -> str:
        """What figures taken with these choices are: measured, emulated (a launcher's cluster) or simulated."""
        if not self.engine.get(Engine).needs_parts:
            return "simulated"
        return self.launcher.get(Launcher).origin

    def plugins(self) -> tuple[Choice, ...]:
        """Every plug-in chosen."""
        return (self.workload, self.engine, self.comm, self.precision, self.optimizer, self.launcher)

    @property
    def cell_id(self) -> str:
        """Readable slug and 8 hex digits of the canonical JSON."""
        engine = self.engine.kind
        stage = getattr(self.engine.plugin, "stage", None)
        slug = f"{engine}{f'-z{stage}' if stage is not None else ''}-p{self.processes}-b{self.batch.global_}" \
               f"-{self.precision.kind}"
        return f"{re.sub('[^a-z0-9-]+', '-', slug.lower())}-{digest(self)[:8]}"


class Trial(Frozen):
    """One training run: one cell, one seed."""

    suite: str
    suite_digest: str
    method: str = METHOD
    choices: TrialConfig
    repeat: int = Field(ge=0)
    master_seed: int = Field(ge=0)

    @property
    def cell_id(self) -> str:
        return self.choices.cell_id

    @property
    def trial_id(self) -> str:
        """The cell's slug, the repeat and 8 hex digits of the trial's canonical JSON."""
        return f"{self.cell_id[:-9]}-s{self.repeat}-{digest(self)[:8]}"


Metric = Literal["tta_wall", "tta_train", "tta_cold", "samples", "throughput", "accuracy"]
"""What cells are compared by: three clocks to the target, samples to the target, samples a second, final quality."""


class Contrast(Frozen):
    """Two cells, each by the factors that single it out."""

    candidate: dict[str, Any]
    baseline: dict[str, Any]
    metric: Metric = "tta_wall"


class Suite(Frozen):
    """What to compare: a template of a trial, and the factors that vary."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    suite: str = Field(pattern=r"^[a-z][a-z0-9-]{0,63}$", description="the suite's name")
    title: str = ""
    description: str = ""
    source: str = Field("", description="the paper or practice the suite follows")
    expected: str = Field("", description="how long it takes, and where that was seen")
    seeds: int = Field(10, ge=1, le=1000, description="repeats of every cell; 10 for a result, 5 the least")
    master_seed: int = Field(20151102, ge=0, lt=1 << 63)
    trial: dict[str, Any] = Field(description="what all cells share")
    matrix: dict[str, list[Any]] = Field(default_factory=dict, description="factor (dotted path) -> its levels")
    exclude: list[dict[str, Any]] = Field(default_factory=list, description="combinations left out")
    baseline: dict[str, Any] = Field(
        default_factory=dict,
        description="the cell speed-ups are measured against; factors not named are taken equal to the candidate's",
    )
    primary: Contrast | None = Field(None, description="the one contrast declared beforehand")
    on_failure: Literal["continue", "rerun", "resume_from_checkpoint", "stop"] = Field(
        "continue", description="a trial that crashed or hung: stands as it is, runs again at once, goes on from its "
                                "last checkpoint, or ends the run"
    )
    attempts: int = Field(3, ge=1, le=10, description="failed starts of one trial at most, with on_failure: rerun or "
                                                      "resume_from_checkpoint")
    checkpoint_every: int = Field(5, ge=1, le=1_000_000, description="evaluations from one checkpoint to the next, "
                                                                     "with on_failure: resume_from_checkpoint")
    margin: float = Field(MARGIN, gt=0, lt=1, allow_inf_nan=False,
                          description="largest relative difference that still counts as the same, declared beforehand")
    horizon: float | None = Field(
        None, gt=0, allow_inf_nan=False,
        description="up to where runs that missed are compared: seconds, for metric samples a number of samples; null: "
                    "as far as all runs were watched",
    )

    @property
    def keeps_checkpoints(self) -> bool:
        """Trials write checkpoints; what that takes is on their clocks."""
        return self.on_failure == "resume_from_checkpoint"

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        return refuse_booleans(cls, data)

    @field_validator("matrix")
    @classmethod
    def _levels(cls, value: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, levels in value.items():
            if not levels:
                raise FieldProblem("has no levels; leave the factor out or list some", (key,))
        return value


LATER: dict[str, Any] = {"compression": "none", "compression_rank": 1, "overlap": None, "bucket_mib": None,
                         "nccl_algorithm": None, "stall_seconds": None}
"""Choices that came after the first records, with what those records did: named only where something else is chosen,
so that a cell keeps the name it had."""


def canonical(model: BaseModel, exclude: set[str] | None = None) -> str:
    """The one JSON text of a model: keys sorted, no spaces."""
    data = model.model_dump(mode="json", by_alias=True, exclude=exclude)
    choices = data.get("choices", data)
    for place in (choices, choices.get("engine"), choices.get("comm")):
        if isinstance(place, dict):
            for key in [key for key, value in LATER.items() if key in place and place[key] == value]:
                del place[key]
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def digest(model: BaseModel, exclude: set[str] | None = None) -> str:
    """sha256 of the canonical JSON, hex."""
    return hashlib.sha256(canonical(model, exclude).encode()).hexdigest()
