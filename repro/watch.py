"""Tell `repro` how a training goes, from the loop that trains.

For example:

    from repro import watch

    with watch.run():
        for n, batch in enumerate(batches, start=1):
            train(batch)
            watch.step(n)
            if n % 100 == 0:
                watch.evaluated(validate(model))

Outside `repro` these calls do nothing; under it they write to the named pipe whose path is in `REPRO_WATCH`, one JSON
object a line. Only rank 0 writes (`RANK` unset or 0), and only the process that made the first call, not its forks.
They never raise and never wait for a reader, but for `LAST_SECONDS` at the end. Imports the standard library only;
`trace` loads what needs torch when `repro gate` asks for it.
"""

from __future__ import annotations

import json
import operator
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import isfinite
from threading import Lock
from typing import Any

TRACE = "REPRO_TRACE"
"""Variable with what `trace` records, as JSON: folder, steps, ulp."""
PERIOD_NS = 200_000_000
"""Least time between two reports of steps alone; between them only the latest step is kept."""
LAST_SECONDS = 1.0
"""Longest wait, at the end of a training, for room in a full pipe."""
LONGEST_TEXT = 200
"""Longest text in a line, characters: a line stays below 4096 bytes, which a pipe takes at once or not at all."""

_Step = tuple[Any, Any, int]  # steps, samples, monotonic ns


class _Pipe:
    """The writing end of the pipe, of one process."""

    def __init__(self, descriptor: int) -> None:
        self.latest: _Step | None = None
        """The latest step."""
        self.due_ns = 0
        """From when on the next step is written."""
        self._descriptor = descriptor
        self._process = os.getpid()
        self._reported: _Step | None = None
        self._waiting: deque[bytes] = deque()
        self._writing = Lock()

    def say(self, event: str, now: int, **what: Any) -> None:
        """Write that something happened at `now`, after the latest step."""
        self.flush(now)
        self._add(event, now, what)
        self._write()

    def flush(self, now: int) -> None:
        """Write the latest step, if it is new; not while the pipe is full."""
        step = self.latest
        if step is not self._reported and not self._waiting:
            self._reported = step
            self.due_ns = now + PERIOD_NS
            assert step is not None
            self._add("step", step[2], {"step": step[0], "samples": step[1]})
        self._write()

    def drain(self) -> None:
        """Wait a little for room, so that nothing is lost at the end."""
        end = time.monotonic() + LAST_SECONDS
        while self._waiting and time.monotonic() < end:
            time.sleep(0.005)
            self._write()

    def _add(self, event: str, now: int, what: dict[str, Any]) -> None:
        for name in ("step", "samples"):
            if what.get(name) is not None:
                what[name] = _plain(_whole, what[name])
        # By hand: the JSON encoder takes longer than all the rest, and only texts need it.
        fields = [f', "{name}": {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}'
                  for name, value in what.items() if value is not None]
        line = f'{{"event": "{event}", "ns": {now}, "pid": {self._process}{"".join(fields)}}}\n'
        self._waiting.append(line.encode(errors="replace"))

    def _write(self) -> None:
        # Whoever has the lock writes the lines of the others too: a signal handler or a thread never waits here.
        while self._waiting and self._writing.acquire(blocking=False):
            try:
                os.write(self._descriptor, self._waiting[0])
                self._waiting.popleft()
            except BlockingIOError:  # full: the next call tries again
                return
            except OSError:  # nobody reads any more
                self._waiting.clear()
                return
            finally:
                self._writing.release()


_pipe: _Pipe | None = None
_decided = False


def step(steps: int, samples: int | None = None) -> None:
    """Say that the model has had `steps` optimizer updates, from `samples` training samples, so far.

    Kept in memory; written at most every `PERIOD_NS`, and before each evaluation.
    """
    pipe = _pipe if _decided else _open_once()
    if pipe is not None:
        now = time.monotonic_ns()
        pipe.latest = (steps, samples, now)
        if now >= pipe.due_ns:
            pipe.flush(now)


