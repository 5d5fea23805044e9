"""The exchange of gradients in a step, read from the traffic of a trial; a figure with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repro import stats
from repro.comm.algorithm import Algorithm
from repro.comm.algorithms.ring import Ring
from repro.comm.schedule import ScheduleCost
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.record.result.parts import Moved, RankTraffic
from repro.record.result.results import Result
from repro.seams.training import Comm, Engine
from repro.suite.planning.cell import Cell


class Estimated(Frozen):
    """A figure by seed of a run, in the middle and with the 95 % t interval of its logarithm over the seeds."""

    value: float
    low: float | None
    high: float | None


def estimated(values: Sequence[float]) -> Estimated:
    """Return the geometric mean of `values` with its interval; without one for a single or always equal value."""
    logs = [math.log(value) for value in values]
    found = stats.or_none(lambda: stats.mean_interval(logs))
    if found is None:
        return Estimated(value=values[0], low=None, high=None)
    return Estimated(value=math.exp(sum(logs) / len(logs)), low=math.exp(found.low), high=math.exp(found.high))


ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Exchange:
    """The all-reduces of one step."""

    calls: int
    size: int
    """Bytes of gradient of all of them."""
    itemsize: int
    counted: bool
    """False: the backend's collectives are not counted, so all gradients in one all-reduce are assumed."""

    @property
    def elements(self) -> int:
        """Elements of one all-reduce; all are taken as equally large."""
        return math.ceil(self.size / self.itemsize / self.calls)

    def cost(self, algorithm: Algorithm, workers: int) -> ScheduleCost:
        """Return rounds and bytes of a step; no reduced bytes, which are in proportion to those on the path."""
        one = algorithm.cost(workers, self.elements, self.itemsize)
        return ScheduleCost(self.calls * one.rounds, self.calls * one.path_bytes, 0)


def all_reduces_alone(cell: Cell) -> bool:
    """Return True if the engine of a cell sends gradients by all-reduce alone: ddp, and deepspeed of stage 0."""
    engine = cell.training.engine
    return engine.kind == "ddp" or engine.get(Engine).zero_stage() == 0


def algorithm_of(cell: Cell) -> tuple[Algorithm, bool]:
    """Return the algorithm of a cell's all-reduce, and True if it is assumed: a ring stands for the backend's own,
    which is not known.
    """
    comm = cell.training.comm.get(Comm)
    return (comm, False) if isinstance(comm, Algorithm) else (Ring(), True)


def gradient_lines(rank: RankTraffic) -> list[Moved]:
    """Return the collectives of one rank that carry gradients: neither barriers nor sums of single numbers."""
    return [line for line in rank.lines if line.payload_bytes > 64 * line.collectives and "gloo" not in line.operation]


def exchange_of(item: Result, cell: Cell, steps: int, label: str) -> Exchange:
    """Return the exchange of a step.

    Args:
        steps: of the trial, warm-up included.
        label: names the cell in a message.

    Raises:
        UsageError: the engine sends gradients in another way, or the record does not state their size.
    """
    sent = gradient_lines(item.traffic.ranks[0]) if item.traffic else []
    if not sent:
        if item.model is None:
            raise UsageError(f"{label}: its record states neither the bytes that were sent nor the size of the model")
        return Exchange(1, 4 * item.model.parameters, 4, counted=False)
    if others := {line.operation for line in sent} - {"all_reduce"}:
        raise UsageError(f"{label}: engine {cell.training.engine.kind} sends gradients by {sorted(others)[0]}; this is "
                         "for engines that all-reduce them, for example ddp")
    return Exchange(math.ceil(sum(line.collectives for line in sent) / steps),
                    sum(line.payload_bytes for line in sent) // steps, ITEM_BYTES.get(sent[0].dtype, 4), counted=True)
