"""Comparison of the cells of one run, or of the same cells of two runs (`repro compare`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from repro.compare import METRICS, Comparison, Metric, Summary, compare, summarize
from repro.compare.cell_figures import cell_figures
from repro.compare.cell_figures import notes as figure_notes
from repro.compare.cells import Named, absent_key, read_pattern
from repro.compare.design.calibration import Calibration, calibration_of
from repro.compare.design.effect import MainEffect
from repro.compare.design.factorial import main_effects
from repro.compare.design.standing import claims
from repro.compare.figures import Claim
from repro.compare.runs.run_warnings import run_warnings
from repro.compare.runs.searches import over_searches
from repro.compare.runs.two_runs import Ran, versus, versus_several
from repro.compare.verdict.condition import Condition, parse
from repro.compare.verdict.convergence import Convergence, check
from repro.compare.verdict.family import error_budget
from repro.core.errors import Exit, UsageError
from repro.record.folder.index import file_sha256
from repro.record.folder.store import Record, read_record
from repro.record.result.results import Result
from repro.seams.launching import oversubscription
from repro.suite.metrics import OF_MEASUREMENTS, TO_THE_END
from repro.suite.planning.designs import WITHOUT_TARGET
from repro.suite.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison."""

    runs: tuple[str, ...]
    suite: str
    digest: str
    method: str
    metric: Metric
    summaries: list[Summary]
    comparisons: list[Comparison]
    calibration: Calibration | None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Cell id -> origin of its figures."""
    figures: tuple[Mapping[str, float], ...] = ()
    """Of each of `summaries`: the figures of training (`cell_figures`)."""
    notes_of_figures: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    """Of contests: that of each of `summaries`."""
    effects: tuple[MainEffect, ...] = ()
    """Of one run whose suite asks for them."""
    warnings: tuple[str, ...] = ()
    """Warnings about the machine and the course of the runs."""
    convergence: tuple[Convergence, ...] = ()
    """For one run: the samples that its cells need compared with those of their baselines."""
    notes: tuple[str, ...] = ()
    """Consequence of an older method of measuring for the verdicts."""
    failures: tuple[str, ...] = ()
    """Conditions of --fail-if that hold or cannot be ruled out."""

    @property
    def origin(self) -> str:
        """The origins of all figures, each once."""
        return " and ".join(dict.fromkeys(self.origins.values()))

    @property
    def error_budget(self) -> str:
        """The error rate of each family of tests, in one sentence."""
        return error_budget(self.comparisons, len(self.effects), len(self.convergence), self.claims)

    @property
    def exit_code(self) -> Exit:
        return Exit.NOT_REPRODUCED if self.failures else Exit.DONE

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1, "exit_code": int(self.exit_code), "runs": list(self.runs), "suite": self.suite,
            "suite_digest": self.digest, "method": self.method, "metric": self.metric,
            "calibration": self.calibration.model_dump(mode="json") if self.calibration else None,
            "cells": [item.model_dump(mode="json") for item in self.summaries],
            "training": [dict(figures) for figures in self.figures],
            "comparisons": [item.model_dump(mode="json", by_alias=True) for item in self.comparisons],
            "error_budget": self.error_budget, "warnings": list(self.warnings),
            "claims": [item.model_dump(mode="json") for item in self.claims],
            "effects": [item.model_dump(mode="json", by_alias=True) for item in self.effects],
            "convergence": [item.model_dump(mode="json") for item in self.convergence],
            "notes": list(self.notes), "failures": list(self.failures),
        }


def compare_runs(
    runs: Sequence[Path], metric: Metric | None = None, baseline: str | None = None, fail_if: Sequence[str] = (),
    fail_any: bool = False, force: bool = False, against: Sequence[Path] = (),
) -> Compared:
    """Compare the cells of one run, of two, or of several with several others.

    Args:
        baseline: `key=value,...` that selects the cells to compare against, instead of the suite's.
        fail_if: conditions on the primary contrast.
        fail_any: apply the conditions to every contrast instead, all of them one family, so that a false alarm in any
            of them has a probability of 5 %.

        against: runs of the baseline; `runs` are the candidate's then, and a run is the unit.

    Raises:
        UsageError: a pattern or condition cannot be parsed, the runs cannot be compared, or there is nothing to
            compare.
        OutputError: no run folder, or a damaged one.
    """
    conditions = [parse(text) for text in fail_if]
    if fail_any and not conditions:
        raise UsageError("--fail-any requires --fail-if")
    records = [read_record(run) for run in (*against, *runs)]
    searched = any(record.plan.searches > 1 for record in records)
    if not against and not searched and not 1 <= len(runs) <= 2:
        raise UsageError(f"give one run or two, not {len(runs)}; several of each with --against")
    found = _one(records[0], metric, baseline, fail_any) if len(records) == 1 and not against else \
        _several(records, len(against), metric, baseline, force)
    check_metric(found.metric, records)
    if not found.comparisons and (conditions or not found.effects):
        raise UsageError(_nothing(records[0], baseline))
    return judged_by(found, conditions, fail_any)


def judged_by(found: Compared, conditions: Sequence[Condition], fail_any: bool = False) -> Compared:
    """Return it with the conditions of --fail-if that hold or cannot be ruled out."""
    return replace(found, failures=tuple(text for item in _subject(found, conditions, fail_any)
                                         for condition in conditions if (text := condition.failure(item))))


def check_metric(metric: Metric, records: Sequence[Record]) -> None:
    """Refuse a metric that the trials of these records cannot have.

    Raises:
        UsageError: the records have no such metric.
    """
    if why := metric_refusal(metric, records):
        raise UsageError(f"metric {metric}: {why}")


def metric_refusal(metric: Metric, records: Sequence[Record]) -> str:
    """Return why the trials of these records cannot have a metric; "" if they can."""
    contests, spec = [record.plan.design.is_contest for record in records], METRICS[metric]
    if spec.to_target and any(contests):
        return f"the trials of design contest run to their end, not to a target; they have {', '.join(TO_THE_END)}"
    if spec.at_end and not all(contests):
        return "only design contest has a time to the end; use tta_wall"
    if any((spec.of == "training") if record.plan.measures else (spec.of == "operations") for record in records):
        return (f"measurements have {', '.join(OF_MEASUREMENTS)}; other trials have all metrics but operation_time and "
                "operation_throughput")
    if spec.to_target and not all(record.plan.design.has_target for record in records):
        return f"design fixed_steps has no target; its trials have {', '.join(WITHOUT_TARGET)}"
    return ""


def _one(record: Record, metric: Metric | None, baseline: str | None, one_family: bool) -> Compared:
    pattern = read_pattern(baseline) if baseline is not None else None
    found = compare(record.plan, record.results, metric, pattern, record.execution, one_family=one_family)
    effects = main_effects(record.plan, record.results, metric, pattern, record.execution)
    return replace(compared([record], found, metric), effects=tuple(effects),
                   convergence=tuple(check(record.plan, record.results)))


def _several(
    records: Sequence[Record], before: int, metric: Metric | None, baseline: str | None, force: bool
) -> Compared:
    """Compare two runs, or with `before` the later runs with the first so many."""
    if baseline is not None:
        raise UsageError("--baseline requires a single run; " + (
            "with --against the runs named there are the baseline" if before
            else "of two runs the first is the baseline"))
    names = _names([record.folder.root for record in records])
    for one, other in combinations(range(len(records)), 2):
        refuse_copies(records[one], records[other], (names[one], names[other]))
    ran = [Ran(name, record.plan, record.results, record.environment, record.execution)
           for name, record in zip(names, records, strict=True)]
    if not before and any(record.plan.searches > 1 for record in records):
        return compared(records, over_searches(ran, metric), metric)
    found = versus_several(ran[:before], ran[before:], metric, force) if before else \
        versus(ran[0], ran[1], metric, force)
    return compared(records, found, metric)


def refuse_copies(first: Record, second: Record, names: Sequence[str]) -> None:
    """Refuse a run beside itself: a comparison would always find no difference, and its trials would count as others.
    """
    if first.folder.root.resolve() == second.folder.root.resolve():
        raise UsageError(f"{first.folder.root}: given twice; a run beside itself shows nothing, name different "
                         "runs")
    mates = {item.trial_id: item for item in first.results}
    shared = [item for item in second.results if item.trial_id in mates]
    same = [item for item in shared if _same_attempt(first, mates[item.trial_id], second, item)]
    if same:
        raise UsageError(
            f"{names[1]} and {names[0]} hold the same trials: {len(same)} of the {len(shared)} that both have share an "
            f"identical log (first: {same[0].trial_id}); a copy beside its original shows nothing, name runs "
            "that were all measured")


def _same_attempt(first: Record, one: Result, second: Record, other: Result) -> bool:
    """Return whether two results come from the same attempt of a trial.

    Two measured trials never have identical logs. A simulated engine gives identical figures each time, so the ledgers
    must agree on the start as well.
    """
    logs = [first.folder.log(one.trial_id, one.attempt), second.folder.log(other.trial_id, other.attempt)]
    if not all(path.is_file() for path in logs):
        return False
    sizes = {path.stat().st_size for path in logs}
    if len(sizes) > 1 or 0 in sizes or len({file_sha256(path) for path in logs}) > 1:
        return False
    simulated = first.cell(one.cell_id).choices.origin == "simulated"
    return not simulated or _started(first, one) == _started(second, other)


def _started(record: Record, result: Result) -> float | None:
    """Return the start of this attempt, milliseconds since 1970; None if the ledger does not list it."""
    return next((item.started_ms for item in record.attempts
                 if (item.trial_id, item.attempt) == (result.trial_id, result.attempt)), None)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the names of the folders, or their paths if the names are equal."""
    short = [path.resolve().name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def compared(records: Sequence[Record], found: list[Comparison], metric: Metric | None) -> Compared:
    """Return comparisons with what a reader must know beside them."""
    record, names = records[-1], _names([item.folder.root for item in records])
    chosen = metric or record.plan.suite.metric
    horizon = record.plan.suite.horizon_of(chosen)
    told = [(item.is_note, f"{item.line} [{name}]" if len(records) > 1 else item.line)
            for name, each in zip(names, records, strict=True) for item in run_warnings(each)]
    return Compared(
        runs=tuple(str(item.folder.root) for item in records), suite=record.plan.suite.suite, digest=record.plan.digest,
        method=record.plan.method, metric=chosen, comparisons=found, calibration=calibration_of(record),
        origins={name: origin for item in records for name, origin in item.origins.items()},
        figures=tuple(cell_figures(item.of_cell(cell.cell_id)) for item in records for cell in item.plan.cells),
        notes_of_figures=tuple(figure_notes(result for item in records for result in item.results)),
        notes=(*dict.fromkeys(note for item in records for note in _crowded(item.plan)),
               *(line for is_note, line in told if is_note)),
        warnings=tuple(line for is_note, line in told if not is_note),
        claims=tuple(
            item.model_copy(update={"label": f"{item.label} [{name}]"}) if len(records) > 1 else item
            for name, each in zip(names, records, strict=True) for item in claims(each.plan, each.results)),
        summaries=[
            summarize(Named(cell.cell_id, f"{cell.label} [{name}]" if len(records) > 1 else cell.label, cell.choices),
                      item.of_cell(cell.cell_id), chosen, horizon)
            for name, item in zip(names, records, strict=True)
            for cell in item.plan.cells
        ],
    )


def _crowded(plan: Plan) -> Iterator[str]:
    """Yield the caution for each number of ranks that shared too few cores."""
    if plan.device == "cpu":
        for ranks in sorted({cell.choices.setting("cpu", 0).launched for cell in plan.cells}):
            if note := oversubscription(ranks, plan.cores):
                yield note


def _nothing(record: Record, baseline: str | None) -> str:
    cells = [cell.label for cell in record.plan.cells]
    if len(cells) == 1:
        return f"{record.folder.root}: has only one cell ({cells[0]}), so there is nothing to compare"
    if baseline is not None:
        absent = absent_key(record.plan.cells, read_pattern(baseline))
        return f"--baseline {baseline!r} leaves no cell to compare{absent}; cells: {'; '.join(cells[:8])}"
    return f"{record.folder.root}: no cell of this run has a baseline; name one with --baseline"


def _subject(found: Compared, conditions: Sequence[Condition], fail_any: bool) -> list[Comparison]:
    if not conditions:
        return []
    if fail_any:
        return found.comparisons
    primary = [item for item in found.comparisons if item.primary]
    if primary or len(found.comparisons) == 1:
        return primary or found.comparisons
    raise UsageError(f"--fail-if applies to the primary contrast, which is none of these {len(found.comparisons)}; to "
                     "check all of them add --fail-any")
