"""Time of comparing as records grow: results made in memory, one new process per size."""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks.command import mebibytes
from repro.compare import compare, summarize
from repro.core.frozen import Frozen
from repro.core.machine import Machine
from repro.record.result.remarks import stated
from repro.record.result.results import Bracket, Result
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan, make_plan

SECONDS, MEBIBYTES = 10.0, 1024.0
"""Limits promised by the project for 100,000 results over 5,000 cells on two cores."""
SEED = 20151102


class Size(Frozen):
    """Size of one record, and the time and memory of comparing it."""

    results: int
    cells: int
    contrasts: int
    seconds: float
    """Time of comparisons and summaries of all cells; least of the repetitions."""
    cpu_seconds: float
    """Processor time of the same in this process, independent of other work on the machine."""
    peak_mebibytes: float
    """Memory of the whole process, including the results."""
    made_mebibytes: float
    """Memory of the process with the results, before comparing."""


class CompareScale(Frozen):
    """Seconds by size, and their growth."""

    sizes: tuple[Size, ...]
    exponent: float
    """Slope of log CPU seconds over log results, least squares."""
    exponent_interval: tuple[float, float] | None
    """95 % t interval; None for two sizes."""
    n_log_n: float
    """Slope of n log n over the same sizes."""

    def text(self) -> str:
        """Format the result for the terminal."""
        lines = ["comparing all cells of a record made in memory, one new process per size",
                 f"{'results':>9} {'cells':>7} {'contrasts':>9} {'seconds':>8} {'CPU s':>8} {'peak MiB':>9} "
                 f"{'before MiB':>10}"]
        lines += [f"{item.results:>9,} {item.cells:>7,} {item.contrasts:>9,} {item.seconds:>8.2f} "
                  f"{item.cpu_seconds:>8.2f} {item.peak_mebibytes:>9.0f} "
                  f"{item.made_mebibytes:>10.0f}" for item in self.sizes]
        shown = "" if self.exponent_interval is None else \
            f" (95 % interval {self.exponent_interval[0]:.2f} to {self.exponent_interval[1]:.2f})"
        lines += [f"CPU seconds grow as results^{self.exponent:.2f}{shown}; "
                  f"n log n would be results^{self.n_log_n:.2f} here",
                  f"promised for 100,000 results over 5,000 cells: {SECONDS:g} s and {MEBIBYTES:g} MiB",
                  "measured on this machine, now"]
        return "\n".join(lines)


def measure(cells: int = 5000, seeds: int = 20, sizes: int = 4, repetitions: int = 3) -> CompareScale:
    """Compare records of `cells` cells and repeated halves of that, `sizes` in all, each in a separate process.

    Args:
        seeds: results of a cell.
        repetitions: of every size; the fastest counts.

    Raises:
        ValueError: fewer than two sizes, or too few cells to halve.
    """
    counts = [cells >> shift for shift in reversed(range(sizes))]
    if sizes < 2 or counts[0] < 8:
        raise ValueError("needs at least two sizes, and eight cells in the smallest")
    context = multiprocessing.get_context("spawn")
    found = []
    for count in counts:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found.append(pool.submit(one_size, count, seeds, repetitions).result())
    return summary(found)


def summary(sizes: Sequence[Size]) -> CompareScale:
    """Compute the slope of log CPU seconds over log results, and that of n log n."""
    logs = [math.log(item.results) for item in sizes]
    slope, interval = _slope(logs, [math.log(item.cpu_seconds) for item in sizes])
    expected, _ = _slope(logs, [math.log(item.results * math.log(item.results)) for item in sizes])
    return CompareScale(sizes=tuple(sizes), exponent=slope, exponent_interval=interval, n_log_n=expected)


def _slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    from scipy.stats import linregress, t

    found: Any = linregress(x, y)
    slope = float(found.slope)
    if len(x) < 3:
        return slope, None
    half = float(t.ppf(0.975, len(x) - 2)) * float(found.stderr)
    return slope, (slope - half, slope + half)


