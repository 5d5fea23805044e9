"""The classes of a launcher plug-in: the request to start an entry point, and the end of every rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr

from repro.seams.plugin import Plugin


def entry_point(function: Callable[[str, Mapping[str, Any]], object]) -> str:
    """Return a function of a module as a launcher names it to processes that do not exist yet."""
    return f"{function.__module__}:{function.__qualname__}"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A request to start one entry point on all ranks."""

    entry: str
    """As `entry_point` returns it; called as function(rank_folder, payload) in every rank."""
    payload: Mapping[str, Any]
    processes: int
    device: str
    folder: Path
    """Receives the printed output of each rank, as rank<N>.log."""
    timeout_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    stall_seconds: float | None = None
    """The launch is ended as hung if `progress` has not grown for this time; None: not watched."""
    expendable: tuple[int, ...] = ()
    """Ranks that may be killed by a signal without ending the others; the entry has to bear that."""
    progress: Path | None = None
    """The file that grows while the entry makes progress."""
    root: Path | None = None
    """Folder of the run, which holds `folder` and the paths in the payload; None: `folder` is all there is."""


RankCause = Literal["failed", "ended_after_another_rank", "checkpoint_refused", "out_of_memory"]
"""Causes of a rank's end other than exit code 0:

- `failed`: by itself, for the reason given.
- `ended_after_another_rank`: it was stopped because another rank had failed or hung.
- `checkpoint_refused`: it raised `CheckpointRefused` while it read the checkpoint to resume from.
- `out_of_memory`: an allocation failed in it, or the kernel's OOM killer ended it.
"""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one rank."""

    rank: int
    exit_code: int
    """0: success; negative: killed by that signal."""
    reason: str = ""
    """For people, in one line; decisions depend on `cause` alone."""
    tail: str = ""
    """The last lines that it printed, joined; filled in for the rank that failed first."""
    cause: RankCause = "failed"
    """Has a meaning only if `exit_code` is not 0."""

    @property
    def failed(self) -> bool:
        return self.exit_code != 0


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """The end of a launch."""

    ends: tuple[RankEnd, ...]
    seconds: float
    timed_out: bool = False
    hung: bool = False
    """Ended because `progress` did not grow for `stall_seconds`."""
    network: Mapping[str, Any] | None = None
    """Measured by a launcher that emulates a network: rates requested and measured, bytes by node (JSON-like, at least
    the fields of `repro.record.result.results.Network` that have no default)."""

    @property
    def ok(self) -> bool:
        return not self.timed_out and not self.hung and not any(end.failed for end in self.ends)

    @property
    def first_failure(self) -> RankEnd | None:
        """The rank that failed by itself, not one that was stopped because of it; None if no rank failed."""
        failed = [end for end in self.ends if end.failed]
        return next((end for end in failed if end.cause != "ended_after_another_rank"), failed[0] if failed else None)

    @property
    def refused_checkpoint(self) -> str:
        """The reason why a rank refused the checkpoint to resume from; "" if none did."""
        return next((end.reason for end in self.ends if end.failed and end.cause == "checkpoint_refused"), "")

    def failure_text(self) -> str:
        """Describe the rank that failed first and its reason in one line."""
        if self.timed_out:
            return f"timed out after {self.seconds:.0f} s"
        first = self.first_failure
        if first is None:
            return "no rank failed"
        tail = f"; its log ends: {first.tail}" if first.tail else ""
        return f"rank {first.rank}: {first.reason or f'exit code {first.exit_code}'}{tail}"


def usual_ranks(cores: int) -> int:
    """Return how many ranks may share `cores` before their times say nothing of ranks with a core each."""
    return max(8, 4 * cores)


def oversubscription(ranks: int, cores: int) -> str | None:
    """Return the caution for `ranks` on `cores`; None: not more than usual."""
    if ranks <= usual_ranks(cores):
        return None
    return (f"{ranks} ranks on {cores} cores ({ranks / cores:g} per core) are oversubscribed: bytes and schedules are "
            "those of a cluster, times are not, unless the ranks hardly compute")


def _say_nothing(text: str) -> None:
    pass


class Launcher(Plugin):
    """Starts the ranks and reports the end of each. Opened once per run, used for every trial."""

    title: ClassVar[str]
    origin: ClassVar[Literal["measured", "emulated", "simulated"]] = "measured"
    """The label of figures taken under it; every report shows it."""
    _tell: Callable[[str], None] = PrivateAttr(default_factory=lambda: _say_nothing)
    """Prints a line for the user, from `open` to `close`."""

    def tell_by(self, tell: Callable[[str], None]) -> None:
        """Set how lines for the user are printed; called before `open`."""
        self._tell = tell

    @property
    def node_count(self) -> int | None:
        """Return the number of computers that its options ask for; None: as many as the trial needs."""
        return None

    def nodes_of(self, processes: int) -> int:
        """Return the number of computers that a launch of `processes` takes, in equal blocks."""
        return 1

    def rank_logs(self, processes: int) -> int:
        """Return how many files with printed output a launch of `processes` ranks leaves."""
        return processes

    @property
    def preload_seconds(self) -> float | None:
        """Time that `open` took to load modules ahead; None if it loads none."""
        return None

    @property
    def one_folder(self) -> bool:
        """Return whether all ranks see the run's folder, so that they can write one checkpoint together."""
        return True

    @property
    def allocation(self) -> Mapping[str, Any]:
        """Return the scheduler's job (fields of `repro.record.environment.nodes.Allocation`); empty: none."""
        return {}

    @property
    def links(self) -> Sequence[Mapping[str, Any]]:
        """Return the measured links (fields of `repro.record.environment.nodes.Link`); empty before `open`."""
        return ()

    @property
    def stated_rates(self) -> tuple[float | None, float | None]:
        """Return the bits per second of links that it shapes: of the fastest one between nodes, and of what the ranks
        of a node send to each other together; None: as fast as the machine."""
        return None, None

    @property
    def other_nodes(self) -> Sequence[Mapping[str, Any]]:
        """Return what is known of other computers that take part (JSON-like); empty before `open`."""
        return ()

    def open(self, preload: Sequence[str], device: str) -> None:
        """Prepare (a fork server, namespaces); called once before the first launch."""

    def prepare(self, processes: int) -> None:
        """Prepare for launches of `processes` ranks, off every clock; called after `open`, once for each number."""

    def gather(self) -> None:
        """Wait for computers that are missing.

        Raises:
            TrialError: one is still missing when its time is over.
        """

    @abstractmethod
    def launch(self, request: LaunchRequest) -> LaunchResult: ...

    def close(self) -> None:
        """Undo `open`; called once, also after a failure."""
