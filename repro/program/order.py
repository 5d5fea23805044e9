"""The order that the statements of one run must have."""

from __future__ import annotations

from repro.core.errors import visible
from repro.program.observation import Observation, OutputProblem

SHOWN = 120
"""Characters of a line that a message shows."""


class Order:
    """Checks each statement of one run against those before it."""

    def __init__(self) -> None:
        self._reached: dict[str, float] = {}
        self._evaluated: tuple[str, int] | None = None
        self._value: float | None = None

    def accept(self, seen: Observation, source: str) -> Observation:
        """Return `seen`.

        The same step twice is wrong even with an equal value: nothing tells which of the two times is the one at which
        the quality was reached. Epochs may repeat, because programs round them.

        Args:
            source: what was read, for the message.

        Raises:
            OutputProblem: a position or the program's own clock goes back, or one position is evaluated twice.
        """
        stated = {"step": seen.step, "samples": seen.samples, "epoch": seen.epochs, "train time": seen.own_seconds}
        for name, number in stated.items():
            if number is None:
                continue
            before = self._reached.get(name, number)
            if number < before:
                raise OutputProblem(f"{name} goes back from {before:.15g} to {number:.15g}: {quoted(source)}")
            self._reached[name] = number
        if seen.seen == "evaluation":
            self._once(seen, source)
        return seen

    def _once(self, seen: Observation, source: str) -> None:
        position = next(((name, number) for name, number in (("step", seen.step), ("samples", seen.samples))
                         if number is not None), None)
        if position is not None and position == self._evaluated:
            raise OutputProblem(
                f"{position[0]} {position[1]} is evaluated twice ({self._value:.6g}, then {seen.value:.6g}): "
                f"{quoted(source)}; one process prints, and each evaluation has a step of its own")
        self._evaluated, self._value = position, seen.value


def quoted(text: str) -> str:
    """Return a line of a program as a message shows it."""
    text = visible(text.strip())
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
