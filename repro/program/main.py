"""One trial of a program: start it, read what it states, end it, write the log."""

from __future__ import annotations

import os
import selectors
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from repro.core import door
from repro.core.errors import OutOfMemory, TrialError, visible
from repro.core.events import EventLog
from repro.core.machine import says_out_of_memory
from repro.program.failures import HEADER, Failures
from repro.program.file_readers import CsvReader, TensorboardReader
from repro.program.observation import Line, LineSplitter, Observation, OutputProblem, Reader
from repro.program.output_readers import AirbenchReader, EndReader, MllogReader, PatternReader, StartFinder
from repro.program.process import (
    DRAIN_SECONDS,
    MOST_LISTED,
    Command,
    Process,
    changed_files,
    listed,
    make_command,
    working_folder,
)
from repro.program.statements import Statements
from repro.program.watch_reader import WatchPipe, WatchReader
from repro.record.environment.environment import settings
from repro.record.folder.post_mortem import oom_kills
from repro.record.log import schema
from repro.suite.kinds.evaluation import Evaluation
from repro.suite.kinds.program import ProgramConfig
from repro.suite.model import Trial

WAKE_SECONDS = 0.05
"""Longest wait before the end of the program is noticed."""
FILE_SECONDS = 0.25
"""Time between two looks at a file that a program writes."""
MOST_OUTPUT = 64 << 20
"""Bytes of its output that are kept."""
TAIL = 3
"""Last lines of its output that a message shows."""

