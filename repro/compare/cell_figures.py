"""Figures of training by cell, in groups: medians over its trials, for tables that stand beside the verdicts.

They are described, not tested: a verdict on one of them needs `--metric`, or a suite that declares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from repro.record.result.results import Result
from repro.record.result.status import meaning


class Figure(NamedTuple):
    """One column of a table."""

    path: str
    """Field of a result, or of its model after a dot."""
    title: str
    unit: str
    """"" for a share or a count; "s" for a time."""


GROUPS: dict[str, tuple[Figure, ...]] = {
    "Speed": (
        Figure("step_seconds", "Step time, median", "s"), Figure("step_seconds_mean", "Step time, mean", "s"),
        Figure("train_samples_per_second", "Training throughput", "samples/s"),
        Figure("tokens_per_second", "Tokens a second", "tokens/s"), Figure("mfu", "MFU", ""),
    ),
    "Memory": (
        Figure("training_peak_mib", "Peak in training, largest rank", "MiB"),
        Figure("training_peak_mib_sum", "Sum over ranks", "MiB"), Figure("init_peak_mib", "Until training", "MiB"),
        Figure("state_mib_modelled", "Model states of a rank, modelled", "MiB"),
    ),
    "Input": (
        Figure("input_wait_seconds", "Wait for input a step, mean", "s"),
        Figure("input_wait_share", "Share of the step", ""),
    ),
    "Servers": (
        Figure("version_lag", "Version lag, mean", ""), Figure("clock_lag", "Clock lag, mean", ""),
        Figure("protocol.evaluation_delay_seconds", "Delay of an evaluation", "s"),
    ),
    "Energy": (Figure("joules_per_sample", "Measured energy a sample", "J"),),
    "Model": (
        Figure("model.parameters", "Parameters", ""), Figure("model.forward_flops", "Forward pass of a sample", "FLOP"),
    ),
}
"""Title of a group -> its figures."""


def cell_figures(results: Sequence[Result]) -> dict[str, float]:
    """Return path -> median over the trials that have the figure; {} for results of versions that had no such figures.

    A trial that failed tells nothing about its cell and is left out.
    """
    known = [item for item in results if item.step_seconds is not None and meaning(item.status).counts]
    found = {}
    for figure in (figure for group in GROUPS.values() for figure in group):
        if values := [value for item in known if (value := _read(item, figure.path)) is not None]:
            found[figure.path] = median(values)
    return found


def notes(results: Iterable[Result]) -> list[str]:
    """Return what a reader must know of the figures: what memory counts, whose peak MFU is a share of, or why there is
    none, what is modelled; each once."""
    found: dict[str, None] = {}
    for item in results:
        if item.memory:
            found.setdefault(MEMORY[item.memory])
        if item.state_mib_modelled is not None:
            found.setdefault(STATES)
        if item.model is not None and item.model.peak_flops:
            found.setdefault(f"MFU is a share of {item.model.peak_flops / 1e12:g} TFLOP/s a device, the stated peak of "
                             f"{item.model.device} ({item.model.peak_source})")
        elif item.model is not None and item.model.why:
            found.setdefault(f"no MFU: {item.model.why}")
    return list(found)


MEMORY = {
    "resident": "memory is the resident memory of a process, with the interpreter and its libraries; what processes "
                "share counts for each",
    "allocated": "memory is what torch allocated on the GPU, without its context and what its allocator holds in "
                 "reserve",
}
"""`Result.memory` -> what it counts."""
STATES = ("the memory of model states is modelled, not measured: weights, gradients, master weights and optimizer by "
          "the engine's formula, without activations, buckets and gathered weights")


def _read(result: Result, path: str) -> float | None:
    head, _, rest = path.partition(".")
    value = getattr(result, head)
    found: float | None = getattr(value, rest) if rest and value is not None else value
    return found
