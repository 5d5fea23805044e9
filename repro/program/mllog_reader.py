"""Reader of the lines that MLPerf's reference implementations log.

Keys: run_start, run_stop, the key of the quality, and block_stop and epoch_stop as progress, with `epoch_num`,
`samples_count` and `step_num` in their metadata (mlperf_logging.mllog.constants, training rules 4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.core.events import EVALUATION_KEYS, Event, parse_line
from repro.program.observation import Line, Observation, OutputProblem, Seen
from repro.program.order import Order, quoted

OLD = ":::MLL "
STEPS, SAMPLES, EPOCHS = ("step_num", "step"), ("samples_count", "sample_count"), ("epoch_num", "epoch_count")
PROGRESS = ("epoch_stop", "block_stop")
LONGEST = 1 << 16
"""Characters of a line that `LineSplitter` should keep for this reader: a cut event is none."""


class MllogReader:
    """Finds observations in `:::MLLOG` lines. The program's own clock is its `time_ms` since its run_start."""

    def __init__(self, key: str = EVALUATION_KEYS[0]) -> None:
        """Args:
            key: key of the quality.
        """
        self._key = key
        self._order = Order()
        self._began_ms: float | None = None

    def take(self, line: Line) -> Observation | None:
        """Return what the next line states; None if it has no event that matters.

        Raises:
            OutputProblem: the older form of these lines, two runs, a quality that is no number, or as `Order.accept`.
        """
        if ":::ML" not in line.text:
            return None
        if OLD in line.text:
            raise OutputProblem(f"a line of MLPerf's form before 2020, which is not read from programs: "
                                f"{quoted(line.text)}; log with `:::MLLOG` (mlperf_logging.mllog)")
        event = parse_line(line.text)
        seen = None if event is None else self._seen(event)
        if event is None or seen is None:
            return None
        if seen == "start":
            if self._began_ms is not None:
                raise OutputProblem(f"a second run_start: {quoted(line.text)}; a trial is one training, and one "
                                    "process logs")
            self._began_ms = event.time_ms
        data = event.metadata
        return self._order.accept(Observation(
            seen, line.arrived_ns, line.read, step=_count(data, STEPS), samples=_count(data, SAMPLES),
            epochs=_number(data, EPOCHS), value=self._quality(event, line) if seen == "evaluation" else None,
            own_seconds=None if self._began_ms is None else (event.time_ms - self._began_ms) / 1e3,
            own_ns=event.nanoseconds,
        ), line.text)

    def _seen(self, event: Event) -> Seen | None:
        if event.key == self._key:
            return "evaluation"
        if event.key in ("run_start", "run_stop"):
            return "start" if event.key == "run_start" else "stop"
        return "step" if event.key in PROGRESS else None

    def _quality(self, event: Event, line: Line) -> float:
        if isinstance(event.value, bool) or not isinstance(event.value, (int, float)):
            raise OutputProblem(f"{self._key} {event.value!r} is no number: {quoted(line.text)}")
        return float(event.value)


def _number(data: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    value = next((data[name] for name in names if name in data), None)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(data: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    value = _number(data, names)
    return int(value) if value is not None and value.is_integer() else None
