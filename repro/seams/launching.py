"""The classes of a launcher plug-in: what it is asked to start, and how it reports the end of every rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from repro.seams.plugin import Plugin


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One start of one entry point on all ranks."""

    entry: str
    """ "module:function", called as function(rank_folder, payload) in every rank."""
    payload: Mapping[str, Any]
    processes: int
    device: str
    folder: Path
    """Where each rank's printed output goes, as rank<N>.log."""
    timeout_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    stall_seconds: float | None = None
    """Ended as hung when `progress` has not changed for so long; None: not watched."""
    progress: Path | None = None
    """The file that grows while the entry gets on."""


AFTER = "after rank "
"""How the reason of a rank begins that was ended because another one failed."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    exit_code: int
    """0 fine; negative: killed by that signal."""
    reason: str = ""
    tail: str = ""
    """What it printed last, in one line; filled in for the rank that failed first."""


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How a launch ended."""

    ends: tuple[RankEnd, ...]
    seconds: float
    timed_out: bool = False
    hung: bool = False
    """Ended because nothing got on for `stall_seconds`."""
    network: Mapping[str, Any] | None = None
    """What a launcher with a network of its own knows of it: rates stated and measured, bytes by node (JSON-like, at
    least the fields of `repro.record.results.Network` that have no default)."""

    @property
    def ok(self) -> bool:
        return not self.timed_out and not self.hung and all(end.exit_code == 0 for end in self.ends)

    @property
    def cause(self) -> RankEnd | None:
        """The rank that failed first, not one that was ended because of it; None when none failed."""
        failed = [end for end in self.ends if end.exit_code != 0]
        return next((end for end in failed if not end.reason.startswith(AFTER)), failed[0] if failed else None)


class Launcher(Plugin):
    """Starts the ranks and reports how each ended. Opened once a run, used for every trial."""

    title: ClassVar[str]
    origin: ClassVar[Literal["measured", "emulated", "simulated"]] = "measured"
    """What figures are that were taken under it: every report says so."""

    def rank_logs(self, processes: int) -> int:
        """Return how many files with printed output a launch of `processes` ranks leaves."""
        return processes

    @property
    def preload_seconds(self) -> float | None:
        """What loading modules ahead cost in `open`; None where nothing is loaded ahead."""
        return None

    def open(self, preload: Sequence[str], device: str) -> None:
        """Prepare (a fork server, namespaces); called once before the first launch."""

    def prepare(self, processes: int) -> None:
        """Get ready for launches of so many ranks, off every clock; called after `open`, once for each number."""

    @abstractmethod
    def launch(self, order: LaunchRequest) -> LaunchResult: ...

    def close(self) -> None:
        """Undo `open`; called once, also after a failure."""
