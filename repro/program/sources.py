"""Sources of a program's statements: its output, a named pipe, or a file that it writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from repro.program.airbench import AirbenchReader
from repro.program.csv_reader import CsvReader
from repro.program.lines import LONGEST, LineSplitter
from repro.program.mllog_reader import LONGEST as LONGEST_MLLOG
from repro.program.mllog_reader import MllogReader
from repro.program.observation import Line, Observation
from repro.program.pattern import PatternReader
from repro.program.tensorboard_reader import TensorboardReader
from repro.program.watch_pipe import WatchPipe
from repro.program.watch_reader import LATEST_SECONDS, WatchReader
from repro.suite.kinds.program import ProgramConfig

Poll = Callable[[int], list[Observation]]


@dataclass(slots=True)
class Source:
    """The reader of one run: of lines of the output, of a pipe, or of a file."""

    of_output: Callable[[Line], Observation | None] | None = None
    pipe: WatchPipe | None = None
    of_pipe: WatchReader | None = None
    of_file: Poll | None = None
    states_start: bool = False
    """The reader says when training begins."""
    longest_delay: float | None = None
    """Seconds within which a dated statement must arrive; None: its channel may hold it back."""
    longest_line: int = LONGEST

    def splitter(self) -> LineSplitter:
        return LineSplitter(self.longest_line)

    def from_lines(self, lines: list[Line]) -> list[Observation]:
        """Return what lines of the output state.

        Raises:
            OutputProblem: a line cannot be right.
        """
        if self.of_output is None:
            return []
        return [seen for line in lines if (seen := self.of_output(line)) is not None]

    def ended(self) -> list[Observation]:
        """Take the end of a program that ended well; it states nothing more.

        Raises:
            OutputProblem: what it stated lacks its end.
        """
        if self.of_pipe is not None:
            self.of_pipe.close()
        return []

    def hint(self) -> str:
        """Return what may explain that no evaluation was seen; "" if nothing does."""
        others = sorted(self.of_pipe.other_metrics) if self.of_pipe is not None else []
        return f"it evaluated {', '.join(others)}" if others else ""

    def from_pipe(self) -> list[Observation]:
        """Return what has arrived in the pipe.

        Raises:
            OutputProblem: a line cannot be right.
        """
        if self.pipe is None or self.of_pipe is None:
            return []
        found = []
        while lines := self.pipe.lines():
            found += [seen for line in lines if (seen := self.of_pipe.take(line)) is not None]
        return found


def open_source(choices: ProgramConfig, logs: Path, scratch: Path, stack: ExitStack) -> Source:
    """Return the reader of one run.

    Args:
        logs: where a program that writes a file writes it.
        scratch: for the pipe.
        stack: closes what is opened.

    Raises:
        UsageError: a package that the reader needs is not installed.
        OutputError: the pipe cannot be made.
    """
    stated = choices.evaluation
    if stated.reader == "watch":
        pipe = stack.enter_context(WatchPipe(scratch))
        return Source(pipe=pipe, of_pipe=WatchReader(stated.metric), states_start=True, longest_delay=LATEST_SECONDS)
    if stated.reader == "mllog":
        return Source(MllogReader(stated.key).take, states_start=True, longest_line=LONGEST_MLLOG)
    if stated.reader == "tensorboard":
        return Source(of_file=TensorboardReader(logs, stated.tag, stated.axis).poll)
    known = stated.known
    if known is not None and known.kind == "csv":
        return Source(of_file=CsvReader(logs, stated.metric).poll)
    if known is not None and known.kind == "airbench":
        return Source(AirbenchReader(stated.metric).take, states_start=True)
    patterns = stated.patterns()
    return Source(PatternReader(patterns).take, states_start=patterns.start is not None)
