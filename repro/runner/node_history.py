"""The computers of a run while it executes: recorded when it starts and after each change, named by every start."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.launchers.nodes.slurm_job import allocation, in_job
from repro.record.environment.differences import SHOWN
from repro.record.environment.environment import Environment
from repro.record.environment.nodes import (
    Nodes,
    node_differences,
    one_computer,
    shared_nodes,
    slow_links,
    unfit_nodes,
)
from repro.record.folder.ledger import append_line
from repro.runner.context import RunContext
from repro.runner.launching import Launchers
from repro.suite.model import Trial


@dataclass(slots=True)
class NodeHistory:
    """Compares the computers that the launchers have with the last ones that the record has."""

    context: RunContext
    launchers: Launchers
    environment: Environment
    """Of this start, on node 0."""
    known: Sequence[Nodes]
    """Of earlier starts."""
    _last: Nodes = field(default_factory=Nodes, init=False)
    _job: Mapping[str, Any] | None = field(default=None, init=False)
    """Of a shard that Slurm has started, whatever launches its ranks."""

    def begin(self, preload_seconds: float | None) -> None:
        """Record the computers of this start, if they are other ones, and the warnings of them.

        Args:
            preload_seconds: what it took to load modules; the record keeps that of the first start.
        """
        found = self._now()
        if self.known:
            self._last = self.known[-1]
        else:
            found = found.model_copy(update={"preload_seconds": preload_seconds})
        self._take(found)
        self._warn(found)

    def gather(self, trial: Trial) -> tuple[str, ...]:
        """Wait for missing computers, record a change, and return the names of the places that a trial runs on.

        Raises:
            TrialError: one did not join in time.
        """
        used = self.launchers.gather(trial)
        found = self._now()
        if self._take(found):
            self._warn(found)
        return found.names(used)

    def _now(self) -> Nodes:
        if self._job is None:  # asked once: it is that of the process
            self._job = {"allocation": dict(allocation())} if self.context.plan.kind == "shard" and in_job() else {}
        return Nodes.model_validate({"at_ms": round(time.time() * 1e3), "here": self.environment.placement,
                                     **self._job, **self.launchers.nodes})

    def _take(self, found: Nodes) -> bool:
        """Record a change; return False if there is none."""
        if self._last.same_places(found):
            return False
        changed = [f"node {number} is {name}, was {before}" for number, (before, name) in enumerate(
            zip(self._last.names(), found.names(), strict=False)) if before and before != name]
        append_line(self.context.folder.nodes, found)
        self._last = found
        if changed:
            more = f" (and {len(changed) - SHOWN} more)" if len(changed) > SHOWN else ""
            self.context.warn("moved", "; ".join(changed[:SHOWN]) + more)
        return True

    def _warn(self, found: Nodes) -> None:
        for text in (*node_differences(self.environment, found.nodes), *unfit_nodes(found.nodes),
                     *one_computer(found.names()), *slow_links(found.links), *shared_nodes(found.allocation)):
            self.context.warn("nodes", text)
