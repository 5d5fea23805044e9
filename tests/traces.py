"""Traces of the parity gate made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from repro.worker.gate.trace import Trace

STEPS, WORLD, MICROS = 10, 2, 2
NAMES = ("first.weight", "first.bias", "last.weight")
Values = dict[str, list[tuple[float, float]]]


def trace(rank: int | None, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Trace:
    """The files of a correct rank; None: the reference, which is fed everything in turn."""
    micros = range(WORLD * MICROS) if rank is None else [micro * WORLD + rank for micro in range(MICROS)]
    data: dict[str, Any] = {
        "rank": rank or 0, "steps": list(range(1, STEPS + 1)),
        "fed": [[(f"inputs {step} {micro}", f"targets {step} {micro}") for micro in micros] for step in range(STEPS)],
        "loss": [2.0 / (step + 1) for step in range(STEPS)],
        "gradients": {name: [(1 / (step + 1), 0.3 + size) for step in range(STEPS)] for size, name in enumerate(NAMES)},
        "weights": {name: [(10.0 + step, 4.0 - size) for step in range(STEPS)] for size, name in enumerate(NAMES)},
        "buffers": {},
        "evaluations": [{"step": STEPS - 1, "value": 0.5}, {"step": STEPS, "value": 0.52}],
        "effective": {},
    }
    change(data)
    return Trace.model_validate(data)


def set_norm(kind: str, name: str, step: int, norm: float) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        data[kind][name][step - 1] = (norm, data[kind][name][step - 1][1])
    return change


def evaluated(index: int, **fields: object) -> Callable[[dict[str, Any]], object]:
    """Change fields of one of the two evaluations."""
    return lambda data: data["evaluations"][index].update(fields)


def put(key: str, index: int, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda data: data[key].__setitem__(index, value)