def evaluated(value: Any, metric: str | None = None, *, step: int | None = None, samples: int | None = None) -> None:
    """Say that the model was evaluated and has the quality `value`; nan and infinities are values.

    Args:
        value: A number, or a tensor of one element (which is waited for).
        metric: Its name, if several qualities are reported.
        step: Optimizer updates of the model that was evaluated; those of the latest `step()` if not given.
        samples: Training samples likewise.
    """
    pipe = _open_once()
    if pipe is not None:
        quality = _quality(value)
        now = time.monotonic_ns()
        if step is None and pipe.latest is not None:
            step, samples = pipe.latest[0], pipe.latest[1] if samples is None else samples
        name = None if metric is None else str(metric)[:LONGEST_TEXT]
        pipe.say("evaluation", now, step=step, samples=samples, metric=name, value=quality)


@contextmanager
def run() -> Iterator[None]:
    """The training: it starts where the block begins and stops where the block ends.

    A block that an exception leaves has not stopped; one that `sys.exit()` leaves without an error has.
    """
    started()
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            stopped()
        elif (pipe := _open_once()) is not None:
            pipe.flush(time.monotonic_ns())
        raise
    stopped()


def started() -> None:
    """Say that the training starts now: what `run` does first, for loops that belong to a framework."""
    pipe = _open_once()
    if pipe is not None:
        pipe.say("start", time.monotonic_ns())


def stopped() -> None:
    """Say that the training has ended: what `run` does last."""
    pipe = _open_once()
    if pipe is not None:
        pipe.say("stop", time.monotonic_ns())
        pipe.drain()


def trace(model: Any, optimizer: Any = None, scaler: Any = None) -> None:
    """Let `repro gate` see the first steps of this training; without it, this does nothing.

    Call it once, right before the first step, when model and optimizer are as the loop uses them (wrapped, prepared).
    Unlike the other calls it is for every rank.

    Args:
        model: what the loop calls; a wrapper around it is found.
        optimizer: what the loop steps; None: that of DeepSpeed's engine.
        scaler: torch's GradScaler, if the loop has one.
    """
    if wanted := os.environ.get(TRACE, ""):
        import_module("repro.callbacks.tracing").trace(model, optimizer, scaler, json.loads(wanted))


def is_traced() -> bool:
    """Return True if `repro gate` asks for a trace, for callbacks that have to look for model and optimizer."""
    return TRACE in os.environ


def _open_once() -> _Pipe | None:
    """Return the pipe of this process, if it has one; decided at the first call."""
    global _pipe, _decided
    if not _decided:
        _pipe, _decided = _open(), True
    return _pipe


def _forget() -> None:
    """Leave the pipe to the parent, in a fork."""
    global _pipe
    _pipe = None


def _open() -> _Pipe | None:
    path = os.environ.get("REPRO_WATCH")
    if not path or os.environ.get("RANK", "0") != "0":
        return None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # gone, or nobody reads
        return None
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    os.register_at_fork(after_in_child=_forget)
    return _Pipe(descriptor)


def _quality(value: Any) -> float | str:
    """A number as JSON can hold it: nan and infinities are texts there."""
    number = _plain(float, value)
    return number if isinstance(number, float) and isfinite(number) else str(number)


def _whole(value: Any) -> int:
    """The value as an integer, if it is one: neither a fraction nor a subclass that prints otherwise."""
    return int(operator.index(value))


def _plain(kind: Callable[[Any], Any], value: Any) -> Any:
    """The value as a plain number; a text that says what it is if it is none, which the other end refuses."""
    try:
        number = kind(value)
        if kind is float or abs(number) < 2 ** 63:
            return number
    except Exception:  # whatever a stranger's class raises
        number = value
    return f"about 2**{number.bit_length()}" if isinstance(number, int) else repr(number)[:LONGEST_TEXT]
