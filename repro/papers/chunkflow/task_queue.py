"""The queue of tasks: what is received stays invisible for a time and comes back unless it is deleted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A task that was received."""

    body: str
    receipt: str
    """Handle of this receipt; a later receipt of the same task makes it void."""
    receives: int
    """How often the task was received, this time included."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tasks in the queue."""

    waiting: int
    in_flight: int
    """Received, neither deleted nor expired."""
    dead: int
    """Received too often; kept, but not given out again."""

    @property
    def open(self) -> int:
        return self.waiting + self.in_flight


class TaskQueue(ABC):
    """Tasks that are given out at least once. All methods raise `UsageError` if the queue cannot be reached."""

    @abstractmethod
    def add(self, bodies: Sequence[str]) -> None:
        """Add tasks, all or none."""

    @abstractmethod
    def receive(self) -> Message | None:
        """Return a visible task and hide it for the visibility timeout; None: no task is visible now.

        A task that was received `most_receives` times already becomes a dead letter instead.
        """

    @abstractmethod
    def delete(self, message: Message) -> bool:
        """Remove a task for good; False: the receipt is void because the task was received again, and nothing happens.
        """

    @abstractmethod
    def counts(self) -> Counts:
        """Return how many tasks there are."""

    @abstractmethod
    def dead(self) -> list[str]:
        """Return the bodies of the dead letters."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the queue with all its tasks."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; tasks stay."""
