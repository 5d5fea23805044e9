"""Facts of a record of this harness."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from repro.audit.rules.facts import CellFacts, DataFacts, Facts, RunFacts
from repro.compare.evidence.repeated import repeated_in
from repro.compare.findings import findings
from repro.core.frozen import canonical
from repro.record.derive.trial_log import reached
from repro.record.environment.environment import DataSet
from repro.record.folder.store import Record
from repro.record.result.remarks import joined
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.kinds.kinds import AnyStop, AnyTrialConfig
from repro.suite.kinds.program import ProgramConfig
from repro.suite.kinds.training import TrainingConfig
from repro.suite.metrics import METRICS
from repro.suite.planning.cell import Cell

PARAMETERS = {
    "optimizer": ("optimizer", "optim", "opt"), "momentum": ("momentum", "beta1", "betas"),
    "weight decay": ("weight_decay", "wd"), "learning rate": ("lr", "learning_rate"),
    "schedule": ("schedule", "scheduler", "lr_schedule", "lr_scheduler"), "initialisation": ("init", "initialisation"),
    "batch per worker": ("batch_per_worker", "micro_batch", "per_device_batch_size", "per_device_train_batch_size"),
    "epochs": ("epochs", "num_epochs", "max_epochs", "num_train_epochs"),
}
"""Names under which a program's parameters state the hyper-parameters of the rules."""
MEANS = {"costs": "median", "rates": "median", "ratios": "geometric mean"}
"""The means that this harness uses (method.md section 4)."""


def record_facts(record: Record) -> Facts:
    """Return everything that the rules need from a record; of the disk only the tuning below it is read."""
    plan, environment = record.plan, record.environment
    by_cell: dict[str, list[Result]] = {}
    for item in sorted(record.results, key=lambda result: result.repeat):
        by_cell.setdefault(item.cell_id, []).append(item)
    found = findings(record)
    compared, devices = found.comparisons, ", ".join(environment.devices) or environment.device
    programs = all(isinstance(cell.choices, ProgramConfig) for cell in plan.cells)
    return Facts(
        origin="record", title=plan.suite.suite,
        programs=programs,
        no_target=not plan.design.has_target, measurements=plan.measures,
        cells=tuple(_cell(record, cell, by_cell.get(cell.cell_id, [])) for cell in plan.cells),
        comparisons=compared, contrasts=tuple((item.candidate, item.baseline) for item in compared),
        declared=plan.suite.primary is not None or bool(plan.suite.contrasts), declared_effects=plan.suite.contrasts,
        data=tuple(_data(item) for item in environment.data),
        hardware=f"{environment.cpu}, {environment.cores} cores, {devices}" if environment.cpu else None,
        interconnect=environment.interconnect or None,
        software=() if programs else tuple(f"{name} {version}" for name, version in environment.libraries.items()),
        system=f"{environment.system}, {environment.python}", commit=environment.commit, dirty=environment.dirty,
        varied=tuple(plan.suite.matrix), skipped=tuple((item.label, item.reason) for item in plan.skipped),
        excluded=len(plan.suite.exclude), missing=len(record.missing()),
        attempts=record.attempts, tuning=found.tuning, untuned_optimizers=found.untuned_optimizers,
        means=MEANS, agreements=found.convergence, parity=_parity(record.parity),
        ungated=(record.parity or {}).get("skipped") or {},
    )


def _cell(record: Record, cell: Cell, results: Sequence[Result]) -> CellFacts:
    choices = cell.choices
    stop = choices.stop
    suite = record.plan.suite
    metric = suite.default_metric if stop.has_target else suite.metric
    summary = findings(record).summary(cell.cell_id, metric)
    return CellFacts(
        cell_id=cell.cell_id, label=cell.label, workers=choices.processes, global_batch=choices.global_batch,
        runs=tuple(_run(record.plan.master_seed, item, choices) for item in results),
        model=json.dumps(choices.workload.model_dump(mode="json"), sort_keys=True)
        if isinstance(choices, TrainingConfig) else None,
        target="" if not stop.has_target else
        f"{stop.metric} {'<=' if stop.direction == 'lower' else '>='} {stop.target:g}",
        others=canonical(choices, exclude={"processes", "batch"}),
        hyperparameters=_of_training(choices, results) if isinstance(choices, TrainingConfig) else
        _of_program(choices) if isinstance(choices, ProgramConfig) else {},
        determinism=None if isinstance(choices, ProgramConfig) else choices.repeatability,
        planned=record.due_of(cell.cell_id), median=summary.median, unit=METRICS[metric].unit,
        # Of the median or, if runs missed, of the restricted mean or the success rate.
        interval=summary.interval is not None or (summary.n > max(1, summary.ok) and summary.success is not None),
        bandwidth=min((item.network.slowest for item in results if item.network), default=None),
        loopback=record.environment.device == "cpu" and not record.nodes.nodes
        and not isinstance(choices, ProgramConfig) and all(item.network is None for item in results),
        simulated=choices.origin == "simulated", repeated=joined(repeated_in(cell, results)),
    )


