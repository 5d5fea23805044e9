"""`--map mapping.yaml`: the meaning of the metrics, parameters and tags of an MLflow experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from repro.core.errors import SuiteError
from repro.core.frozen import Frozen
from repro.core.yaml_file import dotted, read_yaml
from repro.suite.field_problem import FieldProblem, describe_error

PLACES = ("metrics", "params", "tags")


class Given(Frozen):
    """A value that the mapping states for every run."""

    value: str | int | float


def _place(text: str) -> str:
    place, dot, name = text.partition(".")
    if place not in PLACES or not dot or not name:
        raise FieldProblem(f"must be metrics.NAME, params.NAME or tags.NAME, or {{value: ...}} (given: {text!r})")
    return text


Source = Annotated[str, AfterValidator(_place)]
Where = Source | Given
"""The source of a value of a run: `metrics.NAME`, `params.NAME`, `tags.NAME`, or the value itself: `{value: ...}`."""


class Hyperparameters(Frozen):
    """The hyper-parameters of FireCaffe's second practice."""

    initialisation: Where | None = None
    optimizer: Where | None = None
    momentum: Where | None = None
    weight_decay: Where | None = None
    learning_rate: Where | None = None
    schedule: Where | None = None
    batch_per_worker: Where | None = None
    epochs: Where | None = None


class Data(Frozen):
    """The data set."""

    name: Where
    version: Where | None = None
    digest: Where | None = Field(None, description="over the full content")
    train_samples: Where | None = None
    eval_samples: Where | None = None
    licence: Where | None = None
    source: Where | None = None
    synthetic: bool = False


class Target(Frozen):
    """The condition for a run to have reached its target."""

    value: float
    direction: Literal["higher", "lower"] = "higher"
    metric: str = "accuracy"


class Stated(Frozen):
    """Statements that no run can show; findings that rely on them say "stated"."""

    costs: Literal["arithmetic mean", "harmonic mean", "geometric mean", "median"] | None = None
    rates: Literal["arithmetic mean", "harmonic mean", "geometric mean", "median"] | None = None
    ratios: Literal["arithmetic mean", "harmonic mean", "geometric mean", "median"] | None = None
    declared: bool | None = Field(None, description="whether the contrast was declared before the runs")
    models: int | None = Field(None, ge=1, description="models whose answers are combined in one figure")
    test_augmentation: bool | None = None
    reproduced: bool | None = Field(None, description="whether another team obtained the results")


class Mapping(Frozen):
    """The meaning of an experiment's names; only `cell` and `time` are required."""

    cell: tuple[Source, ...] = Field(min_length=1, description="runs that agree in these are repeats of one cell")
    time: Where = Field(description="seconds to the target")
    filter: str = Field("", description="MLflow's filter string; runs that do not match are excluded")
    seed: Where | None = None
    accuracy: Where | None = None
    target: Target | None = None
    epochs: Where | None = Field(None, description="passes over the data up to the target")
    throughput: Where | None = Field(None, description="samples a second")
    workers: Where | None = None
    global_batch: Where | None = None
    model: Where | None = None
    determinism: Where | None = None
    bandwidth: Where | None = Field(None, description="bits a second of the slowest link")
    hardware: Where | None = None
    interconnect: Where | None = None
    system: Where | None = None
    software: tuple[Where, ...] = ()
    commit: Where | None = None
    repeats: int | None = Field(None, ge=1, description="runs of every cell, fixed beforehand")
    baseline: tuple[str, ...] | None = Field(None, description="the values of `cell` that the base case has")
    hyperparameters: Hyperparameters = Hyperparameters()
    data: Data | None = None
    stated: Stated = Stated()


def read_mapping(path: Path) -> Mapping:
    """Read a mapping.

    Raises:
        SuiteError: the file cannot be read, is not YAML, or is no valid mapping (file, line, field).
    """
    found = read_yaml(path)
    data: Any = found.data
    if not isinstance(data, dict):
        raise SuiteError("not a mapping: must have keys such as `cell` and `time`", file=str(path), line=1)
    if isinstance(data.get("cell"), str):
        data = {**data, "cell": [data["cell"]]}
    if isinstance(data.get("baseline"), list):
        data = {**data, "baseline": [str(item) for item in data["baseline"]]}
    elif isinstance(data.get("baseline"), str | int | float):
        data = {**data, "baseline": [str(data["baseline"])]}
    try:
        mapping = Mapping.model_validate(data)
    except ValidationError as error:
        text, where = describe_error(error, Mapping)
        place = tuple(part for part in where if not str(part).startswith(("function-after", "Given")))
        raise SuiteError(text, file=str(path), line=found.line(place), field=dotted(place)) from error
    if mapping.baseline is not None and len(mapping.baseline) != len(mapping.cell):
        raise SuiteError(f"has {len(mapping.baseline)} values for the {len(mapping.cell)} of `cell`", file=str(path),
                         line=found.line(("baseline",)), field="baseline")
    return mapping
