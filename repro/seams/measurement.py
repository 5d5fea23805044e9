"""The classes of a measurement's plug-in: what one operation is, on each rank, and how its answers are checked.

A measurement is a trial whose unit is no training run: a model-parallel layer, an input pipeline. The harness starts
the ranks, their process group, the clock, the counters of memory and traffic; a plug-in gives one operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from repro.core.random_streams import Streams
from repro.seams.comm import Comm
from repro.seams.plugin import Plugin
from repro.seams.workload import Direction

OverRanks = Literal["max", "mean", "sum"]
Origin = Literal["measured", "emulated", "simulated"]


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that a measurement gives in addition to its time: its words, and how the ranks' values become one."""

    title: str
    unit: str = ""
    direction: Direction = "lower"
    over_ranks: OverRanks = "max"
    label: Literal["counted", "measured", "modelled"] = "measured"
    """counted: exact, by adding up; measured: by a clock or an instrument; modelled: by a formula."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of an answer with what is right; the largest error over ranks decides."""

    name: str
    error: float
    """NaN or infinite: wrong, whatever the limit."""
    limit: float = 0.0
    """Largest error of a right answer."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a rank found out by its timed operations."""

    checks: tuple[Check, ...]
    """The same names on every rank; at least one, because a fast wrong answer is no result."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """By the names of `Measurement.figures`; the same ones on every rank."""


@dataclass(frozen=True, slots=True)
class Post:
    """The position and the tools of one rank of a measurement."""

    rank: int
    world: int
    device: str
    """"cpu" or "cuda:<index>"."""
    streams: Streams
    """Every random number comes from these."""
    comm: Comm
    """Started if `world` is above 1: the default process group of torch.distributed, and every group that is made from
    it, sends by this algorithm."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Counted:
    """What the harness counted on one rank in its timed operations."""

    operations: int
    lines: tuple[Mapping[str, Any], ...]
    """Lines of the meter by collective and type (`repro.record.result.results.Moved`), without those of barriers;
    empty for the backend's own collectives, which nobody counts, and on one rank."""

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank sent; None: not counted, or not for every collective."""
        sent = [line["sent_bytes"] for line in self.lines]
        return None if not sent or None in sent else sum(sent)


class Measuring(ABC):
    """A measurement on one rank. Every rank calls everything in the same order."""

    def prepare(self) -> None:  # noqa: B027  # most operations need nothing before them
        """Prepare the next operation, warm-up ones included; not timed, and its traffic is not counted."""

    @abstractmethod
    def operate(self) -> None:
        """Carry out one operation and nothing else: this is timed. All ranks start together; the slowest counts."""

    @abstractmethod
    def finish(self, counted: Counted) -> Findings:
        """Check the last operation's answers and return what was found; not timed."""

    def effective(self) -> dict[str, str]:
        """Return the effective settings, read back from the running objects: types, shapes, sizes of groups."""
        return {}

    def close(self) -> None:  # noqa: B027  # most hold nothing that the end of the process does not release
        """Release files and processes; also called after a failure."""


class Measurement(Plugin):
    """Something to be measured, its options as fields."""

    title: ClassVar[str]
    """Name in tables and reports."""
    items: ClassVar[str] = "operations"
    """Plural noun of what an operation processes: `tokens`, `chunks`."""
    figures: ClassVar[Mapping[str, FigureKind]] = {}
    """Further figures by name: lower case letters, digits and underscores."""

    @property
    def origin(self) -> Origin:
        """The label of its figures. emulated: computation is replaced by a sleep; simulated: figures are invented."""
        return "measured"

    def items_per_operation(self, processes: int) -> int:
        """Return how many items one operation of all ranks together processes."""
        return 1

    def expected_seconds(self, processes: int) -> float:
        """Return roughly how long one operation takes, for the cost estimate of `repro plan` only."""
        return 0.01

    def absent(self) -> str:
        """Return what service or room is missing on this machine and how to get it, in one line; "" if nothing is.

        It is asked when a suite is planned or run, never when a record is read.
        """
        return ""

    @abstractmethod
    def start(self, post: Post) -> Measuring:
        """Prepare one rank: data, weights, groups; not timed. Warm-up operations follow."""
