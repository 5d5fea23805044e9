"""Per-step figures in the log: a block is one line, or several where it is long. What no reader takes is lost."""

from __future__ import annotations

from collections.abc import Sequence

from repro.core.events import EventLog

STEPS_A_LINE = 10_000
"""About half a MiB: readers take 16 MiB (`events.MAX_LINE`), those of published logs one."""


def write_steps(
    log: EventLog, first: int, seconds: Sequence[float], inputs: Sequence[float], losses: Sequence[float | None],
    end_ns: int,
) -> None:
    """`x_steps` of one block.

    Every piece stands for itself, so that a reader may stop behind any of them: it names its first step and stands at
    the moment when its last one was done, as the only piece of a short block does.

    Args:
        first: number of the block's first step, from 0.
        end_ns: when the block was over, by the log's clock.
    """
    later = sum(seconds) + sum(inputs)
    for start in _starts(len(seconds)):
        part = slice(start, start + STEPS_A_LINE)
        last = start + STEPS_A_LINE >= len(seconds)
        later -= sum(seconds[part]) + sum(inputs[part])
        log.emit("x_steps", {"first": first + start, "seconds": _short(seconds[part]),
                             "input_seconds": _short(inputs[part]), "loss": list(losses[part])},
                 at_ns=end_ns if last else end_ns - round(later * 1e9))


def write_rank_steps(log: EventLog, slowest: Sequence[float], fastest: Sequence[float]) -> None:
    """`x_rank_steps` of one block: seconds of the slowest and of the fastest rank, by step."""
    for start in _starts(len(slowest)):
        part = slice(start, start + STEPS_A_LINE)
        log.emit("x_rank_steps", {"slowest_seconds": _short(slowest[part]), "fastest_seconds": _short(fastest[part])})


def _starts(count: int) -> range:
    """Where pieces begin; a block without steps is one piece too."""
    return range(0, max(count, 1), STEPS_A_LINE)


def _short(seconds: Sequence[float]) -> list[float]:
    """Nanosecond figures: more digits would only fill the log."""
    return [round(value, 9) for value in seconds]