def _run(master_seed: int, item: Result, choices: AnyTrialConfig) -> RunFacts:
    seeded = choices.takes_seed if isinstance(choices, ProgramConfig) else True
    wall = [point.wall_seconds for point in item.curve]
    traffic = item.traffic
    return RunFacts(
        name=item.trial_id, reached=_reached(item, choices.stop), seconds=item.tta_wall, epochs=item.epochs_to_target,
        quality=item.best if item.best is not None else item.final,
        throughput=item.samples_per_second, seed=f"{master_seed}/{item.repeat}" if seeded else None,
        drawn=_drawn(item.hashes),
        weights="final_weights" in item.hashes, every_rank=item.every_rank, initial=item.hashes.get("init_weights"),
        unexplained=item.conservation_error, backwards=wall != sorted(wall), stamped=item.run_seconds is not None,
        steps=item.steps is not None or item.operation is not None, points=len(item.curve),
        communicated=traffic is not None and not traffic.uncounted_share > 0.5,
        expected=(traffic is not None and traffic.formula is not None) or (
            item.operation is not None and any(each.label == "modelled" for each in item.operation.figures)),
    )


def _reached(item: Result, stop: AnyStop) -> bool | None:
    """Return None for an end that tells nothing of the cell; a run of a contest is `ok` also short of its target."""
    end = meaning(item.status)
    if stop.judges == "mean" and end.reached:
        return reached(item.final, stop)
    return end.reached if end.counts else None


def _drawn(hashes: Mapping[str, str]) -> str | None:
    """Return the hashes of what the seed drew; None if one is missing."""
    names = ("init_weights", "data_order")
    return "/".join(hashes[name] for name in names) if all(name in hashes for name in names) else None


def _of_training(choices: TrainingConfig, results: Sequence[Result]) -> dict[str, str]:
    """Return the hyper-parameters, defaults included; hashes in the runs identify the initial weights."""
    options: dict[str, Any] = choices.optimizer.model_dump(mode="json")
    momentum = options.get("momentum", options.get("betas"))
    found = {
        "optimizer": choices.optimizer.label, "momentum": str(momentum) if momentum is not None else "none",
        "weight decay": str(options.get("weight_decay", "none")), "learning rate": f"{choices.rate:g}",
        "schedule": json.dumps(choices.schedule.model_dump(mode="json"), sort_keys=True),
        "batch per worker": str(choices.micro_batch * choices.batch.accumulation),
        "global batch": str(choices.batch.global_), "epochs": f"{choices.budget_epochs:g} at most",
    }
    if results and all("init_weights" in item.hashes for item in results if meaning(item.status).counts):
        found["initialisation"] = "drawn from the seed; hash of the weights recorded for every run"
    return found


def _of_program(choices: ProgramConfig) -> dict[str, str]:
    """Return the hyper-parameters that the suite states of a program."""
    found = {name: str(choices.parameters[own]) for name, names in PARAMETERS.items()
             for own in names if own in choices.parameters}
    if choices.global_batch is not None:
        found["global batch"] = str(choices.global_batch)
        if choices.global_batch % choices.processes == 0:
            found.setdefault("batch per worker", str(choices.global_batch // choices.processes))
    return found


def _data(item: DataSet) -> DataFacts:
    return DataFacts(
        name=item.name, version=item.version or None, digest=item.sha256 or None, train_samples=item.train_samples,
        eval_samples=item.eval_samples, licence=item.licence or None, source=item.source or None,
        synthetic=item.synthetic, test_views=item.test_views,
    )


def _parity(found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return None
    if any(item.get("problem") for item in found.get("findings", [])):
        return "failed"
    if found.get("skipped"):
        return None  # engines that were not compared
    return "passed" if found.get("needed", True) else "not needed"
