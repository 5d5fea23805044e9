"""Record -> tables of plain values: the one source of every format but the page, so that all have the same figures.

Values are exact JSON scalars; each format rounds them. Every row with a figure has an `origin`: measured, emulated or
simulated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare import Comparison, Metric, Summary, compare, factors_of, summarize
from repro.compare.cell_figures import cell_figures
from repro.compare.design.calibration import machine_of, read_kept_calibration
from repro.compare.design.effect import MainEffect
from repro.compare.evidence.time_split import in_words
from repro.compare.runs.error_budget import error_budget
from repro.compare.verdict.contest import claims
from repro.compare.verdict.convergence import check
from repro.core import registry
from repro.record.folder.store import Record
from repro.record.result.metric_values import figures_of
from repro.record.result.remarks import joined
from repro.record.result.results import Result

from .claim_rows import claim_rows
from .effect_rows import effect_rows, effects, interaction_rows, warning_rows
from .operation_rows import check_rows, measure_rows
from .score_rows import profile_rows, score_rows, score_time_rows, scores_of
from .tuning_rows import setting_rows, space_rows, tuning_rows
from .values import Row, Value, bounds, estimate, finite, origins_of, plain

HASHES = ("init_weights", "data_order", "augmentation", "data", "final_weights")
PHASES = ("train", "eval", "checkpoint", "logging", "other")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind, all with the same columns."""

    name: str
    title: str
    rows: tuple[Row, ...]

    @property
    def columns(self) -> list[str]:
        """The columns of all rows, in the order in which they first appear."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def types(self) -> dict[str, type]:
        """Return column -> bool, int, float or str: the narrowest type of all values; str if none is known."""
        return {column: _type([row.get(column) for row in self.rows]) for column in self.columns}


def tables(record: Record) -> list[Table]:
    """Return all tables in a fixed order, without empty ones."""
    metric, compared, found_effects = record.plan.suite.metric, comparisons(record), effects(record)
    found = [
        Table("about", "The record", (about(record) | {"error_budget": errors(record, compared, found_effects)},)),
        Table("cells", "One row per cell", tuple(_cell(record, item) for item in summaries(record, metric))),
        Table("main_effects", "One row per main effect: a level against another over all other factors",
              tuple(effect_rows(record, found_effects))),
        Table("interactions", "One row per difference of a main effect between levels of another factor",
              tuple(interaction_rows(record, found_effects))),
        *_scores(record),
        Table("tuning", "One row per tuned contender", tuple(tuning_rows(record))),
        Table("tuning_settings", "One row per setting that was tried", tuple(setting_rows(record))),
        Table("tuning_spaces", "One row per field of a contender's search space", tuple(space_rows(record))),
        Table("claims", "One row per claim of a contest about the quality of a cell", tuple(claim_rows(record))),
        Table("comparisons", "One row per verdict, the declared contrast first", tuple(_comparisons(record, compared))),
        Table("pairs", "One row per pair of trials with one seed", tuple(_pairs(record, compared))),
        Table("trials", "One row per trial", tuple(_trial(record, item) for item in record.results)),
        Table("operations", "One row per figure of a cell whose trials measure operations",
              tuple(measure_rows(record))),
        Table("checks", "One row per check of the answers of a cell whose trials measure operations",
              tuple(check_rows(record))),
        *(table(record) for table in registry.parts("table").values()),
        Table("evaluations", "One row per evaluation of a trial", tuple(_evaluations(record))),
        Table("attempts", "One row per attempt of a trial, including failed ones", tuple(_attempts(record))),
        Table("parameters", "One row per setting of a cell", tuple(_parameters(record))),
        Table("environment", "One row per fact about the machine and its software", tuple(_environment(record))),
        Table("warnings", "One row per warning about the machine and the run", tuple(warning_rows(record))),
        Table("skipped", "One row per combination that did not run", tuple(_skipped(record))),
    ]
    return [table for table in found if table.rows]


def _scores(record: Record) -> Iterable[Table]:
    found = scores_of(record)
    if found is not None:
        yield Table("scores", "One row per contender over all workloads", tuple(score_rows(found)))
        yield Table("score_times", "One row per contender and workload", tuple(score_time_rows(found)))
        yield Table("score_profiles", "One row per contender and factor of the best time", tuple(profile_rows(found)))


def summaries(record: Record, metric: Metric) -> list[Summary]:
    """Summarize every cell, as `repro compare` does."""
    horizon = record.plan.suite.horizon
    return [summarize(cell, record.of_cell(cell.cell_id), metric, horizon) for cell in record.plan.cells]


def comparisons(record: Record) -> list[Comparison]:
    """Return every verdict, as `repro compare` does."""
    return compare(record.plan, record.results, started_ms=record.started_ms)


def errors(record: Record, found: Sequence[Comparison], found_effects: Sequence[MainEffect]) -> str:
    """Return how the 5 % for wrong verdicts are spent, as `repro compare` does."""
    return error_budget(found, found_effects, len(check(record.plan, record.results)),
                        claims(record.plan, record.results))


def about(record: Record) -> Row:
    """Return the record in one row: experiment, machine, completeness, parity and calibration."""
    plan, environment = record.plan, record.environment
    found, parity = read_kept_calibration(record), record.parity
    alike = None if parity is None or not parity.get("needed") else not any(
        item.get("problem") for item in parity.get("findings", ()))
    return {
        "suite": plain(plan.suite.suite), "title": plain(plan.suite.title), "suite_version": plan.suite.version,
        "suite_digest": plan.digest,
        "method": plan.method, "origin": " and ".join(origins_of(plan.cells)), "metric": record.plan.suite.metric,
        "trials": len(record.results), "planned": record.planned, "seeds": plan.suite.seeds,
        "margin": plan.suite.margin, "horizon": plan.suite.horizon,
        "attempts": len(record.attempts), "machine": plain(machine_of(environment)),
        "started_ms": environment.started_ms, "repro_version": environment.repro_version,
        "commit": environment.commit, "dirty": environment.dirty,
        "parity_needed": None if parity is None else bool(parity.get("needed")), "parity_passed": alike,
        "false_positives": found.false_positives if found else None, "nulls": found.n if found else None,
        "false_positive_rate": found.sentence() if found else "not calibrated",
        "notes": plain("; ".join(plan.notes)),
    }


def _cell(record: Record, item: Summary) -> Row:
    cell = record.cell(item.cell_id)
    row: Row = {"cell_id": item.cell_id, "cell": plain(item.label), "origin": cell.choices.origin}
    row |= {f"factor.{key}": plain(value) for key, value in cell.factors.items()}
    row |= {"metric": item.metric, "n": item.n, "planned": record.due_of(item.cell_id), "ok": item.ok,
            "statuses": ", ".join(f"{count} {name}" for name, count in sorted(item.statuses.items())),
            "median": item.median}
    row |= bounds("median", item.interval) | bounds("success", item.success)
    row |= {
        "coefficient_of_variation": item.coefficient_of_variation, "outliers": sum(item.outliers),
        "median_epochs": item.median_epochs, "median_samples_per_second": item.median_samples_per_second,
        "median_final": item.median_final,
        **cell.choices.quality.columns("median_final_", item.median_final), "restricted_horizon": item.horizon,
        "diverged_share": item.diverged_share,
    }
    row |= estimate("restricted_mean", item.restricted)
    return row | {f"median_{path.replace('model.', '')}": value
                  for path, value in cell_figures(record.of_cell(item.cell_id)).items()}


def _comparisons(record: Record, found: Sequence[Comparison]) -> Iterable[Row]:
    for item in found:
        row: Row = {
            "candidate": item.candidate, "candidate_cell": plain(item.candidate_label), "baseline": item.baseline,
            "baseline_cell": plain(item.baseline_label), "origin": pair_origin(record, item), "metric": item.metric,
            "primary": item.primary, "paired": item.paired, "n": item.n, "ratio": item.ratio,
        }
        row |= bounds("ratio", item.interval)
        row |= {"speedup": item.speedup, "verdict": item.verdict, "refused": item.refused,
                "because": plain(item.because),
                "p": item.p, "p_adjusted": item.p_adjusted, "family": item.family}
        row |= estimate("welch", item.welch)
        row |= estimate("split_samples", item.split.samples if item.split else None)
        row |= estimate("split_throughput", item.split.throughput if item.split else None)
        row |= {"split_words": in_words(item.split) if item.split else None}
        restricted, same = item.restricted, item.equivalence
        row |= {"restricted_ratio": restricted.ratio if restricted else None,
                "restricted_horizon": restricted.horizon if restricted else None}
        row |= bounds("restricted", restricted.interval if restricted else None)
        row |= {"log_rank_p": item.log_rank_p}
        row |= estimate("probability_less", item.probability_less)
        row |= {"equivalence_margin": same.margin if same else None, "equivalence_p": same.p if same else None,
                "equivalence_p_adjusted": same.p_adjusted if same else None,
                "equivalent": same.equivalent if same else None}
        row |= {"settles": plain(item.settles), "differs": plain(item.also),
                "cautions": plain("; ".join(item.cautions))}
        yield row


def pair_origins(record: Record, item: Comparison) -> tuple[str, ...]:
    """Return the origin of a comparison; both origins if its cells differ."""
    return origins_of([record.cell(cell_id) for cell_id in (item.candidate, item.baseline)])


def pair_origin(record: Record, item: Comparison) -> str:
    """Return the origins of a comparison as text."""
    return " and ".join(pair_origins(record, item))


def _pairs(record: Record, found: Sequence[Comparison]) -> Iterable[Row]:
    for item in found:
        for pair in item.pairs:
            yield {
                "candidate": item.candidate, "baseline": item.baseline, "origin": pair_origin(record, item),
                "metric": item.metric, "primary": item.primary, "seed": pair.repeat,
                "candidate_value": pair.candidate, "baseline_value": pair.baseline,
            }


def _trial(record: Record, item: Result) -> Row:
    row: Row = {
        "trial_id": item.trial_id, "cell_id": item.cell_id, "cell": plain(record.cell(item.cell_id).label),
        "origin": record.cell(item.cell_id).choices.origin, "seed": item.repeat, "attempt": item.attempt,
        "status": item.status, "reason": plain(item.reason),
    }
    quality = record.cell(item.cell_id).choices.quality
    row |= figures_of(item) | quality.columns("final_", item.final)
    if quality.tokens_per_sample:
        row |= {"tokens_to_target": quality.tokens(item.samples_to_target)}
    row |= {f"{name}_seconds": item.phases.get(name) for name in PHASES}
    row |= {"lost_seconds": item.phases.get("lost"), "resumed": len(item.resumed)}
    bracket = item.bracket
    row |= {"bracket_miss_samples": bracket.miss_samples if bracket else None,
            "bracket_hit_samples": bracket.hit_samples if bracket else None,
            "bracket_miss_seconds": bracket.miss_wall_seconds if bracket else None,
            "bracket_hit_seconds": bracket.hit_wall_seconds if bracket else None}
    steps, traffic = item.steps, item.traffic
    row |= {"step_median_seconds": steps.median_seconds if steps else None,
            "step_p95_seconds": steps.p95_seconds if steps else None,
            "straggler_seconds": steps.straggler_seconds if steps else None,
            "busiest_sent_bytes": traffic.busiest_sent_bytes if traffic else None,
            "formula_sent_bytes": traffic.formula.sent_bytes if traffic and traffic.formula else None,
            "exposed_seconds": traffic.training.exposed_seconds if traffic else None,
            "overlapped_seconds": traffic.training.overlapped_seconds if traffic else None}
    control = item.controller
    row |= {"controller_startup_messages": control.startup.messages if control else None,
            "controller_startup_bytes": control.startup.bytes if control else None,
            "controller_training_messages": control.training.messages if control else None,
            "controller_training_bytes": control.training.bytes if control else None}
    row |= {f"hash.{name}": plain(item.hashes[name]) if name in item.hashes else None for name in HASHES}
    return row | {"warnings": plain(joined(item.warnings))}


def _evaluations(record: Record) -> Iterable[Row]:
    for item in record.results:
        choices = record.cell(item.cell_id).choices
        for index, point in enumerate(item.curve, 1):
            row: Row = {
                "trial_id": item.trial_id, "cell_id": item.cell_id, "seed": item.repeat, "origin": choices.origin,
                "evaluation": index, "samples": point.samples, "epochs": point.epochs,
                "wall_seconds": point.wall_seconds, "train_seconds": point.train_seconds,
                "quality": plain(choices.stop.metric), "value": point.value, "target": choices.stop.target,
                "train_loss": point.train_loss,
            }
            yield row | choices.quality.columns("", point.value)


def _attempts(record: Record) -> Iterable[Row]:
    counted = {(item.trial_id, item.attempt) for item in record.results}
    for item in record.attempts:
        yield {
            "trial_id": item.trial_id, "cell_id": item.cell_id, "seed": item.repeat, "attempt": item.attempt,
            "started_ms": item.started_ms, "seconds": item.known_seconds, "status": item.status,
            "counted": (item.trial_id, item.attempt) in counted, "resumed_from": item.resumed_from,
            "passed_over": plain("; ".join(item.passed_over)), "reason": plain(item.reason),
        }


def _parameters(record: Record) -> Iterable[Row]:
    for cell in record.plan.cells:
        for name, value in flat(factors_of(cell)).items():
            yield {"cell_id": cell.cell_id, "cell": plain(cell.label), "name": plain(name),
                   "value": plain(value if isinstance(value, str) else json.dumps(value, sort_keys=True))}


def _environment(record: Record) -> Iterable[Row]:
    data = record.environment.model_dump(mode="json", by_alias=True, exclude={"packages"})
    for name, value in flat(data).items():
        yield {"name": plain(name), "value": plain(value if isinstance(value, str) else json.dumps(value))}
    for package in record.environment.packages:
        name, _, version = package.partition("==")
        yield {"name": plain(f"package.{name}"), "value": plain(version)}


def _skipped(record: Record) -> Iterable[Row]:
    for item in record.plan.skipped:
        yield {"cell": plain(item.label), "reason": plain(item.reason)}


def flat(data: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested data to dotted names, as in the matrix of a suite; items of a list by their number."""
    found: dict[str, Any] = {}
    for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
        if isinstance(value, Mapping | list | tuple) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _type(values: Sequence[Value]) -> type:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return bool
    if kinds == {int}:
        return int
    return float if kinds and kinds <= {int, float} else str


__all__ = ["HASHES", "PHASES", "Row", "Table", "Value", "about", "comparisons", "effects", "finite", "flat",
           "origins_of", "pair_origin", "pair_origins", "plain", "summaries", "tables"]