READERS: Mapping[str, Callable[[Evaluation, Path], Reader]] = {
    "watch": lambda stated, logs: WatchReader(stated.metric),
    "mllog": lambda stated, logs: MllogReader(stated.key),
    "airbench": lambda stated, logs: AirbenchReader(stated.metric),
    "csv": lambda stated, logs: CsvReader(logs, stated.metric),
    "tensorboard": lambda stated, logs: TensorboardReader(logs, stated.tag, stated.axis),
    "none": lambda stated, logs: EndReader(stated.stop),
    "pattern": lambda stated, logs: PatternReader(stated.patterns()),
}
"""Name of each form in which programs state their progress -> its reader; the path is that of a file which the program
writes."""


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Run the trial in `payload`: the entry point of its launch.

    Raises:
        UsageError: a package that its reader needs is not installed.
        TrialError: it cannot be started, or was killed by a signal.
        SystemExit: it ended with this exit code.
    """
    trial = Trial.model_validate(payload["trial"])
    choices = trial.choices
    assert isinstance(choices, ProgramConfig)
    place = Path(folder)
    log = EventLog(place / payload["log"])
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="repro-program-")))
            code, run_dir = scratch / "code", scratch / "program"
            code.mkdir()
            run_dir.mkdir()
            base = Path(payload["base"]) if payload["base"] else None
            where = working_folder(choices, base, Path(payload["code"]), code)
            command = make_command(trial, choices, where, run_dir, os.environ)
            stated = choices.evaluation
            form = stated.known.kind if stated.known is not None else stated.reader
            reader = READERS[form if form in READERS else "pattern"](stated, command.logs)
            pipe = stack.enter_context(WatchPipe(scratch)) if isinstance(reader, WatchReader) else None
            run = _Run(trial, command, reader, pipe, log, place)
            run.gated = payload.get("gated", {})
            run.run(payload["launched_ns"])
    finally:
        log.close()


class _Run:
    def __init__(
        self, trial: Trial, command: Command, reader: Reader, pipe: WatchPipe | None, log: EventLog, place: Path
    ) -> None:
        self.trial, self.reader, self.pipe, self.log, self.place = trial, reader, pipe, log, place
        assert isinstance(trial.choices, ProgramConfig)
        self.choices = trial.choices
        self.command = command if pipe is None else replace(
            command, environment={**command.environment, **pipe.environment})
        self.splitter = LineSplitter(reader.longest_line)
        self.starts = StartFinder(self.choices.evaluation) if self.choices.evaluation.begins else None
        self.last: deque[str] = deque(maxlen=TAIL)
        self.failures = Failures()
        self.problem = ""
        """Statements of the program that cannot be true."""
        self.traceback = False
        self.gated: Mapping[str, str] = {}
        """What the gate of this run has compared of the cell, with these files."""
        self._next_look = 0.0
        self._room = MOST_OUTPUT
        self._files: Mapping[str, tuple[int, int]] | None = {}

    def run(self, launched_ns: int) -> None:
        """Run the program to its end and write the log."""
        self._describe(launched_ns)
        if changed := changed_files(self.choices, self.command.folder):
            raise TrialError(changed)
        kills, self._files = oom_kills(), listed(self.command.folder, self.place)
        self.log.write(schema.InitStart())
        with door.open_plain(self.place / "rank0.log", "ab") as printed, \
                Process(self.command, self.choices.engine.terminal) as process:
            statements = Statements(self.choices, self.log, process.started_ns,
                                    self.reader.states_start or self.starts is not None)
            ended_by_us = self._read(process, statements, printed)
            code, read_ns = process.exit_code, time.monotonic_ns()
        self._finish(statements, code, read_ns if ended_by_us else process.ended_ns, ended_by_us, kills)

    def _describe(self, launched_ns: int) -> None:
        log, choices = self.log, self.choices
        log.write(schema.CacheClear(value=False))
        log.write(schema.Launched(value=launched_ns))
        log.write(schema.SubmissionBenchmark(value=choices.task))
        log.write(schema.Seed(value=self.trial.repeat, master_seed=self.trial.master_seed))
        log.write(schema.TrialStated(value=self.trial.model_dump(mode="json", by_alias=True)))
        log.write(schema.Settings(value=settings(self.command.environment)))
        stop = choices.stop
        if stop.target is not None:
            log.write(schema.Target(value=stop.target, metric=stop.metric, direction=stop.direction))
        log.flush()

    def _read(self, process: Process, statements: Statements, printed: IO[bytes]) -> bool:
        """Read until the program has ended; return True if it was ended because the target is established."""
        stops = self.choices.stop.design == "stop_at_target"
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(process, selectors.EVENT_READ)
            if self.pipe is not None:
                selector.register(self.pipe, selectors.EVENT_READ)
            is_open = True
            while is_open and (deadline is None or time.monotonic() < deadline):
                ready = selector.select(WAKE_SECONDS)
                if any(key.fileobj is process for key, _ in ready):
                    is_open = self._take_output(process, statements, printed)
                self._take(statements, self._elsewhere)
                if self.problem or (stops and statements.established):
                    return not self.problem and process.exit_code is None
                if process.exit_code is not None and deadline is None:  # something that it started keeps its output
                    deadline = time.monotonic() + DRAIN_SECONDS
        while process.exit_code is None:  # it closed its output and goes on
            process.wait(WAKE_SECONDS)
            self._take(statements, self._elsewhere)
        self._take(statements, lambda: self._lines(self.splitter.end(time.monotonic_ns())))
        self._next_look = 0.0
        self._take(statements, self._elsewhere)
        if process.exit_code == 0:
            self._take(statements, self._ended)
        return False

    def _take_output(self, process: Process, statements: Statements, printed: IO[bytes]) -> bool:
        """Take one chunk of output; return False at its end."""
        chunk = process.read()
        arrived = time.monotonic_ns()
        if chunk is None:
            return False
        if chunk:
            self._print(printed, chunk)
            self._take(statements, lambda: self._lines(self.splitter.feed(chunk, arrived)))
            if self.starts is not None and not self.starts.found:
                self._take(statements, lambda: self._began(self.splitter.unended(arrived)))
            statements.still_runs(arrived)
        return True

    def _print(self, printed: IO[bytes], chunk: bytes) -> None:
        """Keep the output, up to a bound: a program may print without end."""
        if self._room > 0:
            printed.write(chunk[:self._room])
            self._room -= len(chunk)
            if self._room <= 0:
                printed.write(b"\n[what it printed beyond this is not kept]\n")
            printed.flush()

    def _lines(self, lines: list[Line]) -> list[Observation]:
        """Return what lines of the output state; the last ones are kept for messages."""
        self.last.extend(line.text for line in lines if line.text.strip())
        self.traceback = self.traceback or any(line.text.startswith(HEADER) for line in lines)
        for line in lines:
            self.failures.take(line.text)
        return [] if self.pipe is not None else [
            seen for line in lines for seen in (*self._began(line), *self._stated([line]))]

    def _stated(self, lines: list[Line]) -> list[Observation]:
        return [seen for line in lines if (seen := self.reader.of_line(line)) is not None]

    def _began(self, line: Line) -> list[Observation]:
        return self.starts.take(line) if self.starts is not None else []

    def _elsewhere(self) -> list[Observation]:
        """Return what came by pipe or file."""
        found: list[Observation] = []
        while self.pipe is not None and (lines := self.pipe.lines()):
            found += self._stated(lines)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + FILE_SECONDS
            found += self.reader.poll(time.monotonic_ns())
        return found

    def _ended(self) -> list[Observation]:
        self.reader.close()
        return []

    def _take(self, statements: Statements, read: Callable[[], list[Observation]]) -> None:
        """Take what `read` returns; after the first problem nothing more is believed."""
        if self.problem:
            return
        try:
            for seen in read():
                statements.add(seen)
        except OutputProblem as error:
            self.problem = str(error)

    def _finish(
        self, statements: Statements, code: int | None, ended_ns: int, ended_by_us: bool, kills: int | None
    ) -> None:
        if not ended_by_us and not self.problem:
            _check_exit(code, kills, [*self.last, self.failures.cause], self.failures.cause)
        statements.end(self.starts is None or self.starts.is_needed, ended_ns)
        if self.problem:
            statements.finding("output", self.problem, void=True)
        elif self.choices.stop.has_target and not any(seen.seen == "evaluation" for seen in statements.seen):
            shown = " | ".join(visible(text)[:200] for text in self.last)
            longest = self.reader.longest_line
            is_cut = any(len(text) >= longest for text in self.last)
            cut = f"; of a line, {longest:,} characters are read" if is_cut else ""
            pattern = self.choices.evaluation.pattern
            sought = f"no line matches evaluation.pattern '{pattern[:200]}'; " if pattern else ""
            ends = f"{sought}its output ends: {shown}{cut}" if shown else "it printed nothing"
            statements.finding("no evaluation", f"no evaluation seen; {self.reader.hint() or ends}", void=True)
        if changed := changed_files(self.choices, self.command.folder):
            statements.finding("code", changed, void=True)
        if self.traceback:
            statements.finding("traceback", "its output holds a traceback, though it ended as if all were well",
                               void=False)
        self._find_left(statements)
        statements.judge_clocks(self.reader.longest_delay)
        self.log.write(schema.Hashes(value={"program": self.choices.engine.sha256}))
        self.log.write(schema.EffectiveSettings(value={
            "reader": self.choices.evaluation.reader, "ended": "at its target" if ended_by_us else "by itself",
            **self.gated}))

    def _find_left(self, statements: Statements) -> None:
        """Report files that this start left where the next one runs: a program may load them."""
        after = listed(self.command.folder, self.place)
        if self._files is None or after is None:
            statements.finding("left", f"its folder holds more than {MOST_LISTED:,} files, so whether it left some "
                               "that the next trial can read was not looked at; name one without data in "
                               "engine.folder", void=False)
            return
        left = [name for name, state in sorted(after.items()) if self._files.get(name) != state]
        if left:
            shown = ", ".join(map(visible, left[:3])) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            statements.finding("left", f"files in its folder are new or changed since it began, and the next trial can "
                               f"read them: {shown}; have it write to {{run_dir}}, which is empty for each trial",
                               void=False)


def _check_exit(code: int | None, kills: int | None, last: Iterable[str], cause: str) -> None:
    """Raise if the program did not end well.

    Args:
        last: lines of its output, the last ones and the cause.
        cause: the line of its exception; "" if it printed none.

    Raises:
        OutOfMemory: the kernel killed it for lack of memory, or it says at its end that it got none.
        TrialError: a signal ended it, or an exception.
        SystemExit: it ended with this exit code.
    """
    if code is None or code == 0:
        return
    if code > 0:
        if said := next(filter(says_out_of_memory, last), ""):
            raise OutOfMemory(f"out of memory: {visible(said)[:200]}")
        if cause:
            raise TrialError(f"exit code {code}: {cause}")
        raise SystemExit(code)
    now = oom_kills()
    if code == -signal.SIGKILL and now is not None and kills is not None and now > kills:
        raise OutOfMemory("out of memory: the OOM killer ended the program")
    known = {each.value: each.name for each in signal.Signals}
    raise TrialError(f"the program was killed by {known.get(-code, f'signal {-code}')}")
