"""`repro.watch` as a tracker of Hugging Face Accelerate."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator, PartialState
from accelerate.tracking import GeneralTracker

from repro import watch


class WatchTracker(GeneralTracker):
    """Reports what an `Accelerator` logs: `Accelerator(log_with=WatchTracker("val_loss"))`.

    The training starts with `init_trackers()`, after `prepare()`, and stops with `end_training()`. The `step` of
    `log()` counts the optimizer's steps; a `log()` with the metric is an evaluation.
    """

    name = "repro"
    requires_logging_directory = False

    def __init__(self, metric: str) -> None:
        """
        Args:
            metric: Name under which the quality is logged.
        """
        super().__init__()
        self._metric = metric
        self._reports = False
        if watch.is_traced():
            _trace_all_ranks()

    @property
    def tracker(self) -> WatchTracker:
        """Return the object that `Accelerator.get_tracker(unwrap=True)` gives."""
        return self

    def start(self) -> None:
        """Report the start, in the main process."""
        self._reports = PartialState().is_main_process
        if self._reports:
            watch.started()

    def log(self, values: dict[str, Any], step: int | None = None, **others: Any) -> None:
        """Report the step, and the quality if it is there."""
        if self._reports and step is not None:
            watch.step(step)
        if self._reports and self._metric in values:
            watch.evaluated(values[self._metric], self._metric, step=step)

    def finish(self) -> None:
        """Report the end."""
        if self._reports:
            watch.stopped()


def _trace_all_ranks() -> None:
    """Begin the trace where a program calls `init_trackers`: Accelerate itself does so in the main process only."""
    begin = Accelerator.init_trackers

    def init_trackers(accelerator: Any, *args: Any, **named: Any) -> None:
        Accelerator.init_trackers = begin
        if not accelerator._models or not accelerator._optimizers:
            raise RuntimeError("to be traced, model and optimizer must be prepared (accelerator.prepare) before "
                               "accelerator.init_trackers")
        watch.trace(accelerator._models[0], accelerator._optimizers[0], accelerator.scaler)
        begin(accelerator, *args, **named)

    Accelerator.init_trackers = init_trackers
