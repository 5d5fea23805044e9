"""Scores of several runs: runs of one experiment become one record, runs of others add their workloads.

Workloads may come from different suites, because times are divided within a workload only. All runs must be of one
machine and one method. Two experiments with a task in common are refused: their times on it do not compare.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from repro.compare.cells import read_pattern
from repro.compare.design.calibration import machine_of
from repro.compare.runs.merge import Section, sections
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.record.environment.differences import changed_data, changed_plugins
from repro.record.folder.store import read_record
from repro.scores.scores import TAU_MAX, Scores, scores
from repro.suite.model import Metric


class ScoredSuite(Frozen):
    """An experiment whose runs are scored."""

    suite: str
    suite_digest: str
    method: str


class Scored(Frozen):
    """Scores, and the experiments that they are of, as `repro scores --json` prints them."""

    schema_: Literal[1] = Field(alias="schema")
    runs: tuple[str, ...]
    machine: str
    suites: tuple[ScoredSuite, ...]
    scores: Scores
    notes: tuple[str, ...]
    """About merged runs."""


def score_runs(
    runs: Sequence[Path], metric: Metric | None = None, by: Sequence[str] = (), baseline: str | None = None,
    tau_max: float = TAU_MAX,
) -> Scored:
    """Score the contenders of one run or of several.

    Args:
        by: factors that name a contender; (): those that vary on one workload.
        baseline: `key=value,...` that selects the contender whose times the ratios are over.

    Raises:
        UsageError: as `scores.scores`; runs of different machines, methods, code or data; a run named twice.
        OutputError: no run folder, or a damaged one.
    """
    pattern = read_pattern(baseline) if baseline is not None else None
    with tempfile.TemporaryDirectory(prefix="repro-scores-") as folder:
        notes: tuple[str, ...] = ()
        if len(runs) == 1:
            records = [read_record(runs[0])]
        else:
            found = sections(runs, Path(folder) / "merged")
            _check_sections(found)
            records, notes = [item.record for item in found], tuple(text for item in found for text in item.notes)
        return Scored(
            schema_=1, runs=tuple(map(str, runs)), machine=machine_of(records[0].environment),
            suites=tuple(ScoredSuite(suite=plan.suite.suite, suite_digest=plan.digest, method=plan.method)
                         for plan in (item.plan for item in records)),
            scores=scores(records, metric, by, pattern, tau_max), notes=notes)


def _check_sections(found: Sequence[Section]) -> None:
    """Refuse experiments whose times cannot stand in one ranking."""
    first = found[0]
    for item in found[1:]:
        names = f"{', '.join(first.sources)} and {', '.join(item.sources)} cannot be ranked together"
        machines = [machine_of(each.record.environment) for each in (first, item)]
        if machines[0] != machines[1]:
            raise UsageError(f"{names}: another machine, {machines[1]} against {machines[0]}")
        changed = [*changed_plugins(first.record.environment, item.record.environment),
                   *changed_data(first.record.environment, item.record.environment)]
        if changed:
            raise UsageError(f"{names}: other {', '.join(changed)}")
    owners: dict[str, Section] = {}
    for item in found:
        for task in dict.fromkeys(cell.choices.task for cell in item.record.plan.cells):
            if (mate := owners.setdefault(task, item)) is not item:
                raise UsageError(f"{', '.join(mate.sources)} and {', '.join(item.sources)} both have {task}, and are "
                                 f"not one experiment ({item.why or mate.why}): times of one workload from two "
                                 "experiments are not ranked")
