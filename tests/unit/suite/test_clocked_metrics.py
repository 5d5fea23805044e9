"""Which figures depend on the speed of the machine, in which direction, and which contain time lost before a resume."""

from __future__ import annotations

from repro.suite.metrics import METRICS

CLOCKED = {"tta_wall": 1, "tta_train": 1, "tta_cold": 1, "end_wall": 1, "end_train": 1, "end_cold": 1,
           "throughput": -1, "train_throughput": -1, "tokens": -1,
           "step_time": 1, "mfu": -1, "input_wait": 1, "energy": 1, "operation_time": 1,
           "operation_throughput": -1}
OTHERS = {"samples", "accuracy", "peak_memory", "traffic", "controller_bytes", "worker_bytes", "busiest_bytes"}


def test_every_metric_is_a_figure_of_a_clock_or_is_not() -> None:
    assert {name: int(spec.drift_sign) for name, spec in METRICS.items() if spec.clocked} == CLOCKED
    assert {name for name, spec in METRICS.items() if not spec.clocked} <= OTHERS


def test_time_lost_before_a_resume_is_in_no_figure_of_steps_alone() -> None:
    assert {name for name, spec in METRICS.items() if spec.has_lost_time} == {
        "tta_wall", "tta_train", "tta_cold", "end_wall", "end_train", "end_cold", "throughput", "energy"}
