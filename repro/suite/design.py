"""What the target of a design judges, and by which metric; designs that the command line can choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from repro.suite.metrics import DEFAULT, DEFAULT_OF_A_CONTEST, DEFAULT_WITHOUT_TARGET

Judges = Literal["trial", "mean", "nothing"]
"""What a target judges. trial: whether each trial reached it. mean: the mean quality of all trials at their end (design
contest). nothing: there is none."""
JUDGES: Mapping[str, Judges] = {
    "stop_at_target": "trial", "fixed_budget": "trial", "contest": "mean", "fixed_steps": "nothing",
    "end": "nothing", "repeats": "nothing",
}
"""`stop.design` of a cell -> what its target judges; `end` is that of a program of which only the time counts,
`repeats` that of a measurement."""
FULL_BUDGET = ("fixed_budget", "contest")
"""Values of `stop.design` with which trials train to the end of their epochs, whatever their quality."""
DEFAULT_METRICS: Mapping[Judges, str] = {
    "trial": DEFAULT, "mean": DEFAULT_OF_A_CONTEST, "nothing": DEFAULT_WITHOUT_TARGET}
"""The metric by which cells are compared where no contrast is declared; not of measurements."""
LEAST_REPEATS = 5
"""Trials of each cell that a result needs (method.md section 3); fewer make a smoke test."""
PlanKind = Literal["suite", "tuning", "reproduction", "calibration", "shard"]


def judges_of_all(found: Collection[Judges]) -> Judges:
    """Return what the target of several cells judges; no suite has cells that differ in it."""
    return "mean" if "mean" in found else "nothing" if "nothing" in found else "trial"


def claim_text(metric: str, direction: str, target: float, alpha: float) -> str:
    """Return the claim of a contest in words: `mean val_loss of at most 3.28 over all runs, p < 0.01`."""
    side = "at most" if direction == "lower" else "at least"
    return f"mean {metric} of {side} {target:g} over all runs, p < {alpha:g}"


@dataclass(frozen=True, slots=True)
class ChosenDesign:
    """A design chosen on the command line, for a suite that declares none."""

    option: str
    fields: Mapping[str, Any]
    seeds: int


UNTIL_SETTLED = ChosenDesign(
    "--until-settled", {"looks": [8, 12, 18, 27, 40], "spending": "power", "power": 1.0}, 40)
ANYTIME = ChosenDesign("--anytime", {"anytime": True}, 200)
