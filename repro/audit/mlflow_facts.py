"""Facts of an MLflow experiment: its runs, read through MLflow's own client, by a mapping of what its names mean."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

from repro.audit.mapping import Given, Where
from repro.audit.mapping import Mapping as Meaning
from repro.audit.rules.facts import CellFacts, DataFacts, Facts, RunFacts
from repro.audit.rules.rule import join
from repro.core.errors import UsageError, nearest
from repro.core.redact import redacted
from repro.runner.tracking_store import PAGE, configure_mlflow, database, search, translated

MAX_RUNS = 10_000
TIMEOUT_SECONDS = 10.0
FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One logged run of an experiment."""

    run_id: str
    status: str
    metrics: dict[str, float]
    """Latest value by name."""
    params: dict[str, str]
    tags: dict[str, str]
    history: tuple[float, ...] | None = None
    """Every value of the one requested metric, by step."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The runs that a store holds under one name."""

    name: str
    runs: tuple[LoggedRun, ...]
    deleted: int
    """Number of runs that are deleted but still in the store."""


def read_experiment(name: str, filter_string: str = "", history: str | None = None) -> Experiment:
    """Read every run of an experiment, in the order of their start.

    Args:
        filter_string: MLflow's; runs that do not match are excluded.
        history: a metric of which to read every value.

    Raises:
        UsageError: no such experiment, an invalid filter, or too many runs.
        TrackingError: the store does not answer.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    configure_mlflow(TIMEOUT_SECONDS)
    with translated(uri):
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import ViewType

        uri = uri or get_tracking_uri()
        if (path := database(uri)) is not None and not path.is_file():  # MLflow would create it; an audit never writes
            raise UsageError(f"{path}: no such MLflow store; correct MLFLOW_TRACKING_URI")
        client: Any = MlflowClient(uri)
        found = client.get_experiment_by_name(name)
        if found is None:
            known = [item.name for item in client.search_experiments(max_results=PAGE)]
            raise UsageError(f"{redacted(uri)}: no experiment {name!r}{nearest(name, known)}")
        active = _found(client, found.experiment_id, filter_string, ViewType.ACTIVE_ONLY)
        deleted = _found(client, found.experiment_id, filter_string, ViewType.DELETED_ONLY)
        runs = tuple(_logged(client, item, history) for item in active)
    return Experiment(name, runs, len(deleted))


def _found(client: Any, experiment: str, wanted: str, view: int) -> list[Any]:
    from mlflow.exceptions import MlflowException

    try:
        found = list(islice(search(client, experiment, wanted, "ASC", view), MAX_RUNS + 1))
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        raise UsageError(" ".join(str(error).split())[:200]) from None
    if len(found) > MAX_RUNS:
        raise UsageError(f"more than {MAX_RUNS} runs; select some of them with `filter` in the mapping")
    return found


def _logged(client: Any, run: Any, history: str | None) -> LoggedRun:
    values: tuple[float, ...] | None = None
    if history is not None and history in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, history)
        values = tuple(float(item.value) for item in sorted(points, key=lambda item: (item.step, item.timestamp)))
    return LoggedRun(
        run_id=run.info.run_id, status=run.info.status, metrics=dict(run.data.metrics), params=dict(run.data.params),
        tags=dict(run.data.tags), history=values,
    )


COMMIT = "tags.mlflow.source.git.commit"
"""The tag in which MLflow records the commit."""
PARENT = "mlflow.parentRunId"
"""The tag by which MLflow nests runs."""


def experiment_facts(found: Experiment, meaning: Meaning) -> Facts:
    """Return the facts of an experiment.

    Raises:
        UsageError: no run, a run without a value that `cell` names, a baseline without a cell, or text instead of a
            number.
    """
    runs = _repeats(found.runs, meaning)
    if not runs:
        raise UsageError(f"experiment {found.name!r}: no run" + (" matches `filter`" if meaning.filter else ""))
    groups: dict[tuple[str, ...], list[LoggedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(_needed(run, source) for source in meaning.cell), []).append(run)
    cells = tuple(_cell(key, runs, meaning) for key, runs in groups.items())
    stated = meaning.stated
    means = {what: how for what in ("costs", "rates", "ratios") if (how := getattr(stated, what)) is not None}
    commits = _all(runs, meaning.commit or COMMIT)
    return Facts(
        origin="mlflow", title=found.name, cells=cells, contrasts=_contrasts(groups, meaning),
        declared=stated.declared, data=_data(runs, meaning), hardware=_join(runs, meaning.hardware),
        interconnect=_join(runs, meaning.interconnect),
        software=tuple(text for where in meaning.software if (text := _join(runs, where))),
        system=_join(runs, meaning.system), commit=commits[0] if len(commits) == 1 else None,
        varied=tuple(_name(source) for source in meaning.cell), deleted=found.deleted, means=means or None,
        models=stated.models, augmented=stated.test_augmentation, reproduced=stated.reproduced,
    )


def _repeats(runs: Sequence[LoggedRun], meaning: Meaning) -> list[LoggedRun]:
    """Drop the parents of nested runs that finished without a time: they only group other runs."""
    heads = {run.tags.get(PARENT) for run in runs}
    return [run for run in runs
            if run.run_id not in heads or run.status != FINISHED or _number(run, meaning.time) is not None]


def _cell(key: tuple[str, ...], runs: Sequence[LoggedRun], meaning: Meaning) -> CellFacts:
    facts = tuple(_run(run, meaning) for run in runs)
    times = [run.seconds for run in facts if run.reached and run.seconds is not None]
    separate = [where for where in (meaning.workers, meaning.global_batch) if isinstance(where, str)]
    others = {source: value for source, value in zip(meaning.cell, key, strict=True) if source not in separate}
    target = meaning.target
    return CellFacts(
        cell_id=json.dumps(key), label=", ".join(f"{_name(source)} {value}" for source, value in
                                               zip(meaning.cell, key, strict=True)),
        runs=facts, workers=_count(runs, meaning.workers), global_batch=_count(runs, meaning.global_batch),
        model=_join(runs, meaning.model), others=json.dumps(others, sort_keys=True),
        target=None if target is None else f"{target.metric} {'<=' if target.direction == 'lower' else '>='} "
                                           f"{target.value:g}",
        hyperparameters=_hyperparameters(runs, meaning), determinism=_join(runs, meaning.determinism),
        planned=meaning.repeats, median=median(times) if times and len(times) == len(facts) else None,
        bandwidth=_least(runs, meaning.bandwidth),
    )


def _run(run: LoggedRun, meaning: Meaning) -> RunFacts:
    seconds, quality = _number(run, meaning.time), _quality(run, meaning)
    return RunFacts(
        name=run.run_id, reached=_reached(run, seconds, quality, meaning), seconds=seconds,
        epochs=_number(run, meaning.epochs), quality=quality, throughput=_number(run, meaning.throughput),
        seed=_text(run, meaning.seed), points=len(run.history) if run.history is not None else None,
    )


def _quality(run: LoggedRun, meaning: Meaning) -> float | None:
    """Return the best of all values if the history is known, else the latest."""
    values = [value for value in run.history or () if math.isfinite(value)]
    if not values:
        return _number(run, meaning.accuracy)
    lower = meaning.target is not None and meaning.target.direction == "lower"
    return min(values) if lower else max(values)


def _reached(run: LoggedRun, seconds: float | None, quality: float | None, meaning: Meaning) -> bool | None:
    """Return whether a run reached its target: it has a time, and its accuracy does not contradict. None: not finished.
    """
    if run.status != FINISHED:
        return None
    if meaning.target is not None and quality is not None:
        beyond = quality - meaning.target.value
        if (beyond > 0) if meaning.target.direction == "lower" else (beyond < 0):
            return False
    return seconds is not None


def _contrasts(groups: Mapping[tuple[str, ...], object], meaning: Meaning) -> tuple[tuple[str, str], ...] | None:
    if meaning.baseline is None:
        return None
    if meaning.baseline not in groups:
        known = join(", ".join(key) for key in groups)
        raise UsageError(f"baseline: no cell has {', '.join(meaning.baseline)}; cells: {known}")
    return tuple((json.dumps(key), json.dumps(meaning.baseline)) for key in groups if key != meaning.baseline)


def _hyperparameters(runs: Sequence[LoggedRun], meaning: Meaning) -> dict[str, str]:
    places: dict[str, Where | None] = {name.replace("_", " "): getattr(meaning.hyperparameters, name)
                                       for name in type(meaning.hyperparameters).model_fields}
    places["global batch"] = meaning.global_batch
    if meaning.epochs is not None:
        places["epochs"] = places["epochs"] or meaning.epochs
    return {name: text for name, where in places.items() if (text := _join(runs, where)) is not None}


def _data(runs: Sequence[LoggedRun], meaning: Meaning) -> tuple[DataFacts, ...] | None:
    data = meaning.data
    if data is None:
        return None
    return tuple(dict.fromkeys(DataFacts(
        name=_text(run, data.name) or "a data set without a name", version=_text(run, data.version),
        digest=_text(run, data.digest), train_samples=_whole(run, data.train_samples),
        eval_samples=_whole(run, data.eval_samples), licence=_text(run, data.licence),
        source=_text(run, data.source), synthetic=data.synthetic,
    ) for run in runs))


def _text(run: LoggedRun, where: Where | None) -> str | None:
    if where is None:
        return None
    if isinstance(where, Given):
        return str(where.value)
    place, _, name = where.partition(".")
    values: Mapping[str, object] = getattr(run, place)
    value = values.get(name)
    return f"{value:g}" if isinstance(value, float) else None if value is None else str(value) or None


def _number(run: LoggedRun, where: Where | None) -> float | None:
    """Return a finite number, or None."""
    if isinstance(where, str) and where.startswith("metrics."):
        value = run.metrics.get(where.partition(".")[2])
        return value if value is not None and math.isfinite(value) else None
    text = _text(run, where)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        raise UsageError(f"run {run.run_id}: {where} is {text[:60]!r}; the mapping requires a number") from None
    return found if math.isfinite(found) else None


def _whole(run: LoggedRun, where: Where | None) -> int | None:
    value = _number(run, where)
    return None if value is None else int(value)


def _all(runs: Iterable[LoggedRun], where: Where | None) -> list[str]:
    """Return the distinct values in the order of the runs; [] if a run has none."""
    found = [_text(run, where) for run in runs]
    return list(dict.fromkeys(text for text in found if text is not None)) if None not in found else []


def _join(runs: Sequence[LoggedRun], where: Where | None) -> str | None:
    values = _all(runs, where)
    return join(values) if values else None


def _count(runs: Sequence[LoggedRun], where: Where | None) -> int | None:
    """Return the whole number that all runs share, or None."""
    found = {_number(run, where) for run in runs}
    value = found.pop() if len(found) == 1 else None
    return None if value is None else int(value)


def _least(runs: Sequence[LoggedRun], where: Where | None) -> float | None:
    found = [_number(run, where) for run in runs]
    known = [value for value in found if value is not None]
    return min(known) if known and len(known) == len(found) else None


def _needed(run: LoggedRun, source: str) -> str:
    text = _text(run, source)
    if text is None:
        raise UsageError(f"run {run.run_id} has no {source}, which `cell` names; exclude the run with `filter`")
    return text


def _name(source: str) -> str:
    return source.partition(".")[2]
