"""Scenarios of a user who follows the advice under an open comparison to the letter, run after run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdicts.experiment import Experiment, simulated
from benchmarks.verdicts.scenario import DIFFERENT, OPEN, Judged, Scenario
from repro.compare import Comparison, compare

ROUNDS = 6
DESIGN: Mapping[str, Any] = {"looks": [10, 15, 20, 30], "spending": "power", "power": 2}
MOST = 60
"""Pairs beyond which the user gives up, so that a simulation ends."""


def advised_rounds() -> Iterator[Scenario]:
    """Yield equal cells, started with too few pairs, with ten, and with a sequential design."""
    for name, design in (("5 pairs", Experiment(5)), ("10 pairs", Experiment(10)), (
            "sequential", Experiment(30, sequential=json.dumps(DESIGN)))):
        yield _followed(f"advice followed, from {name}", design)


def _followed(name: str, first: Experiment) -> Scenario:
    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        design: Experiment | None = first
        for _ in range(ROUNDS):
            if design is None:
                return Judged(OPEN)
            run = simulated(design, generator)
            found = next(item for item in compare(run.plan, run.results) if item.primary)
            if found.verdict in DIFFERENT | {"same"}:
                return Judged(found.verdict)
            design = _next(design, found)
        return Judged(OPEN)

    return Scenario(name, "equal", judge, wrong=DIFFERENT)


def _next(design: Experiment, found: Comparison) -> Experiment | None:
    """Return the run that the advice asks for; None: it asks for none."""
    if found.advice is not None and found.advice.kind == "more_pairs":
        return replace(design, pairs=min(MOST, found.advice.n), sequential="")
    return None
