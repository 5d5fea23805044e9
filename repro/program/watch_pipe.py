"""The named pipe through which `repro.watch` reports."""

from __future__ import annotations

import os
import time
from pathlib import Path

from repro.core.errors import OutputError
from repro.program.observation import Line

VARIABLE = "REPRO_WATCH"
"""Environment variable with the path of the pipe."""
LONGEST_LINE = 4096
"""Bytes; longer than any line of `repro.watch`."""
READ_SIZE = 65536


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
        return {VARIABLE: str(self.path.absolute())}

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

    def close(self) -> None:
        """Close and remove the pipe; programs that still write get a broken pipe."""
        os.close(self._descriptor)
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> WatchPipe:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
