"""Facts of published results: what logs and system descriptions state, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.audit.rules.facts import CellFacts, DataFacts, Facts, RunFacts
from repro.audit.rules.rule import join
from repro.bundle.source import open_record
from repro.core.errors import UsageError
from repro.published.importing import READERS
from repro.published.record import Program, PublishedCell, PublishedResult, PublishedSystem, Refused
from repro.published.store import RECORD, read_published

APART_SECONDS = 0.01
"""Largest difference between the time of a run and its stamps that counts as rounding."""
LOGGED = {
    "optimizer": ("opt_name",),
    "momentum": ("opt_momentum", "sgd_opt_momentum", "lars_opt_momentum", "opt_adam_beta_1", "opt_adamw_beta_1",
                 "opt_lamb_beta_1"),
    "weight decay": ("opt_weight_decay", "sgd_opt_weight_decay", "lars_opt_weight_decay", "opt_adamw_weight_decay",
                     "opt_lamb_weight_decay", "lars_opt_base_weight_decay"),
    "learning rate": ("opt_base_learning_rate", "sgd_opt_base_learning_rate", "lars_opt_base_learning_rate"),
    "schedule": ("opt_learning_rate_decay_schedule", "opt_learning_rate_training_steps",
                 "opt_learning_rate_decay_steps",
                 "sgd_opt_learning_rate_decay_poly_power", "lars_opt_learning_rate_decay_poly_power",
                 "opt_learning_rate_decay_boundary_epochs", "opt_lamb_learning_rate_decay_poly_power"),
    "global batch": ("global_batch_size",),
    "batch per worker": ("local_batch_size", "micro_batch_size"),
}
"""Hyper-parameter -> keys of MLPerf's logs that state it. No key states the initialisation."""
NETWORKS = ("host_networking", "accelerator_interconnect", "host_network_card_count")


def read_published_facts(path: Path) -> Facts:
    """Read an import, or a results repository or part of one that was not imported; writes nothing.

    Raises:
        UsageError: the folder is none of these.
    """
    if (path / RECORD).is_file():
        with open_record(path) as root:
            found = read_published(root)
        record = found.record
        return published_facts(record.program, record.imported, record.cells, record.systems, found.results,
                               found.refused)
    for program, reader in READERS.items():
        read = reader(path)
        if read.cells:
            return published_facts(program, path.resolve().name, read.cells, read.systems, read.results, read.refused)
    raise UsageError(f"{path}: neither a run folder (no plan.json), nor imported results (no {RECORD}), nor MLPerf "
                     "results (result_N.txt), DAWNBench entries or logs of a speed-run")


def published_facts(
    program: Program, title: str, cells: Sequence[PublishedCell], systems: Sequence[PublishedSystem],
    results: Iterable[PublishedResult], refused: Iterable[Refused],
) -> Facts:
    """Return the facts of an import. What only the benchmark's rules state (data set, initialisation) stays unknown."""
    by_cell: dict[str, list[PublishedResult]] = {}
    for item in results:
        by_cell.setdefault(item.cell_id, []).append(item)
    lost: dict[str | None, list[Refused]] = {}
    for log in refused:
        lost.setdefault(log.cell_id, []).append(log)
    data = None if program != "dawnbench" else tuple(  # its tasks are named after their data sets
        DataFacts(name) for name in dict.fromkeys(cell.factors["benchmark"] for cell in cells))
    made = tuple(_cell(program, cell, by_cell.get(cell.cell_id, []), lost.get(cell.cell_id, [])) for cell in cells)
    names = dict.fromkeys(name for cell in cells for name in cell.factors)
    varied = tuple(name for name in names if len({cell.factors.get(name) for cell in cells}) > 1)
    without_workers = [cell.label for cell in made if cell.workers is None]
    return Facts(
        origin=program, title=title, cells=made, data=data, varied=varied,
        system=_stated(systems, ("operating_system",)),
        hardware=None if without_workers else _hardware(systems),
        without_hardware=tuple(without_workers) if len(without_workers) < len(made) else (),
        interconnect=_stated(systems, NETWORKS),
        software=tuple(dict.fromkeys(item.framework for item in systems if item.framework)),
        means={"costs": "arithmetic mean"} if program != "dawnbench" else None,
    )


