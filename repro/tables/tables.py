"""Record -> all tables of plain values, as CSV, Parquet and JSON lines have them.

Values are exact JSON scalars; each format rounds them. Every row with a figure has an `origin`: measured, emulated or
simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from repro.compare import factors_of
from repro.compare.design.calibration import machine_of
from repro.compare.findings import Findings, findings
from repro.core import registry
from repro.core.pattern import flat
from repro.record.folder.store import Record
from repro.record.result.remarks import joined
from repro.record.result.results import PHASES, Result, figures_of
from repro.suite.kinds.program import ProgramConfig

from .cell_tables import cell_rows, check_rows, lane_rows, measure_rows
from .columns import ColumnFacts, column_facts, facts_of_values
from .values import Row, Value, plain
from .verdicts import claim_rows, comparison_rows, effect_rows, interaction_rows, node_rows, pair_rows

HASHES = ("init_weights", "data_order", "augmentation", "data", "final_weights")
IN_SECONDS = {name: f"{name}_seconds" for name in ("tta_wall", "tta_train", "tta_cold")}
"""Field of a result -> its column, which has its unit."""
DETAILS = {
    "bracket_miss_samples": "bracket.miss_samples", "bracket_hit_samples": "bracket.hit_samples",
    "bracket_miss_seconds": "bracket.miss_wall_seconds", "bracket_hit_seconds": "bracket.hit_wall_seconds",
    "step_median_seconds": "steps.median_seconds", "step_p95_seconds": "steps.p95_seconds",
    "straggler_seconds": "steps.straggler_seconds", "busiest_sent_bytes": "traffic.busiest_sent_bytes",
    "formula_sent_bytes": "traffic.formula.sent_bytes", "exposed_seconds": "traffic.training.exposed_seconds",
    "overlapped_seconds": "traffic.training.overlapped_seconds",
    "controller_startup_messages": "controller.startup.messages",
    "controller_startup_bytes": "controller.startup.bytes",
    "controller_training_messages": "controller.training.messages",
    "controller_training_bytes": "controller.training.bytes",
}
"""Column -> path of its value in a result."""

MAIN = {
    "trials": ("trial_id", "cell_id", "cell", "seed", "status", "tta_wall_seconds"),
    "evaluations": ("trial_id", "cell_id", "cell", "seed", "evaluation", "samples", "wall_seconds", "value"),
    "pairs": ("candidate", "baseline", "origin", "metric", "primary", "seed", "candidate_value", "baseline_value",
              "ratio", "unit"),
    "comparisons": ("candidate", "baseline", "metric", "n", "ratio", "ratio_low", "ratio_high", "verdict", "because"),
    "warnings": ("title", "about", "text", "means"),
    "ratios_by_lane": ("candidate", "baseline", "metric", "lane", "n", "ratio", "ratio_low", "ratio_high"),
}
"""Table that may be empty -> columns that a reader can count on."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind, all with the same columns."""

    name: str
    title: str
    rows: tuple[Row, ...]
    is_published: bool = False
    """Its columns are those of published results, of which only the values tell the type."""

    @property
    def columns(self) -> list[str]:
        """The columns of all rows, in the order in which they first appear; of an empty table the main ones."""
        return list(dict.fromkeys(chain.from_iterable(self.rows))) or list(MAIN.get(self.name, ()))

    @property
    def described(self) -> dict[str, ColumnFacts]:
        """Column -> what it holds: its type, unit and words."""
        def values(name: str) -> Iterator[Value]:
            return (row.get(name) for row in self.rows)

        return {name: facts_of_values(values(name)) if self.is_published else
                column_facts(self.name, name, values(name)) for name in self.columns}


def tables(record: Record) -> list[Table]:
    """Return all tables in a fixed order, without empty ones."""
    return [found for name in table_names() if (found := table(record, name)).rows]


def table_names() -> list[str]:
    """Return the names of all tables, in their order."""
    return [*TABLES, *registry.PARTS["table"]]


def table(record: Record, name: str) -> Table:
    """Return one table, which may be empty."""
    if name not in TABLES:
        found = registry.part("table", name)(record)
        assert isinstance(found, Table)
        return found
    title, rows = TABLES[name]
    return Table(name, title, tuple(rows(findings(record))))


