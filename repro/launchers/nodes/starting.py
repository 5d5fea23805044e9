"""Commands that start agents on other nodes (ssh, srun) and run as long as those."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from repro.core.errors import UsageError


@dataclass(slots=True)
class Starts:
    """The commands that were started for one run."""

    _started: list[tuple[str, subprocess.Popen[str], float]] = field(default_factory=list)
    _problem: str = ""

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, stdin: str = ""
    ) -> None:
        """Start a command.

        Args:
            name: for messages.
            stdin: what it can read, because everybody can read its arguments.

        Raises:
            UsageError: there is no such command.
        """
        try:
            process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror}") from error
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # a command that failed at once: `problem` tells why
            process.stdin.write(stdin)
        process.stdin = None  # `communicate` would flush it
        self._started.append((name, process, time.monotonic()))

    def problem(self) -> str:
        """Return why a command has ended although the run goes on; "" if none has."""
        for name, process, begin in self._started:
            if not self._problem and process.poll() is not None:
                told = process.communicate()[1].strip().splitlines()
                self._problem = (f"{name} ended with exit code {process.returncode} after "
                                 f"{time.monotonic() - begin:.0f} s{': ' + told[-1] if told else ''}")
        return self._problem

    def close(self, seconds: float) -> None:
        """Wait for the commands, whose agents have been told that the run is over; end those that do not end."""
        for _, process, _ in self._started:
            if process.stderr is None or process.stderr.closed:
                continue
            try:
                process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.communicate()
        self._started.clear()
