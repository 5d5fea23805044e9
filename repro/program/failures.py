"""Why a program failed: the line of its exception, seen through prefixes of ranks and the tracebacks of launchers."""

from __future__ import annotations

import re

from repro.core.errors import visible

PREFIX = re.compile(r"^(?:\[(?:rank|default)(\d+)\]: ?|\[\d+,(\d+)\]<std\w+>:? ?|(\d+): )")
"""Of a rank: torchrun's `[rank0]: ` and `[default0]:`, Open MPI's `[1,0]<stderr>: `, srun's `0: `."""
HEADER = "Traceback (most recent call last)"
NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)(?:: .*|:?$)")
"""A line that is an exception's wherever it stands."""
USAGE = re.compile(r"[\w./-]+: error: .+")
"""What argparse prints of arguments that it does not know."""
WRAPPERS = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions of launchers, which say that a process of theirs failed."""
CONSEQUENCE = re.compile(r"(?i)closed by peer|reset by peer|broken pipe|connection refused|remote process exited")
"""What a rank says when another one has ended."""
LONGEST = 500


class Failures:
    """Reads the lines of one start and keeps its exceptions."""

    def __init__(self) -> None:
        self._inside: set[str] = set()
        """Ranks in whose traceback the next line is."""
        self._found: list[tuple[str, str]] = []
        """(rank, line) of every exception, in the order of the output."""

    def take(self, text: str) -> None:
        """Take the next line of the output."""
        prefix = PREFIX.match(text)
        rank = next((number for number in prefix.groups() if number), "") if prefix else ""
        line = text[prefix.end():] if prefix else text
        if line.startswith(HEADER):
            self._inside.add(rank)
        elif rank in self._inside and line and not line[0].isspace():
            self._inside.remove(rank)
            self._found.append((rank, line.strip()))
        elif NAME.fullmatch(line.strip()) or USAGE.fullmatch(line.strip()):
            self._found.append((rank, line.strip()))

    @property
    def cause(self) -> str:
        """The last exception of the rank that failed first, without those that only follow; "" if none was printed.

        Exceptions that are chained in one traceback end with the one that was raised.
        """
        own = [(rank, line) for rank, line in self._found if not line.split(":")[0].endswith(WRAPPERS)]
        first = [(rank, line) for rank, line in own if not CONSEQUENCE.search(line)] or own
        lines = [line for rank, line in first if rank == first[0][0]]
        return visible(lines[-1])[:LONGEST] if lines else ""