def one_size(cells: int, seeds: int, repetitions: int) -> Size:
    """Make a record of about `cells` cells and compare it; runs in a separate process."""
    plan = made_plan(cells, seeds)
    results = made_results(plan)
    compare(plan, results[:seeds * 8])  # loads modules imported on first use
    made = peak_mebibytes()
    best, cpu, contrasts = math.inf, math.inf, 0
    for _ in range(repetitions):
        started, worked = time.perf_counter(), time.process_time()
        found = compare(plan, results)
        by_cell: dict[str, list[Result]] = {}
        for result in results:
            by_cell.setdefault(result.cell_id, []).append(result)
        for cell in plan.cells:
            summarize(cell, by_cell[cell.cell_id])
        best, cpu = min(best, time.perf_counter() - started), min(cpu, time.process_time() - worked)
        contrasts = len(found)
    return Size(results=len(results), cells=len(plan.cells), contrasts=contrasts, seconds=best, cpu_seconds=cpu,
                peak_mebibytes=peak_mebibytes(), made_mebibytes=made)


def peak_mebibytes() -> float:
    """Return the largest resident size of this process so far."""
    return mebibytes(resource.getrusage(resource.RUSAGE_SELF))


def made_plan(cells: int, seeds: int) -> Plan:
    """Make a plan of engine x processes x evaluation distance with about `cells` cells, four per distance."""
    distances = list(range(1, max(1, cells // 4) + 1))
    suite = Suite.model_validate({
        "suite": "made-for-a-benchmark", "seeds": seeds, "baseline": {"engine": "ddp"},
        "matrix": {"engine": ["ddp", {"kind": "deepspeed", "stage": 1}], "processes": [1, 2]},
        "trial": {"workload": "digits", "engine": "ddp", "batch": {"global": 64}, "evaluate_every": 1, "device": "cpu",
                  "optimizer": {"kind": "sgd", "lr": 0.1}, "stop": {"metric": "top1", "target": 0.9, "max_epochs": 8}},
    })
    small = make_plan(suite, Machine("cpu", 0, 2))
    made = tuple(_cell(cell, distance) for distance in distances for cell in small.cells)
    matrix = {**suite.matrix, "evaluate_every": distances}
    order = tuple((index, repeat) for repeat in range(seeds) for index in range(len(made)))
    larger = suite.model_copy(update={"matrix": matrix})
    return small.model_copy(update={"suite": larger, "cells": made, "order": order})


def _cell(cell: Cell, distance: int) -> Cell:
    choices: TrainingConfig = cell.training.model_copy(update={"evaluate_every": distance})
    return cell.model_copy(update={"choices": choices, "cell_id": f"{cell.cell_id}-{distance}",
                                   "label": f"{cell.label}, every {distance}"})


def made_results(plan: Plan) -> list[Result]:
    """Make one result per trial: log-normal times of 5 % spread; every tenth seed of every eighth cell misses its
    target.
    """
    generator = np.random.default_rng(SEED)
    found = []
    for index, repeat in plan.order:
        cell_id = plan.cells[index].cell_id
        missed = index % 8 == 7 and repeat % 10 == 9
        seconds = float(np.exp(generator.normal(0.0, 0.05))) * 100
        base: dict[str, Any] = {
            "trial_id": f"{cell_id}-s{repeat}", "cell_id": cell_id, "repeat": repeat, "attempt": 1,
            "run_seconds": 2 * seconds, "samples": 20_000, "samples_per_second": 10_000 / seconds,
            "hashes": {"init_weights": f"w{repeat}", "data_order": f"o{repeat}", "data": "d"},
        }
        if missed:
            found.append(Result(**base, status="missed", reasons=stated("made to miss")))
            continue
        samples = 10_000 + 64 * int(generator.integers(0, 8))
        bracket = Bracket(miss_samples=samples - 64, hit_samples=samples, miss_wall_seconds=seconds * 0.99,
                          hit_wall_seconds=seconds)
        found.append(Result(**base, status="ok", tta_wall=seconds, tta_train=seconds * 0.9, tta_cold=seconds + 3,
                            samples_to_target=samples, bracket=bracket))
    return found
