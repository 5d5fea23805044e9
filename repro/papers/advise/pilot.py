"""The pilot of a suite: the same workers, one to three of them and three batches, a few steps of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from repro.core.devices import CPU, GPU
from repro.core.errors import UsageError
from repro.seams.training import Workload
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

SUFFIX = "-pilot"
SEEDS, WARMUP = 3, 3
WORKERS = (1, 2, 3)
"""Two numbers of workers that communicate tell latency and rate apart."""
BATCHES = (1, 2, 4)
"""Multiples of the samples that a worker has in a step."""
SET_BY_PILOT = ("processes", "batch.global", "batch.accumulation")
CONVOLUTIONS = {CPU: ("channels_last",), GPU: ("channels_last", "cudnn_benchmark")}
"""Options by which a device takes other convolution algorithms: by memory format, and cuDNN by timing them too."""


def families_of(plan: Plan, left_out: Collection[str] = (*SET_BY_PILOT, *CONVOLUTIONS[GPU])) -> dict[str, list[Cell]]:
    """Return the cells of a plan by what tells them apart, but for the factors `left_out`; "" if nothing does."""
    families: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        label = ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {value}" for key, value in cell.factors.items()
                          if key not in left_out)
        families.setdefault(label, []).append(cell)
    return families


def samples_of_worker(cell: Cell) -> int:
    """Return the samples that a worker of a cell of kind training has in a step."""
    return cell.training.batch.global_ // cell.training.processes


def pilot_suite(plan: Plan, steps: int) -> Suite:
    """Return the pilot of a suite: a worker has as many samples in a step as in the suite's first cell.

    Raises:
        UsageError: the suite does not train a model here.
    """
    share = _share(plan)
    wanted = {1: {factor * share for factor in BATCHES}, **{count: {count * share} for count in WORKERS[1:]}}
    return _variant(plan, f"{plan.suite.suite[: 64 - len(SUFFIX)]}{SUFFIX}", f"Pilot of {plan.suite.suite}", wanted,
                    steps, _convolutions(plan))


def check_suite(plan: Plan, workers: Sequence[int], steps: int) -> Suite:
    """Return the suite that measures what the pilot of a suite predicts: 1 worker, and each of `workers`.

    Raises:
        UsageError: the suite does not train a model here.
    """
    wanted = {count: {count * _share(plan)} for count in (1, *workers)}
    return _variant(plan, f"{plan.suite.suite[:58]}-check", f"Check of the advice for {plan.suite.suite}", wanted,
                    steps)


def _convolutions(plan: Plan) -> tuple[str, ...]:
    """Return the options to try on one worker: none if no model has convolutions, nor those that the suite sets."""
    shapes = [layer for cell in plan.cells for layer in cell.training.workload.get(Workload).layer_shapes or ()]
    if not any(layer.kernel for layer in shapes):
        return ()
    return tuple(name for name in CONVOLUTIONS[plan.cells[0].choices.device]
                 if name not in plan.suite.matrix and name not in plan.suite.trial)


def _share(plan: Plan) -> int:
    for cell in plan.cells:
        if not isinstance(cell.choices, TrainingConfig):
            raise UsageError(f"{plan.suite.suite}: {cell.label}: is of kind {cell.choices.kind}; advice is for suites "
                             "that train a model here")
        if not cell.choices.needs_parts:
            raise UsageError(f"{plan.suite.suite}: {cell.label}: simulates a training; advice is for suites that train "
                             "a model here")
    return samples_of_worker(plan.cells[0])


def _variant(
    plan: Plan, name: str, title: str, wanted: Mapping[int, Collection[int]], steps: int, tried: Sequence[str] = ()
) -> Suite:
    """Return the suite with other workers and batches, a few steps a trial, and without what is about accuracy.

    Args:
        wanted: workers -> global batches.
        tried: options that are off, and on for one worker with its own samples.
    """
    suite, batches = plan.suite, sorted(set().union(*wanted.values()))
    trial = {key: value for key, value in suite.trial.items() if key not in ("evaluate_every", "stop", "batch")}
    trial |= {
        "batch": {"global": batches[0], "accumulation": plan.cells[0].training.batch.accumulation},
        "stop": {"design": "fixed_steps", "steps": steps, "warmup": WARMUP},
    }
    # Of a suite that varies one factor at a time the pilot is that of its reference.
    many = slice(1) if suite.combine == "one_at_a_time" else slice(None)
    matrix = {key: levels[many] for key, levels in suite.matrix.items() if key not in SET_BY_PILOT}
    exclude = [{"processes": count, "batch.global": batch} for count in wanted for batch in batches
               if batch not in wanted[count]]
    alone = batches[0]
    exclude += [{name: True, "processes": count} for name in tried for count in wanted if count > 1]
    exclude += [{name: True, "batch.global": batch} for name in tried for batch in batches if batch != alone]
    kept = [item for item in suite.exclude if not set(item) & set(SET_BY_PILOT)]
    return Suite.model_validate({
        "suite": name, "title": title, "seeds": SEEDS, "trial": trial, "baseline": {"processes": 1},
        "matrix": {**matrix, "processes": sorted(wanted), "batch.global": batches,
                   **{name: [False, True] for name in tried}}, "exclude": [*kept, *exclude],
    })
