"""The rules of a parameter server: who is aggregated with whom, which work comes next, who has to wait. Needs no torch.

A ticket is one unit of work in the seeded order of the data: ticket t of G groups is part t mod G of global batch
t div G. Synchronous groups get their tickets from one queue, so that a budget of epochs passes every sample as often as
under any other engine, however fast each worker is. Under bounded staleness (ssp) every worker has tickets of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Mode = Literal["sync", "async", "mixed", "ssp"]
DONE = -1
"""In place of a ticket: no work is left."""


class Update(NamedTuple):
    """One update of a shard."""

    worker: int
    """The first of its group."""
    read: int
    """Version of the weights that the gradient was computed with."""
    applied: int
    """Version of the weights that it was applied to; the staleness is `applied` - `read`."""
    ahead: int
    """Clocks that the worker was ahead of the slowest when it computed."""
    rate: float
    """Learning rate that was used."""
    loss: float
    at_ns: int
    """When it had been applied, nanoseconds of the log's clock."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One mode on `workers` workers."""

    mode: Mode
    workers: int
    group: int
    """Workers whose gradients are averaged before they are applied."""
    staleness: int
    """Clocks that a worker may be ahead of the slowest; only under ssp with individual updates."""

    @property
    def groups(self) -> int:
        return self.workers // self.group

    @property
    def lockstep(self) -> bool:
        """True: every update holds the gradients of all workers, which wait for it."""
        return self.groups == 1

    @property
    def may_lose(self) -> bool:
        """Single workers may go: nobody waits for them, and their work is dealt again."""
        return self.mode == "async" and not self.lockstep

    @property
    def expected_lag(self) -> float | None:
        """Mean version lag with equal workers but for the end terms: p / g - 1; None: ssp only bounds it."""
        return None if self.mode == "ssp" and not self.lockstep else float(self.groups - 1)

    def group_of(self, worker: int) -> int:
        return worker // self.group

    def place(self, ticket: int, worker: int) -> tuple[int, int]:
        """Return (step, rank) of the micro-batches in the seeded order that a worker computes for a ticket."""
        step, part = divmod(ticket, self.groups)
        return step, part * self.group + worker % self.group


class Dealer:
    """Deals the tickets 0 to `tickets` - 1; not thread-safe."""

    def __init__(self, rules: Rules, tickets: int) -> None:
        self.rules, self.tickets = rules, tickets
        self.stopped = False
        self._next = rules.groups
        self._returned: list[int] = []
        self._out: dict[int, int] = {}

    def first(self, group: int) -> int:
        """Return the first ticket of a group: its number."""
        return self._deal(group, group if group < self.tickets else DONE)

    def next(self, group: int) -> int | None:
        """Return the next ticket of a group that has finished its own; None: not decided before others have finished.
        """
        finished = self._out.pop(group, None)
        if self.stopped:
            return DONE
        if self.rules.mode == "ssp":
            wanted = (finished if finished is not None else group) + self.rules.groups
            return self._deal(group, wanted if wanted < self.tickets else DONE)
        if self._returned:
            return self._deal(group, self._returned.pop())
        if self._next < self.tickets:
            self._next += 1
            return self._deal(group, self._next - 1)
        return None if self._out else DONE

    def lose(self, group: int) -> None:
        """Reclaim the ticket of a group that has left."""
        ticket = self._out.pop(group, None)
        if ticket is not None:
            self._returned.append(ticket)

    def _deal(self, group: int, ticket: int) -> int:
        if ticket != DONE:
            self._out[group] = ticket
        return ticket


class Clocks:
    """Finished clocks of every worker under ssp (Ho et al., 2013); not thread-safe."""

    def __init__(self, rules: Rules) -> None:
        self.bound = rules.staleness
        self.finished = [0] * rules.workers

    def ahead(self, worker: int) -> int:
        """Clocks that a worker has finished more than the slowest."""
        return self.finished[worker] - min(self.finished)

    def tick(self, worker: int) -> None:
        self.finished[worker] += 1

    def leave(self, worker: int) -> None:
        """Let nobody wait for a worker that has ended."""
        self.finished[worker] = max(self.finished[worker], 1 << 62)

    def may_start(self, worker: int) -> bool:
        """Return whether a worker may start its next clock: it is at most `bound` clocks ahead of the slowest."""
        return self.ahead(worker) <= self.bound
