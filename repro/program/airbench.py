"""Reader of the table that cifar10-airbench prints.

Format: `print_columns` and `print_training_details` in airbench94_muon.py (commit 096d14d) and legacy/airbench94.py
(commit 1b8f794) of KellerJordan/cifar10-airbench: a header names the columns; a row after each epoch (counted from 0,
floats with four digits, empty where a value is not known yet); a last row whose epoch is `eval`. A run's first row
names it. The first run is `warmup`, on random labels.
"""

from __future__ import annotations

from typing import Literal

from repro.program import stated
from repro.program.observation import Line, Observation, OutputProblem
from repro.program.order import Order, quoted

CLOCK_COLUMNS = ("time_seconds", "total_time_seconds")
WARMUP, LAST = "warmup", "eval"
FINAL = "tta_val_acc"
"""The quality of the last row, which repeats the other one from the row before."""


class AirbenchReader:
    """Reads one run of the table. The rows of the warm-up state nothing; its end begins the training."""

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
            self._epochs = stated.count(row["epoch"], "epoch", line.text) + 1
        evaluated = row[self._metric] and (self._metric == FINAL or not last)
        return self._state("evaluation" if evaluated else "step", row, line)

    def _state(self, seen: Literal["start", "step", "evaluation"], row: dict[str, str], line: Line) -> Observation:
        clock = next((row[name] for name in CLOCK_COLUMNS if row.get(name)), None)
        return self._order.accept(Observation(
            seen, line.arrived_ns, line.read,
            epochs=float(self._epochs) if row else None,
            value=stated.quality(row[self._metric], line.text) if seen == "evaluation" else None,
            own_seconds=None if clock is None else stated.amount(clock, "time", line.text),
        ), line.text)