def _cell(
    program: Program, cell: PublishedCell, results: Sequence[PublishedResult], refused: Sequence[Refused]
) -> CellFacts:
    first = results[0] if results else None
    batches = {item.global_batch_size for item in results}
    runs = [*(_run(program, item) for item in results),
            *(RunFacts(name=log.source, reached=None) for log in refused)]
    return CellFacts(
        cell_id=cell.cell_id, label=cell.label, runs=tuple(runs), workers=first.accelerators if first else None,
        global_batch=batches.pop() if len(batches) == 1 else None, target=_target(results),
        model=f"{cell.factors['benchmark']} of round {cell.factors['round']}" if first else None,
        hyperparameters=_hyperparameters(results), planned=cell.score.required if program == "mlperf" else None,
        median=None if cell.score.minutes is None else cell.score.minutes * 60,
        fault="" if program != "mlperf" or cell.score.valid else cell.score.reason,
    )


def _run(program: Program, item: PublishedResult) -> RunFacts:
    values = [point.value for point in item.curve if point.value is not None]
    times = [point.seconds for point in item.curve]
    work = item.epochs_to_target if item.epochs_to_target is not None else item.samples_to_target
    return RunFacts(
        name=item.result_id, reached=_reached(program, item, values), seconds=item.seconds, epochs=work,
        quality=values[-1] if values else None,
        seed=str(item.seed) if item.seed is not None else None, backwards=times != sorted(times),
        stamped=_stamped(item) if program == "mlperf" else None, points=len(item.curve),
    )


def _reached(program: Program, item: PublishedResult, values: Sequence[float]) -> bool | None:
    """Return whether a run reached its target; a speed-run is complete (`ok`) also above it."""
    if item.status == "invalid":
        return None
    if program == "speedrun" and item.status == "ok":
        return values[-1] <= min(item.target.values())
    return item.status == "ok"


def _stamped(item: PublishedResult) -> bool | None:
    """Return whether the time is run_stop minus run_start."""
    if item.run_start_ms is None or item.run_stop_ms is None or item.seconds is None:
        return None
    return abs((item.run_stop_ms - item.run_start_ms) / 1e3 - item.seconds) <= APART_SECONDS


def _target(results: Sequence[PublishedResult]) -> str | None:
    """Return the target if all runs have the same; None if it is unknown."""
    found = {", ".join(f"{metric or 'quality'} {'<=' if item.direction.get(metric) == 'lower' else '>='} {value:g}"
                       for metric, value in sorted(item.target.items())) for item in results}
    return found.pop() or None if len(found) == 1 else None


def _hyperparameters(results: Sequence[PublishedResult]) -> dict[str, str]:
    """Return the hyper-parameters that every run of the cell logs."""
    found: dict[str, str] = {}
    logged = [dict(item.hyperparameters) | (
        {} if item.global_batch_size is None else {"global_batch_size": item.global_batch_size}) for item in results]
    for name, keys in LOGGED.items():
        values = [next((settings[key] for key in keys if key in settings), None) for settings in logged]
        if values and None not in values:
            found[name] = join(dict.fromkeys(map(str, values)))
    if results and all(item.epochs_to_target is not None or item.samples_to_target is not None for item in results
                       if item.status == "ok"):
        found["epochs"] = "as many as each run needed"
    return found


def _hardware(systems: Sequence[PublishedSystem]) -> str | None:
    texts = [f"{item.system_name or item.name}: {item.accelerators} x {item.accelerator}" for item in systems
            if item.accelerator and item.accelerators]
    return join(texts) if texts else None


def _stated(systems: Sequence[PublishedSystem], keys: Sequence[str]) -> str | None:
    texts = dict.fromkeys(item.other[key] for item in systems for key in keys if item.other.get(key))
    return join(texts) if texts else None
