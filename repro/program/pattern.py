"""Reader of lines by the regular expressions of a suite."""

from __future__ import annotations

from collections.abc import Mapping

from repro.program import stated
from repro.program.observation import Line, Observation, Seen
from repro.program.order import Order
from repro.suite.kinds.evaluation import OutputPatterns


class PatternReader:
    """Finds observations by `OutputPatterns`. A group that took no part in a match states nothing."""

    def __init__(self, patterns: OutputPatterns) -> None:
        """Raises:
            FieldProblem: as `OutputPatterns.compiled`.
        """
        self._patterns = patterns.compiled()
        self._order = Order()
        self._context: dict[str, str] = {}
        self._begun = self._ended = False

    def take(self, line: Line) -> Observation | None:
        """Return what the next line states; None if nothing, and for every line after the end of the training.

        Raises:
            OutputProblem: a number is none, or as `Order.accept`.
        """
        if self._ended:
            return None
        raw = line.text.encode()
        context = self._find("context", raw)
        if context is not None:
            self._context = context
        evaluation = self._find("evaluation", raw)
        if evaluation is not None:
            return self._observation("evaluation", {**self._context, **evaluation}, line)
        progress = self._find("progress", raw)
        if progress is not None:
            return self._observation("step", progress, line)
        if not self._begun and self._find("start", raw) is not None:
            self._begun = True
            return self._observation("start", {}, line)
        if self._find("stop", raw) is not None:
            self._ended = True
            return self._observation("stop", {}, line)
        return None

    def _find(self, name: str, raw: bytes) -> dict[str, str] | None:
        """Return the groups that a pattern finds; None if it is not given or does not match."""
        pattern = self._patterns.get(name)
        return None if pattern is None else pattern.find(raw)

    def _observation(self, seen: Seen, groups: Mapping[str, str], line: Line) -> Observation:
        text = line.text
        value, step, samples, epoch = (groups.get(name) for name in ("value", "step", "samples", "epoch"))
        return self._order.accept(Observation(
            seen, line.arrived_ns, line.read,
            step=None if step is None else stated.count(step, "step", text),
            samples=None if samples is None else stated.count(samples, "samples", text),
            epochs=None if epoch is None else stated.amount(epoch, "epoch", text),
            value=None if value is None else stated.quality(value, text),
            own_seconds=own_seconds(groups, text),
        ), text)


def own_seconds(groups: Mapping[str, str], line: str) -> float | None:
    """Return the training time that the program states, in seconds; None if it states none.

    Raises:
        OutputProblem: it is no time.
    """
    if "train_ms" in groups:
        return stated.amount(groups["train_ms"], "train time", line) / 1e3
    if "train_s" in groups:
        return stated.amount(groups["train_s"], "train time", line)
    return stated.seconds(groups["train_time"], line) if "train_time" in groups else None
