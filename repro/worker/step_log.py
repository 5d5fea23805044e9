"""Per-step figures in the log: one line per block, several for a long block, so that readers accept every line."""

from __future__ import annotations

from collections.abc import Sequence

from repro.core.events import EventLog
from repro.record.log.schema import Operations, RankSteps, StepBlock

STEPS_A_LINE = 10_000
"""About half a MiB: our readers accept 16 MiB (`events.MAX_LINE`), those of published logs 1 MiB."""


def write_steps(
    log: EventLog, first: int, seconds: Sequence[float], inputs: Sequence[float], losses: Sequence[float],
    end_ns: int,
) -> None:
    """Write the `StepBlock` lines of one block.

    Every line is complete in itself, so that a reader may stop after any of them: it names its first step and has the
    time at which its last step ended, like the only line of a short block.

    Args:
        first: number of the block's first step, from 0.
        end_ns: end of the block on the log's clock, nanoseconds.
    """
    later = sum(seconds) + sum(inputs)
    for start in _line_starts(len(seconds)):
        part = slice(start, start + STEPS_A_LINE)
        last = start + STEPS_A_LINE >= len(seconds)
        later -= sum(seconds[part]) + sum(inputs[part])
        log.write(StepBlock(first=first + start, seconds=_round_seconds(seconds[part]),
                            input_seconds=_round_seconds(inputs[part]), loss=losses[part]),
                  at_ns=end_ns if last else end_ns - round(later * 1e9))


def write_rank_steps(
    log: EventLog, slowest: Sequence[float], fastest: Sequence[float], whole: Sequence[float]
) -> None:
    """Write the `RankSteps` lines of one block: seconds of the slowest and of the fastest rank, by step.

    Args:
        whole: seconds of the slowest rank with the step's input.
    """
    for start in _line_starts(len(slowest)):
        part = slice(start, start + STEPS_A_LINE)
        log.write(RankSteps(slowest_seconds=_round_seconds(slowest[part]),
                            fastest_seconds=_round_seconds(fastest[part]), whole_seconds=_round_seconds(whole[part])))


def write_operations(log: EventLog, ranks: Sequence[Sequence[float]]) -> None:
    """Write the `Operations` lines: seconds of the slowest and of the fastest rank, by operation.

    Args:
        ranks: seconds of every operation, one list a rank.
    """
    slowest, fastest = ([pick(times) for times in zip(*ranks, strict=True)] for pick in (max, min))
    for start in _line_starts(len(slowest)):
        part = slice(start, start + STEPS_A_LINE)
        log.write(Operations(slowest_seconds=_round_seconds(slowest[part]),
                             fastest_seconds=_round_seconds(fastest[part])))


def _line_starts(count: int) -> range:
    """Return the first steps of all lines; a block without steps has one line too."""
    return range(0, max(count, 1), STEPS_A_LINE)


def _round_seconds(seconds: Sequence[float]) -> list[float]:
    """Round to nanoseconds: more digits would only enlarge the log."""
    return [round(value, 9) for value in seconds]