def about(answers: Findings) -> Row:
    """Return the record in one row: experiment, machine, completeness, parity and calibration."""
    record, found = answers.record, answers.calibration
    plan, environment, parity = record.plan, record.environment, record.parity
    alike = None if parity is None or not parity.get("needed") else not any(
        item.get("problem") for item in parity.get("findings", ()))
    return {
        "suite": plain(plan.suite.suite), "title": plain(plan.suite.title), "suite_version": plan.suite.version,
        "suite_digest": plan.digest,
        "method": plan.method, "origin": answers.origin, "metric": record.plan.suite.metric,
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


def _trial(record: Record, item: Result) -> Row:
    row: Row = {
        "trial_id": item.trial_id, "cell_id": item.cell_id, "cell": plain(record.cell(item.cell_id).label),
        "origin": record.origins[item.cell_id], "seed": item.repeat, "attempt": item.attempt,
        "status": item.status, "reason": plain(item.reason),
    }
    quality = record.cell(item.cell_id).choices.quality
    row |= {IN_SECONDS.get(name, name): value for name, value in figures_of(item).items()}
    row |= quality.columns("final_", item.final)
    if quality.tokens_per_sample:
        row |= {"tokens_to_target": quality.tokens(item.samples_to_target)}
    row |= {f"{name}_seconds": item.phases.get(name) for name in PHASES}
    row |= {"lost_seconds": item.phases.get("lost"), "resumed": len(item.resumed)}
    row |= {name: item.at(path) for name, path in DETAILS.items()}
    row |= {f"hash.{name}": plain(item.hashes[name]) if name in item.hashes else None for name in HASHES}
    return row | {"warnings": plain(joined(item.warnings))}


def _evaluations(answers: Findings) -> Iterable[Row]:
    record = answers.record
    for item in record.results:
        cell = record.cell(item.cell_id)
        choices, label = cell.choices, plain(cell.label)
        counted = item.samples is not None or not isinstance(choices, ProgramConfig)
        for index, point in enumerate(item.curve, 1):
            row: Row = {
                "trial_id": item.trial_id, "cell_id": item.cell_id, "cell": label, "seed": item.repeat,
                "origin": record.origins[item.cell_id],
                "evaluation": index, "samples": point.samples if counted else None, "epochs": point.epochs,
                "wall_seconds": point.wall_seconds, "train_seconds": point.train_seconds,
                "quality": plain(choices.stop.metric), "value": point.value, "target": choices.stop.target,
                "train_loss": point.train_loss,
            }
            yield row | choices.quality.columns("", point.value)


def _attempts(answers: Findings) -> Iterable[Row]:
    record = answers.record
    counted = {(item.trial_id, item.attempt) for item in record.results}
    for item in record.attempts:
        lane: Row = {"lane": plain(" + ".join(item.nodes))} if item.shard else {}
        yield {
            "trial_id": item.trial_id, "cell_id": item.cell_id, "seed": item.repeat, "attempt": item.attempt,
            "started_ms": item.started_ms, "seconds": item.known_seconds, "status": item.status,
            "counted": (item.trial_id, item.attempt) in counted, "resumed_from": item.resumed_from,
            "passed_over": plain("; ".join(item.passed_over)), "reason": plain(item.reason), **lane,
        }


def _parameters(answers: Findings) -> Iterable[Row]:
    for cell in answers.record.plan.cells:
        for name, value in flat(factors_of(cell), lists=True).items():
            yield {"cell_id": cell.cell_id, "cell": plain(cell.label), "name": plain(name),
                   "value": plain(value if isinstance(value, str) else json.dumps(value, sort_keys=True))}


def _environment(answers: Findings) -> Iterable[Row]:
    record = answers.record
    data = record.environment.model_dump(mode="json", by_alias=True, exclude={"packages"})
    for name, value in flat(data, lists=True).items():
        yield {"name": plain(name), "value": plain(value if isinstance(value, str) else json.dumps(value))}
    for package in record.environment.packages:
        name, _, version = package.partition("==")
        yield {"name": plain(f"package.{name}"), "value": plain(version)}


TABLES: Mapping[str, tuple[str, Callable[[Findings], Iterable[Row]]]] = {
    "about": ("The record", lambda answers: (about(answers) | {"error_budget": answers.error_budget},)),
    "cells": ("One row per cell", cell_rows),
    "main_effects": ("One row per main effect: a level against another over all other factors",
                     lambda answers: effect_rows(answers.effects, answers.origin)),
    "interactions": ("One row per difference of a main effect between levels of another factor",
                     lambda answers: interaction_rows(answers.effects, answers.origin)),
    "claims": ("One row per claim of a contest about the quality of a cell",
               lambda answers: claim_rows(answers.claims, answers.origins)),
    "comparisons": ("One row per verdict, the declared contrast first",
                    lambda answers: comparison_rows(answers.comparisons, answers.origins)),
    "pairs": ("One row per pair of trials with one seed",
              lambda answers: pair_rows(answers.comparisons, answers.origins)),
    "lanes": ("One row per lane of a pool", lane_rows),
    "ratios_by_lane": ("One row per verdict and lane of a pool (with unit: node, per node)",
                       lambda answers: node_rows(answers.comparisons, answers.origins)),
    "trials": ("One row per trial", lambda answers: (_trial(answers.record, item) for item in answers.record.results)),
    "operations": ("One row per figure of a cell whose trials measure operations",
                   lambda answers: measure_rows(answers.record, answers.record.plan.cells)),
    "checks": ("One row per check of the answers of a cell whose trials measure operations",
               lambda answers: check_rows(answers.record, answers.record.plan.cells)),
    "evaluations": ("One row per evaluation of a trial", _evaluations),
    "attempts": ("One row per attempt of a trial, including failed ones", _attempts),
    "parameters": ("One row per setting of a cell", _parameters),
    "environment": ("One row per fact about the machine and its software", _environment),
    "warnings": ("One row per warning about the machine and the run", lambda answers: (
        {"title": item.title, "about": item.about, "text": plain(item.text), "means": plain(item.consequence)}
        for item in answers.warnings)),
    "skipped": ("One row per combination that did not run", lambda answers: (
        {"cell": plain(item.label), "reason": plain(item.reason)} for item in answers.record.plan.skipped)),
}
"""Name of a table -> its title and what gives its rows; those of `registry.PARTS` follow."""
