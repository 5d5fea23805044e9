"""What an engine whose workers do not train in lock step offers to the worker's own loop for such engines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from repro.seams.training import ServerWork, Session


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


class AsyncSession(Session):
    """A session whose workers go on without waiting for one another; its `work` and `snapshot` run in two threads."""

    @abstractmethod
    def begin(self, work: ServerWork) -> None:
        """Start the shard of this rank, if it holds one."""

    @property
    @abstractmethod
    def samples_an_update(self) -> int:
        """Number of samples averaged into one update."""

    @abstractmethod
    def first(self) -> int:
        """Return this worker's first ticket; negative: there is no work."""

    @abstractmethod
    def place(self, ticket: int) -> tuple[int, int]:
        """Return (step, rank) of this worker's micro-batches of a ticket in the seeded order."""

    @abstractmethod
    def exchange(self, ticket: int, loss: Any) -> int:
        """Push the gradients of the last `backward`, pull the weights; return the next ticket, negative: the end."""

    @abstractmethod
    def leave(self) -> None:
        """Tell every shard that this worker has ended."""

    @abstractmethod
    def updates(self, first: int, stop: int) -> Sequence[Update]:
        """Wait until the first shard has applied `stop` updates; return those from `first` on (rank 0)."""

    @abstractmethod
    def snapshot(self, version: int) -> dict[str, np.ndarray]:
        """Return the servers' weights after `version` updates, by name, float32 (rank 0); blocks no worker."""

    @abstractmethod
    def end(self) -> None:
        """Deal no further work (rank 0)."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End the run with an error of rank 0's worker: `updates` and `snapshot` fail."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all workers have left the shards."""

    @abstractmethod
    def adopt(self, weights: dict[str, np.ndarray] | None) -> None:
        """Take the last evaluated weights as those of the trial: rank 0's on every rank."""
