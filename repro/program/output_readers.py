"""Readers of what programs print: by the regular expressions of a suite, or a form that well-known programs have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from repro.core.events import EVALUATION_KEYS, Event, parse_line
from repro.program.observation import Line, Observation, Order, OutputProblem, Reader, Seen, quoted
from repro.suite.kinds.evaluation import Evaluation, compile_pattern

NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
COUNT = re.compile(r"[0-9]{1,18}")
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
CLOCK_COLUMNS = ("time_seconds", "total_time_seconds")
WARMUP, LAST = "warmup", "eval"
FINAL = "tta_val_acc"
"""The quality of the last row, which repeats the other one from the row before."""
OLD = ":::MLL "
STEPS, SAMPLES, EPOCHS = ("step_num", "step"), ("samples_count", "sample_count"), ("epoch_num", "epoch_count")
SEEN: Mapping[str, Seen] = {"run_start": "start", "run_stop": "stop", "epoch_stop": "step", "block_stop": "step"}
LONGEST_EVENT = 1 << 16
"""Characters of a line that `LineSplitter` should keep for this reader: a cut event is none."""


class StartFinder:
    """Finds the first line with which a program says that its training begins, also one that is not ended yet: the
    first state of a progress bar."""

    def __init__(self, stated: Evaluation) -> None:
        self.is_needed = bool(stated.start)
        """The suite says that there is one; False: it is that of a ready pattern, which may lack it."""
        self._pattern = compile_pattern("start", stated.begins)
        self._beside_files = stated.reads_file
        self.found = False

    def take(self, line: Line) -> list[Observation]:
        """Return the start if this is the line."""
        if self.found or self._pattern.find(line.text.encode()) is None:
            return []
        self.found = True  # reads of a file have their own numbers
        return [Observation("start", line.arrived_ns, -line.read if self._beside_files else line.read)]


class PatternReader(Reader):
    """Finds observations by patterns. A group that took no part in a match states nothing."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        """Args:
            patterns: by their names in `repro.suite.kinds.evaluation.GROUPS`.

        Raises:
            FieldProblem: as `compile_pattern`.
        """
        self._patterns = {name: compile_pattern(name, text) for name, text in patterns.items()}
        self._order = Order()
        context = self._patterns.get("context")
        self._context = dict.fromkeys(context.names, "0") if context is not None else {}
        """What lines before the first of its kind hold: nothing is trained yet."""
        self._ended = False

    def take(self, line: Line) -> Observation | None:
        """Return what the next line states; None if nothing, and for every line after the end of the training.

        Raises:
            OutputProblem: a number is none, or as `Order.accept`.
        """
        if self._ended:
            return None
        raw = line.text.encode()
        context = self._find("context", raw)
        if context is not None:
            self._context = context
        evaluation = self._find("evaluation", raw)
        if evaluation is not None:
            return self._observation("evaluation", {**self._context, **evaluation}, line)
        progress = self._find("progress", raw)
        if progress is not None:
            return self._observation("step", progress, line)
        if self._find("stop", raw) is not None:
            self._ended = True
            return self._observation("stop", {}, line)
        return None

    def _find(self, name: str, raw: bytes) -> dict[str, str] | None:
        """Return the groups that a pattern finds; None if it is not given or does not match."""
        pattern = self._patterns.get(name)
        return None if pattern is None else pattern.find(raw)

    def _observation(self, seen: Seen, groups: Mapping[str, str], line: Line) -> Observation:
        text = line.text
        value, step, samples, epoch = (groups.get(name) for name in ("value", "step", "samples", "epoch"))
        return self._order.accept(Observation(
            seen, line.arrived_ns, line.read,
            step=None if step is None else read_count(step, "step", text),
            samples=None if samples is None else read_count(samples, "samples", text),
            epochs=None if epoch is None else read_amount(epoch, "epoch", text),
            value=None if value is None else read_quality(value, text),
            own_seconds=own_seconds(groups, text),
        ), text)


def own_seconds(groups: Mapping[str, str], line: str) -> float | None:
    """Return the training time that the program states, in seconds; None if it states none.

    Raises:
        OutputProblem: it is no time, or `train_time` has no unit of `SECONDS`.
    """
    if "train_ms" in groups:
        return read_amount(groups["train_ms"], "train time", line) / 1e3
    if "train_s" in groups:
        return read_amount(groups["train_s"], "train time", line)
    if "train_time" not in groups:
        return None
    text = groups["train_time"]
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(digits):].strip()
    if unit not in SECONDS:
        raise OutputProblem(f"train time {quoted(text)} has no unit of {', '.join(SECONDS)}: {quoted(line)}")
    return read_amount(digits, "train time", line) * SECONDS[unit]


class EndReader(Reader):
    """Reads nothing but the line with which training ends, if there is one: only the time counts."""

    def __init__(self, stop: str) -> None:
        """Args:
            stop: its regular expression; "": the end of the process.
        """
        self._stop = compile_pattern("stop", stop) if stop else None

    def take(self, line: Line) -> Observation | None:
        if self._stop is None or self._stop.find(line.text.encode()) is None:
            return None
        self._stop = None
        return Observation("stop", line.arrived_ns, line.read)


class AirbenchReader(Reader):
    """Reads one run of the table that cifar10-airbench prints.

    Format: `print_columns` and `print_training_details` in airbench94_muon.py (commit 096d14d) and legacy/airbench94.py
    (commit 1b8f794) of KellerJordan/cifar10-airbench: a header names the columns; a row after each epoch (counted from
    0, floats with four digits, empty where a value is not known yet); a last row whose epoch is `eval`. A run's first
    row names it. The first run is `warmup`, on random labels: its rows state nothing, and its end begins the training.
    """

    states_start = True

    def __init__(self, metric: str) -> None:
        """Args:
            metric: val_acc, after each epoch; tta_val_acc, once, at the end.
        """
        self._metric = metric
        self._columns: list[str] = []
        self._order = Order()
        self._run: str | None = None
        self._epochs = 0

    def take(self, line: Line) -> Observation | None:
        """Return what the next line states; None if it is no row of the run.

        Raises:
            OutputProblem: the table lacks the quality, a number is none, or a second run begins: a trial is one.
        """
        text = line.text
        if not (text.startswith("|") and text.rstrip().endswith("|")):
            return None
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if "epoch" in cells and "run" in cells:
            if self._metric not in cells:
                raise OutputProblem(f"the table has no column {self._metric}: {quoted(text)}")
            self._columns = cells
            return None
        if len(cells) != len(self._columns):
            return None
        return self._row(dict(zip(self._columns, cells, strict=True)), line)

    def _row(self, row: dict[str, str], line: Line) -> Observation | None:
        if row["run"]:
            if self._run not in (None, WARMUP):
                raise OutputProblem(f"run {row['run']} begins after run {self._run}: {quoted(line.text)}; a trial is "
                                    "one training, so let the script make one run")
            self._run = row["run"]
        last = row["epoch"] == LAST
        if self._run == WARMUP:
            return self._state("start", {}, line) if last else None
        if not last:
            self._epochs = read_count(row["epoch"], "epoch", line.text) + 1
        evaluated = row[self._metric] and (self._metric == FINAL or not last)
        return self._state("evaluation" if evaluated else "step", row, line)

    def _state(self, seen: Literal["start", "step", "evaluation"], row: dict[str, str], line: Line) -> Observation:
        clock = next((row[name] for name in CLOCK_COLUMNS if row.get(name)), None)
        return self._order.accept(Observation(
            seen, line.arrived_ns, line.read,
            epochs=float(self._epochs) if row else None,
            value=read_quality(row[self._metric], line.text) if seen == "evaluation" else None,
            own_seconds=None if clock is None else read_amount(clock, "time", line.text),
        ), line.text)


class MllogReader(Reader):
    """Finds observations in the `:::MLLOG` lines that MLPerf's reference implementations log.

    Keys: run_start, run_stop, the key of the quality, and block_stop and epoch_stop as progress, with `epoch_num`,
    `samples_count` and `step_num` in their metadata (mlperf_logging.mllog.constants, training rules 4.0). The program's
    own clock is its `time_ms` since its run_start.
    """

    states_start = True
    longest_line = LONGEST_EVENT

    def __init__(self, key: str = EVALUATION_KEYS[0]) -> None:
        self._key = key
        self._seen: Mapping[str, Seen] = {**SEEN, key: "evaluation"}
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
        if event is None or event.key not in self._seen:
            return None
        seen = self._seen[event.key]
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


def read_quality(text: str, line: str) -> float:
    """Return a quality; nan and infinities are values.

    Raises:
        OutputProblem: it is no number: a unit, a comma or a percent sign is none.
    """
    if NUMBER.fullmatch(text) is None:
        raise OutputProblem(f"the quality {quoted(text)} is no number: {quoted(line)}")
    return float(text)


def read_count(text: str, what: str, line: str) -> int:
    """Return a number of steps or samples.

    Raises:
        OutputProblem: it is no whole number of at most 18 digits.
    """
    if COUNT.fullmatch(text) is None:
        raise OutputProblem(f"{what} {quoted(text)} is no whole number: {quoted(line)}")
    return int(text)


def read_amount(text: str, what: str, line: str) -> float:
    """Return epochs or a time.

    Raises:
        OutputProblem: it is no finite number of at least 0.
    """
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    if not 0 <= number < math.inf:
        raise OutputProblem(f"{what} {quoted(text)} is no number of at least 0: {quoted(line)}")
    return number
