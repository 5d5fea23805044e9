"""Read what a program reports through `repro.watch`: the named pipe, and the reader of its lines."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from repro.core.errors import OutputError, one_line
from repro.core.frozen import Frozen
from repro.program.observation import Line, Observation, OutputProblem, Reader, Seen

LONGEST_LINE = 4096
"""Bytes; longer than any line of `repro.watch`."""
READ_SIZE = 65536
SHOWN = 200
"""Longest part of a line that a message shows, characters."""
MOST = 2 ** 63
"""Above every number of steps or samples."""
LATEST_SECONDS = 1.0
"""Starts, stops and evaluations are written when they happen: of one that arrives later than this after its own time,
the two times are bounds."""


class WatchPipe:
    """The reading end, which outlives the programs that write to it; as a context, it ends with the block."""

    def __init__(self, folder: Path) -> None:
        """Make the pipe in `folder`.

        Raises:
            OutputError: it cannot be made there.
        """
        self.path = folder / "watch.pipe"
        try:
            os.mkfifo(self.path, mode=0o600)
            # With a writing end of its own the pipe never ends, whoever opens and closes it.
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot make a named pipe: {error.strerror}") from error
        self._reads = 0
        self._rest = b""

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that a program needs in its environment."""
        return {"REPRO_WATCH": str(self.path.absolute())}

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._descriptor

    def lines(self) -> list[Line]:
        """Return the lines that have arrived, of one read, without waiting; there may be more."""
        try:
            data = os.read(self._descriptor, READ_SIZE)
        except BlockingIOError:
            return []
        arrived = time.monotonic_ns()
        self._reads += 1
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            complete, self._rest = [*complete, self._rest], b""
        return [Line(line.decode(errors="replace"), arrived, self._reads) for line in complete]

    def __enter__(self) -> WatchPipe:
        return self

    def __exit__(self, *error: object) -> None:
        """Close and remove the pipe; programs that still write get a broken pipe."""
        os.close(self._descriptor)
        self.path.unlink(missing_ok=True)


class _Message(Frozen):
    """One line of the pipe."""

    event: Seen
    ns: int = Field(ge=0)
    """Monotonic nanoseconds of the machine when it happened, by the program."""
    pid: int
    step: int | None = Field(default=None, ge=0, lt=MOST)
    samples: int | None = Field(default=None, ge=0, lt=MOST)
    metric: str | None = None
    value: float | None = None


class WatchReader(Reader):
    """Reads the lines of `repro.watch`; each has the program's own time."""

    states_start = True
    longest_delay = LATEST_SECONDS

    def __init__(self, metric: str | None = None) -> None:
        """
        Args:
            metric: The metric whose evaluations count; those of other names are left out, those without a name count.
                None: all count.
        """
        self.other_metrics: set[str] = set()
        """Names of the evaluations that were left out."""
        self._metric = metric
        self._process: int | None = None
        self._phase: Literal["not begun", "begun", "stopped"] = "not begun"
        self._step = self._samples = 0
        self._ns = {"step": 0, "other": 0}
        """Time of the last line. Steps may be counted in one thread and evaluated in another: each has its order."""
        self._evaluated: int | None = None
        """Step of the last evaluation."""

    def take(self, line: Line) -> Observation | None:
        """Return what the next line states; None if it evaluates another metric.

        Raises:
            OutputProblem: the line is none of `repro.watch`, comes from a second process, or cannot be right.
        """
        message = _parsed(line.text)
        problem = self._problem(message, line.arrived_ns)
        if problem:
            raise _refusal(problem, line.text)
        self._process = message.pid
        if self._left_out(message):
            self.other_metrics.add(str(message.metric))
            return None
        self._ns[_order(message)] = message.ns
        if message.event == "evaluation":
            self._evaluated = message.step
        elif message.event == "step":
            self._step = message.step or 0
            self._samples = message.samples or self._samples
        else:
            self._phase = "begun" if message.event == "start" else "stopped"
        return Observation(seen=message.event, arrived_ns=line.arrived_ns, read=line.read, step=message.step,
                           samples=message.samples, value=message.value, own_ns=message.ns)

    def close(self) -> None:
        if self._phase == "begun":
            raise OutputProblem(f"repro.watch: the program ended inside `watch.run()`, after step {self._step}")

    def hint(self) -> str:
        return f"it evaluated {', '.join(sorted(self.other_metrics))}" if self.other_metrics else ""

    def _problem(self, message: _Message, arrived_ns: int) -> str | None:
        """Return why this line cannot follow the ones before it; None if it can."""
        event = message.event
        if self._process not in (None, message.pid):
            return (f"two processes report ({self._process} and {message.pid}): ranks other than 0 need RANK in their "
                    "environment, and what a launcher starts again after a failure is another training")
        if event == "start" and self._phase != "not begun":
            return "a second training in one program"
        if event != "start" and self._phase != "begun":
            return f"`{event}` while the training has {self._phase}; it belongs inside `watch.run()`"
        if message.ns > arrived_ns:
            return "its time is after its arrival"
        if message.ns < self._ns[_order(message)] and not self._left_out(message):
            return "its time is before that of the line before"
        if event == "step":
            return self._step_problem(message)
        return self._evaluation_problem(message) if event == "evaluation" else None

    def _step_problem(self, message: _Message) -> str | None:
        if message.step is None:
            return "a step without its number"
        if message.step < self._step or (message.samples is not None and message.samples < self._samples):
            return f"goes back, from step {self._step} and {self._samples} samples"
        if self._evaluated is not None and message.step < self._evaluated:
            return f"goes back, from the evaluation of step {self._evaluated}"
        return None

    def _evaluation_problem(self, message: _Message) -> str | None:
        if message.value is None:
            return "an evaluation without a value"
        if self._evaluated is not None and not self._left_out(message) and (message.step or 0) <= self._evaluated:
            same = message.step == self._evaluated
            return f"two evaluations of step {message.step}" if same else f"goes back, from step {self._evaluated}"
        return None

    def _left_out(self, message: _Message) -> bool:
        """Return True if it evaluates another metric."""
        return message.event == "evaluation" and self._metric is not None and message.metric not in (None, self._metric)


def _order(message: _Message) -> str:
    return "step" if message.event == "step" else "other"


def _parsed(text: str) -> _Message:
    try:
        return _Message.model_validate_json(text)
    except ValidationError as error:
        first: Any = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])[:SHOWN]
        raise _refusal(f"{place}: {first['msg']}" if place else first["msg"], text) from None


def _refusal(problem: str, text: str) -> OutputProblem:
    return OutputProblem(one_line(f"repro.watch: {problem}: {text[:SHOWN]}"))
