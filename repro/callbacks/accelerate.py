"""`repro.watch` as a tracker of Hugging Face Accelerate."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

from repro import watch


class WatchTracker(GeneralTracker):
    """Reports what an `Accelerator` logs: `Accelerator(log_with=WatchTracker("val_loss"))`.

    The training starts with `init_trackers()` and stops with `end_training()`. The `step` of `log()` counts the
    optimizer's steps; a `log()` with the metric is an evaluation.
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

    @property
    def tracker(self) -> WatchTracker:
        """What `Accelerator.get_tracker(unwrap=True)` gives."""
        return self

    @on_main_process
    def start(self) -> None:
        """Report the start."""
        watch.started()

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **others: Any) -> None:
        """Report the step, and the quality if it is there."""
        if step is not None:
            watch.step(step)
        if self._metric in values:
            watch.evaluated(values[self._metric], self._metric, step=step)

    @on_main_process
    def finish(self) -> None:
        """Report the end."""
        watch.stopped()
