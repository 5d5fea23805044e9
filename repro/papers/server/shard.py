"""One shard: its tensors, the optimizer over them, and the updates that it has applied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from repro.papers.server.rules import DONE, Clocks, Dealer, Rules, Update
from repro.seams.training import Optimizer, ServerWork


def divide(sizes: Sequence[int], shards: int) -> list[list[int]]:
    """Return the tensors of each shard, by number: the largest first, each to the shard with the fewest elements.

    Tensors stay whole, so that rules that look at whole tensors stay right.
    """
    found: list[list[int]] = [[] for _ in range(shards)]
    filled = [0] * shards
    for index in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        least = filled.index(min(filled))
        found[least].append(index)
        filled[least] += sizes[index]
    return [sorted(part) for part in found]


class Push(NamedTuple):
    """A worker's gradient and what came with it."""

    worker: int
    read: int
    """Version that the worker computed with."""
    loss: float
    rate: float | None
    """Learning rate that the worker states; None: the shard's own schedule."""
    gradient: torch.Tensor
    """Flat, float32; mean over the worker's samples."""


class Lost(Exception):
    """A worker without which the mode cannot go on has gone."""


class Shard:
    """Weights in one flat tensor, stepped by the trial's optimizer; threads of several workers use it."""

    def __init__(
        self, named: Sequence[tuple[str, torch.Tensor]], rules: Rules, optimizer: Optimizer, divide_by_staleness: bool
    ) -> None:
        self.rules, self.divides = rules, divide_by_staleness
        self.flat = torch.cat([tensor.detach().to("cpu", torch.float32).reshape(-1) for _, tensor in named])
        self.named: list[tuple[str, torch.nn.Parameter]] = []
        self._slices: list[slice] = []
        start = 0
        for name, tensor in named:
            place = slice(start, start + tensor.numel())
            self._slices.append(place)
            self.named.append((name, torch.nn.Parameter(self.flat[place].view(tensor.shape))))
            start = place.stop
        self.optimizer = optimizer.build(self.named)
        self.version = 0
        """Updates applied so far."""
        self.updates: list[Update] = []
        self.snapshots: dict[int, torch.Tensor] = {}
        self.changed = threading.Condition()
        self.work: ServerWork | None = None
        self.dealer: Dealer | None = None
        self.clocks = Clocks(rules)
        self.lost: list[int] = []
        """Workers that have gone."""
        self.failure: BaseException | None = None
        self._pending: dict[int, dict[int, Push]] = {}
        self._rounds = [0] * rules.groups
        self._tickets: dict[int, int | None] = {}

    def begin(self, work: ServerWork, deals: bool) -> None:
        """Start an asynchronous run.

        Args:
            deals: this shard deals the tickets for all.
        """
        with self.changed:
            self.work = work
            if deals:
                self.dealer = dealer = Dealer(self.rules, work.tickets)
                self._tickets = {group: dealer.first(group) for group in range(self.rules.groups)}
            self._keep()

    def first(self, worker: int) -> int:
        """Return a worker's first ticket."""
        ticket = self._tickets[self.rules.group_of(worker)]
        assert ticket is not None
        return ticket

    def push(self, push: Push, out: torch.Tensor) -> tuple[int, int]:
        """Apply a gradient, with those of its group; return when the worker may go on.

        Args:
            out: receives the weights.

        Returns:
            The worker's next ticket, and the version of the weights.
        """
        group = self.rules.group_of(push.worker)
        with self.changed:
            pending, turn = self._pending.setdefault(group, {}), self._rounds[group]
            pending[push.worker] = push
            if len(pending) == self.rules.group:
                self._apply([pending[worker] for worker in sorted(pending)])
                pending.clear()
                self._rounds[group] += 1
                if self.dealer is not None:
                    self._tickets[group] = self.dealer.next(group)
                self.changed.notify_all()
            self._wait(lambda: self._rounds[group] > turn)
            if self.dealer is not None:
                self._wait(lambda: self._next(group) is not None)
            if self.rules.mode == "ssp" and not self.rules.lockstep and self._tickets.get(group) != DONE:
                self._wait(lambda: self.clocks.may_start(push.worker)
                           or (self.dealer is not None and self.dealer.stopped))
            out.copy_(self.flat)
            return self._tickets.get(group) or 0, self.version

    def _next(self, group: int) -> int | None:
        if self._tickets[group] is None and self.dealer is not None:
            self._tickets[group] = self.dealer.next(group)
        return self._tickets[group]

    def _wait(self, done: Callable[[], bool]) -> None:
        self.changed.wait_for(lambda: self.failure is not None or done())
        if self.failure is not None:
            raise self.failure

    def _apply(self, pushes: Sequence[Push]) -> None:
        gradient = pushes[0].gradient
        if len(pushes) > 1:
            for push in pushes[1:]:
                gradient.add_(push.gradient)
            gradient.div_(len(pushes))
        staleness = self.version - min(push.read for push in pushes)
        rate = pushes[0].rate
        if rate is None:
            assert self.work is not None, "an asynchronous run has begun"
            rate = self.work.rate_of(self.version)
        if self.divides:
            rate /= max(1, staleness)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for (_, parameter), place in zip(self.named, self._slices, strict=True):
            parameter.grad = gradient[place].view(parameter.shape)
        self.optimizer.step()
        for _, parameter in self.named:
            parameter.grad = None
        ahead = 0
        for push in pushes:
            ahead = max(ahead, self.clocks.ahead(push.worker))
            self.clocks.tick(push.worker)
        self.updates.append(Update(
            pushes[0].worker, self.version - staleness, self.version, ahead, rate,
            sum(push.loss for push in pushes) / len(pushes), self.work.now() if self.work else 0))
        self.version += 1
        self._keep()

    def _keep(self) -> None:
        """Copy the weights at a version of the grid."""
        if self.work is not None and self.version in self.work.grid:
            self.snapshots[self.version] = self.flat.clone()

    def snapshot(self, version: int) -> torch.Tensor:
        """Return the weights after `version` updates, waiting for them.

        A worker that has gone may have reached some shards with its last update and not others, so a shard can lack
        one update of each.
        """
        with self.changed:
            self._wait(lambda: self.version >= version - len(self.lost))
            return self.snapshots.pop(version, self.flat).clone()

    def reach(self, version: int) -> None:
        """Wait until `version` updates are applied."""
        with self.changed:
            self._wait(lambda: self.version >= version)

    def stop(self) -> None:
        """Deal no further tickets."""
        with self.changed:
            if self.dealer is not None:
                self.dealer.stopped = True
                for group, ticket in self._tickets.items():
                    self._tickets[group] = DONE if ticket is None else ticket
            self.changed.notify_all()

    def leave(self, worker: int) -> None:
        """Take a worker that has ended out of the clocks, so that no worker waits for it."""
        with self.changed:
            self.clocks.leave(worker)
            self.changed.notify_all()

    def lose(self, worker: int) -> None:
        """Go on without a worker, or fail."""
        with self.changed:
            self.lost.append(worker)
            if not self.rules.may_lose:
                self.failure = self.failure or Lost(f"worker {worker} has gone, without which mode {self.rules.mode} "
                                                    "cannot go on")
            elif self.dealer is not None:
                self.dealer.lose(self.rules.group_of(worker))
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()
