"""Results -> metrics: the figures that a result has, by the table in `repro.suite.metrics`."""

from __future__ import annotations

from typing import Any, Protocol

from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.metrics import METRICS, MetricSpec

FIGURES = (
    "tta_wall", "tta_train", "tta_cold", "run_seconds", "init_seconds", "samples_to_target", "epochs_to_target",
    "samples", "samples_per_second", "train_samples_per_second", "input_wait_seconds", "input_wait_share",
    "conservation_error", "observer_effect",
    "step_seconds", "step_seconds_mean", "tokens_per_second", "peak_bytes", "training_peak_mib",
    "training_peak_mib_sum", "init_peak_mib", "mfu", "joules_per_sample", "bytes_sent",
    "final", "best", "energy_joules_measured", "energy_joules_modelled", "version_lag", "clock_lag",
)
"""Fields of a result that tables and tracking stores show, in this order; metrics that are not among them follow."""


class Measured(Protocol):
    """What has metrics: a result, or a mean of several."""

    @property
    def status(self) -> str: ...

    def at(self, path: str) -> Any:
        """Return the value at a metric's path; None if it is missing."""


def read(result: Measured, spec: MetricSpec) -> Any:
    """Return the value at the metric's path; None if any part of it is missing."""
    return result.at(spec.path)


def figure(result: Measured, spec: MetricSpec) -> float | None:
    """Return the metric of one trial; None if the trial has none, or its end says nothing of the cell."""
    end = meaning(result.status)
    if not end.counts or (spec.to_target and not end.reached):
        return None
    value = read(result, spec)
    return None if value is None else float(value)


def figures_of(result: Result) -> dict[str, Any]:
    """Return all figures of a result by name, for tables and tracking stores."""
    found = {name: getattr(result, name) for name in FIGURES}
    return found | {spec.column: read(result, spec) for spec in METRICS.values() if spec.column not in found}
