"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from repro.cli.terminal import Console, line
from repro.compare.figures import Comparison
from repro.core.errors import one_line
from repro.core.numbers import ratio_texts
from repro.record.folder.ledger import Look
from repro.record.result.results import Result
from repro.suite.kinds.stop import Stop
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell
from repro.suite.quality import Quality

Told = Callable[[Mapping[str, Any]], None] | None
"""What is called with each event of a run; None: nothing is."""
QUIET_SECONDS = 60.0
"""Without a terminal, the least time between two lines of one trial: a short trial has the one of its end."""


class TerminalWatcher:
    """Shows on stderr the number of the trial, the current value, the throughput and the time left.

    A warning that repeats is shown once, and counted at the end.
    """

    def __init__(self, console: Console | None = None, told: Told = None) -> None:
        """Start to watch.

        Args:
            told: is also called with each event; what it raises is shown as a warning, and ends nothing.
        """
        self._told = told
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._number = self._count = 0
        self._next_look: int | None = None
        self._label = self._metric = ""
        self._until = "target"
        self._quality: Quality | None = None
        self._spent: list[float] = []
        self._warned: dict[str, list[str]] = {}
        self._trial_started = self._shown_at = self._started
        self._epochs: float | None = None
        """Most epochs of the trial that runs; None: it has no such budget."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
                   TextColumn("{task.fields[now]}", markup=False))
        # Two refreshes a second: drawing must not slow down what is being measured.
        self._bar = Progress(*columns, console=self.console, refresh_per_second=2, transient=True)
        self._task = self._bar.add_task("starting", total=None, now="")
        self._live = self.console.is_terminal

    def __enter__(self) -> TerminalWatcher:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bar.stop()
        for first, *others in self._warned.values():
            if others:
                self.console.print(line(f"{first} (the first of {1 + len(others)} like it)"))

    def _tell(self, event: str, **figures: Any) -> None:
        if self._told is None:
            return
        try:
            self._told({"event": event, **figures})
        except Exception as error:  # a user's code: it must not end a run
            told, self._told = self._told, None
            self.stage(f"warning: on_event raised {type(error).__name__}: {one_line(str(error))}")
            self._told = told

    def stage(self, text: str) -> None:
        self._tell("stage", text=text)
        if text.startswith("warning: "):
            alike = self._warned.setdefault(re.sub(r"[\d.,]+", "#", text), [])
            alike.append(text)
            if len(alike) > 1:
                return
        self.console.print(line(text))

    def trial_started(
        self, number: int, count: int, trial: Trial, cell: Cell, next_look: int | None = None,
    ) -> None:
        self._tell("trial_started", number=number, count=count, trial_id=trial.trial_id, cell=cell.label,
                   seed=trial.repeat, next_look=next_look)
        self._next_look = next_look
        self._number, self._count, self._label = number, count, f"{cell.label}, seed {trial.repeat}"
        self._metric, self._quality = trial.choices.stop.metric, trial.choices.quality
        self._trial_started = self._shown_at = time.monotonic()
        stop = trial.choices.stop
        self._epochs = stop.max_epochs if isinstance(stop, Stop) else None
        self._until = "end" if trial.choices.stop.judges == "mean" else "target"
        self._bar.update(self._task, description=f"trial {number} of {count}: {self._label}", total=count,
                         completed=number - 1, now=self._left())

    def trial_ticked(self, value: float | None, epochs: float, samples_per_second: float | None) -> None:
        self._tell("trial_ticked", value=value, epochs=epochs, samples_per_second=samples_per_second)
        shown = "not finite" if value is None else self._shown(value)
        tokens = self._quality.tokens(samples_per_second) if self._quality else None
        rate = "" if not samples_per_second else (
            f", {samples_per_second:,.0f} samples/s" if tokens is None else f", {tokens:,.0f} tokens/s")
        left = self._left() or self._most_left(epochs)
        text = f"{self._metric} {shown} at epoch {epochs:.1f}{rate}{left}"
        if self._live:
            self._bar.update(self._task, now=text)
        elif time.monotonic() - self._shown_at > QUIET_SECONDS:
            self._shown_at = time.monotonic()
            self.console.print(line(f"  {self._label}: {text}"))

    def trial_ended(self, result: Result, seconds: float) -> None:
        self._tell("trial_ended", trial_id=result.trial_id, status=result.status, final=result.final,
                   tta_wall_seconds=result.tta_wall, seconds=seconds)
        self._spent.append(seconds)
        width = len(str(self._count))
        end = (f"{self._metric} {self._shown(result.final)}" if result.final is not None
               else result.reason or _speed(result))
        clock = f", {self._until} after {result.tta_wall:.2f} s" if result.tta_wall is not None else ""
        reason = f" ({result.reason})" if result.reason and result.final is not None else ""
        self.console.print(line(f"[{self._number:>{width}}/{self._count}] {self._label}: {result.status}, {end}{clock}"
                                f"{reason}{self._left(1)}"))

    def _shown(self, value: float) -> str:
        derived = self._quality.words(value) if self._quality else ""
        return f"{value:.4f}" + (f" ({derived})" if derived else "")

    def look_taken(self, look: Look, found: Comparison) -> None:
        self._tell("look_taken", number=look.number, n=look.n, ratio=look.ratio, decision=look.decision)
        self.console.print(line(look_line(look)))

    def _left(self, done: int = 0) -> str:
        """Return the time left, estimated from the mean duration of the trials so far."""
        ended = self._number - 1 + done
        if not self._spent or ended >= self._count:
            return ""
        each = sum(self._spent) / len(self._spent)
        whole = duration(each * (self._count - ended))
        if self._next_look in (None, self._count):
            return f", about {whole} left"
        if self._next_look == ended:
            return f", at most {whole} left"
        return f", about {duration(each * (self._next_look - ended))} to the next look, at most {whole} left"

    def _most_left(self, epochs: float) -> str:
        """Return the time left before any trial has ended: the others like this one, each with its whole budget."""
        if not self._epochs or epochs <= 0:
            return ""
        spent = time.monotonic() - self._trial_started
        seconds = spent * self._epochs / epochs * ((self._next_look or self._count) - self._number + 1) - spent
        until = "to the next look" if self._next_look else "left"
        return f", about {duration(seconds)} {until} if all use their whole budget"


def _speed(result: Result) -> str:
    """Return the speed of a trial without evaluations."""
    if result.operation is not None:
        operation = result.operation
        return (f"{operation.items_per_second:,.4g} {operation.items}/s, {1e3 * operation.median_seconds:.3g} ms an "
                "operation")
    step, rate = result.step_seconds, result.train_samples_per_second
    if step is None and result.run_seconds is not None:
        return f"{result.run_seconds:.3g} s"
    return "" if step is None or rate is None else f"{rate:,.0f} samples/s, {1e3 * step:.3g} ms a step"


def duration(seconds: float) -> str:
    """Return seconds rounded to a readable unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def look_line(look: Look) -> str:
    """Return a look as one line."""
    if look.ratio is None:
        figures = "no ratio"
    else:
        ends = (look.low, look.high) if look.low is not None and look.high is not None else ()
        ratio, *limits = ratio_texts([look.ratio, *ends])
        figures = f"ratio {ratio}" + (f" ({' to '.join(limits)})" if limits else "")
    tests = [f"{name} {p:.2g} (needs {level:.2g})" for name, p, level in (
        ("p", look.p, look.nominal), ("same p", look.same_p, look.same_nominal)) if p is not None]
    follows = {"settled": f"settled: {look.verdict}", "continues": "continues", "last": "the last look: not settled",
               "failed": "a trial failed: no verdict until it has run again"}[look.decision]
    return f"look {look.number} of {look.of}, {look.n} pairs: {', '.join([figures, *tests])}; {follows}"
