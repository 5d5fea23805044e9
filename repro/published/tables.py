"""Published results as tables of plain values, like those of own runs in `repro.tables.tables`.

Every row with a figure has the `origin` *published*. `import` is the number of the import, because two imports can
come from folders with the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from repro.published.cells import FACTORS, batch_costs
from repro.published.speedrun.claims import claim_tracks
from repro.published.store import Published
from repro.tables.tables import Table
from repro.tables.values import Row, plain

ORIGIN = "published"
TEXTS = ("division", "availability", "accelerator", "framework", "model", "date")
FIGURES = ("accelerators", "nodes", "global_batch_size", "train_samples", "seed")
SYSTEM = ("submitter", "system_name", "division", "availability", "accelerator", "processor", "framework")
COUNTS = ("nodes", "accelerators_per_node", "accelerators", "processors_per_node")


def published_tables(imports: Sequence[Published]) -> list[Table]:
    """Return all tables in a fixed order, without empty ones."""
    wanted: tuple[tuple[str, str, Callable[[Published], Iterable[Row]]], ...] = (
        ("about", "One row per import", _about), ("cells", "One row per system on a benchmark, with its score", _cells),
        ("claims", "One row per arm of a contest and baseline of its record, with its claims", claim_rows),
        ("runs", "One row per log or entry", _runs),
        ("evaluations", "One row per evaluation of a run, not thinned", _evaluations),
        ("batch_costs", "Cost of the target by batch size, one row per run that reached it", _batch_costs),
        ("references", "Cost of the reference, one row per batch size", _references),
        ("parameters", "One row per setting of a run", _parameters),
        ("systems", "One row per system description", _systems),
        ("refused", "One row per refused file, with the reason", _refused),
    )
    found = [Table(name, title, tuple({"import": number, "origin": ORIGIN, **row}
                                      for number, item in enumerate(imports, 1) for row in rows(item)),
                   is_published=True) for name, title, rows in wanted]
    return [table for table in found if table.rows]


def _text(value: str | None) -> str | None:
    return None if value is None else plain(value)


def _about(item: Published) -> Iterator[Row]:
    record = item.record
    yield {"program": record.program, "imported": plain(record.imported), "reader": plain(record.reader),
           "cells": len(record.cells), "runs": len(item.results), "systems": len(record.systems),
           "refused": len(item.refused), "results_sha256": record.results_sha256,
           "refused_sha256": record.refused_sha256}


def _cells(item: Published) -> Iterator[Row]:
    runs = item.by_cell()
    for cell in item.record.cells:
        score = cell.score
        row: Row = {"cell_id": cell.cell_id, "cell": plain(cell.label)}
        row |= {f"factor.{name}": _text(cell.factors.get(name)) for name in FACTORS}
        row |= {"score_minutes": score.minutes, "score_valid": score.valid, "score_reason": plain(score.reason),
                "scaling_factor": score.scaling_factor, "runs": score.runs, "required": score.required,
                "without_time": score.failed, "ok": cell.ok, "missed": cell.missed, "invalid": cell.invalid,
                "refused": cell.refused}
        for name in ("epochs_to_target", "samples_to_target"):
            known = [value for run in runs[cell.cell_id] if (value := getattr(run, name)) is not None]
            row |= {f"{name}_low": min(known, default=None), f"{name}_high": max(known, default=None)}
        yield row


def _runs(item: Published) -> Iterator[Row]:
    for run in item.results:
        row: Row = {"result_id": run.result_id, "cell_id": run.cell_id, "run": run.repeat, "program": run.program,
                    "round": plain(run.round), "org": plain(run.org), "system": plain(run.system),
                    "benchmark": plain(run.benchmark)}
        row |= {name: _text(getattr(run, name)) for name in TEXTS}
        row |= {name: getattr(run, name) for name in FIGURES}
        row |= {"target": plain(json.dumps(run.target, sort_keys=True)) if run.target else None,
                "status": run.status, "reason": plain(run.reason), "seconds": run.seconds,
                "run_seconds": run.run_seconds, "init_seconds": run.init_seconds,
                "epochs_to_target": run.epochs_to_target, "samples_to_target": run.samples_to_target}
        bracket = run.bracket
        row |= {name: getattr(bracket, name) if bracket else None
                for name in ("miss_seconds", "hit_seconds", "miss_samples", "hit_samples")}
        yield row | {"evaluations": len(run.curve), "warnings": plain("; ".join(run.warnings)),
                     "source": plain(run.source), "sha256": run.sha256}


def _evaluations(item: Published) -> Iterator[Row]:
    for run in item.results:
        for number, point in enumerate(run.curve, 1):
            yield {"result_id": run.result_id, "cell_id": run.cell_id, "run": run.repeat, "evaluation": number,
                   "seconds": point.seconds, "samples": point.samples, "epochs": point.epochs,
                   "quality": plain(point.metric), "value": point.value}


def _batch_costs(item: Published) -> Iterator[Row]:
    for of in batch_costs(item.results):
        for cost in of.costs:
            yield {"round": plain(of.round), "benchmark": plain(of.benchmark), "result_id": cost.result_id,
                   "cell_id": cost.cell_id, "global_batch_size": cost.global_batch_size, "epochs": cost.epochs,
                   "samples": cost.samples}


def _references(item: Published) -> Iterator[Row]:
    for point in item.record.references:
        yield {"round": plain(point.round), "benchmark": plain(point.benchmark), "name": plain(point.name),
               "global_batch_size": point.global_batch_size, "unit": point.unit, "runs": len(point.costs),
               "mean": sum(point.costs) / len(point.costs), "low": min(point.costs), "high": max(point.costs),
               "source": plain(point.source), "sha256": point.sha256}


def _parameters(item: Published) -> Iterator[Row]:
    for run in item.results:
        for name, value in run.hyperparameters.items():
            yield {"result_id": run.result_id, "cell_id": run.cell_id, "name": plain(name),
                   "value": plain(value if isinstance(value, str) else json.dumps(value))}


def _systems(item: Published) -> Iterator[Row]:
    for system in item.record.systems:
        row: Row = {"org": plain(system.org), "name": plain(system.name)}
        row |= {name: _text(getattr(system, name)) for name in SYSTEM}
        row |= {name: getattr(system, name) for name in COUNTS}
        yield row | {"source": plain(system.source), "sha256": system.sha256}


def _refused(item: Published) -> Iterator[Row]:
    for refused in item.refused:
        yield {"source": plain(refused.source), "reason": plain(refused.reason), "cell_id": refused.cell_id,
               "counts_as_a_run": refused.cell_id is not None}


def claim_rows(item: Published) -> Iterator[Row]:
    """Yield one row an arm and baseline of its record, exact."""
    for claims in claim_tracks(item).values():
        for claim, time in ((arm, time) for arm in claims for time in arm.times):
            quality = claim.quality
            yield {
                "cell_id": claim.cell_id, "record": plain(claim.record), "arm": plain(claim.arm), "date": claim.date,
                "track": plain(claim.benchmark), "target": quality.target, "runs": claim.runs, "n": quality.n,
                "loss_mean": quality.mean, "loss_deviation": quality.deviation, "p": quality.p,
                "quality": quality.verdict, "quality_because": plain(quality.because), "seconds_mean": claim.seconds,
                "seconds_low": claim.seconds_interval[0] if claim.seconds_interval else None,
                "seconds_high": claim.seconds_interval[1] if claim.seconds_interval else None,
                "against": time.against or None, "ratio": time.ratio,
                "ratio_low": time.interval[0] if time.interval else None,
                "ratio_high": time.interval[1] if time.interval else None, "time_p": time.p,
                "time_p_adjusted": time.p_adjusted, "time": time.verdict, "time_because": plain(time.because),
            }
