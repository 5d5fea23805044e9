"""The class of a communication algorithm's plug-in, and what it reads back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from repro.seams.plugin import Plugin

BACKEND = "backend"
"""`CommRan.algorithm` of the collectives of gloo or NCCL."""


@dataclass(frozen=True, slots=True)
class CommRan:
    """The effective communication of one rank."""

    algorithm: str
    """`Comm.title` of the algorithm, or `BACKEND`."""
    collectives: tuple[str, ...] = ()
    """Collectives that ran by the algorithm's own schedules."""

    def as_effective(self) -> dict[str, str]:
        """Return the fields that a session reads back in `effective`."""
        found = {"comm_algorithm": self.algorithm}
        return found | ({"comm_collectives": ",".join(self.collectives)} if self.collectives else {})


class Comm(Plugin):
    """The collective algorithm that every engine's communication goes through."""

    title: ClassVar[str] = ""
    """Name of the algorithm in `CommRan`; "": the name in the registry."""
    own_algorithm: ClassVar[bool] = True
    """False: the collectives are the backend's own, whose traffic is not counted."""

    def passes_through(self, world: int) -> list[str]:
        """Return the collectives that the backend runs instead of this algorithm on `world` ranks."""
        return []

    @abstractmethod
    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        """Create the default process group of this rank (environment: MASTER_ADDR, MASTER_PORT)."""

    @abstractmethod
    def effective(self) -> str:
        """Return the effective algorithm for readers, read back from the process group."""

    def ran(self) -> CommRan | None:
        """Return the effective algorithm, to be compared with the requested one; None: it cannot be read back."""
        return None

    def sent(self, operation: str, world: int, count: int, itemsize: int) -> tuple[int, int, int] | None:
        """Return (bytes that the busiest rank sends, rounds, bytes on the path) of a collective; None: no formula."""
        return None

    def traffic(self) -> dict[str, Any]:
        """Return this rank's traffic since the last call (JSON-like, `comm.runtime.meter`); empty if not counted."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what it measured and results depend on (JSON-like), for checkpoints; a resumed trial restores it."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned in an earlier attempt."""

    def returned(self, since: float | None = None) -> None:
        """Note that the engine has finished waiting for collectives outside of this object, as DDP does in C++.

        Args:
            since: `time.perf_counter` when it had nothing left to compute; None: at its last collective.
        """

    def inline(self) -> AbstractContextManager[None]:
        """Inside, every collective of this thread has finished when its call returns."""
        return nullcontext()
