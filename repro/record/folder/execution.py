"""How a run was executed: every start of a trial in order of time, and where the run was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.record.folder.ledger import Attempt
from repro.record.result.results import Result


@dataclass(frozen=True, slots=True)
class Execution:
    """The starts of a run, for comparisons, which depend on the order of trials and on nothing else of a ledger."""

    attempts: Sequence[Attempt] = ()
    """Of all trials, in any order; without those of some result, the order of the plan counts."""
    resumed_ms: Sequence[float] = ()
    """Moments at which the run was resumed."""
    alone: Sequence[Result] = ()
    """Of a pool: results of blocks that also ran with no other lane busy."""


def execution_of(starts: Sequence[Attempt], resumed_ms: Sequence[float]) -> Execution:
    """Return the execution of a ledger, whose order counts: a wall clock that was set back puts no start before one
    that the ledger has first.

    Its later starts are moved behind the earlier ones. When the run was resumed is then known up to the hands of the
    clock only: each moment counts in every stretch of time that can hold it, at the latest where the clock was set.
    In a pool this holds within each shard: lanes run side by side, each on its own clock.

    Args:
        starts: in the order of the ledger; one whose moment is unknown (0) is taken to be at the one before it.
    """
    shards: dict[str, list[Attempt]] = {"": []}
    for start in starts:
        shards.setdefault(start.shard, []).append(start)
    parts = [_in_order(found, () if shard else resumed_ms) for shard, found in shards.items()]
    return Execution([start for part in parts for start in part.attempts],
                     [moment for part in parts for moment in part.resumed_ms])


def _in_order(starts: Sequence[Attempt], resumed_ms: Sequence[float]) -> Execution:
    moved, resumed = list[Attempt](), list[float]()
    offset = begin = last = 0.0
    for start in starts:
        if start.started_ms and start.started_ms + offset < last:  # here a stretch ends
            resumed += [at for at in _in_stretch(resumed_ms, offset, begin) if at <= last]
            offset, begin = last + 1 - start.started_ms, last + 1
        last = start.started_ms + offset if start.started_ms else last
        moved.append(start if start.started_ms == last else start.model_copy(update={"started_ms": last}))
    return Execution(moved, (*resumed, *_in_stretch(resumed_ms, offset, begin)))


def _in_stretch(resumed_ms: Sequence[float], offset: float, begin: float) -> list[float]:
    """Return the moments in a stretch of time that begins at `begin`, on its clock; those before it count there."""
    return [max(at + offset, begin) for at in resumed_ms]
