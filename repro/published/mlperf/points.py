"""Evaluation events of a log -> points: the time, the samples and the value of each."""

from __future__ import annotations

import re
from collections.abc import Iterable

from repro.published.mlperf.log import LogEvent
from repro.published.mlperf.rules import EpochUnit
from repro.published.record import PublishedPoint
from repro.published.untrusted.text import number, plain

MAX_WARNINGS = 20
CHECKPOINT_TIME = re.compile(r"timestamp=(\d{1,16}(?:\.\d{1,6})?)(?!\d)")
"""In the path of a checkpoint: milliseconds since 1970 at which it was taken."""


class Points:
    """Turns evaluation events into points and collects warnings."""

    def __init__(
        self, since: float, per_second: float, unit: EpochUnit, train_samples: int | None, batch: float | None
    ) -> None:
        self._since, self._per_second, self._unit, self._train_samples = since, per_second, unit, train_samples
        self._batch = batch
        self.warnings: list[str] = []
        self.afterwards = False
        """Evaluations name the time of their checkpoint: they were made after training."""

    def read(self, event: LogEvent) -> Iterable[PublishedPoint]:
        seconds = (self._time(event) - self._since) / self._per_second
        samples, epochs = self._progress(event)
        named = event.metadata.get("metric")
        name = named if isinstance(named, str) else ""
        values = event.value if isinstance(event.value, dict) else {name: event.value}
        for metric, value in list(values.items())[:8]:
            found = number(value)
            if found is None:
                self._warn(f"line {event.line}: the value of an evaluation is not a finite number")
            yield PublishedPoint(seconds=seconds, samples=samples, epochs=epochs, value=found, metric=plain(metric, 40))

    def _time(self, event: LogEvent) -> float:
        """Return the time of the state that was evaluated: its checkpoint's, if the evaluation names it."""
        found = CHECKPOINT_TIME.search(path) if isinstance(path := event.metadata.get("path"), str) else None
        milliseconds = number(float(found[1])) if found else None
        if milliseconds is None or not self._since <= milliseconds * self._per_second / 1e3 <= event.time:
            return event.time
        self.afterwards = True
        return milliseconds * self._per_second / 1e3

    def _progress(self, event: LogEvent) -> tuple[int | None, float | None]:
        """Return (samples, epochs) before the evaluation, as far as the log has them."""
        data = event.metadata
        counted, epoch = self._count(event, "samples_count"), self._count(event, "epoch_num")
        if self._unit == "steps":
            steps = self._count(event, "step_num")
            counted = steps * self._batch if counted is None and steps is not None and self._batch else counted
        if counted is None and self._unit == "samples" and "epoch_num" in data:
            counted = epoch
        epochs = epoch if self._unit == "epochs" else None
        if counted is None and epochs is not None and self._train_samples:
            counted = epochs * self._train_samples
        return None if counted is None or counted > 1e15 else round(counted), epochs

    def _count(self, event: LogEvent, name: str) -> float | None:
        if name not in event.metadata:
            return None
        found = number(event.metadata[name])
        if found is None or found < 0:
            self._warn(f"line {event.line}: {name} is not a count")
            return None
        return found

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
