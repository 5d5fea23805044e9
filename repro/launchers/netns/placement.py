"""Assignment of ranks to nodes, and the way a rank moves to its node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

from repro.launchers.netns import namespaces, straggler


def node_of(rank: int, processes: int, nodes: int) -> int:
    """Return the node of a rank; nodes hold blocks of ranks: with 2 per node, ranks 0 and 1 are on node 0."""
    return rank * nodes // processes


class Placement:
    """Argument given to every rank; each rank receives its own `Ticket` from it.

    Torch elastic starts ranks in order, by pickling their arguments for the fork server, which can carry open files.
    Each pickling is for the next rank and carries the namespaces of that rank's node only.
    """

    def __init__(
        self, user: int | None, nodes: Sequence[int], environment: Sequence[Mapping[str, str]],
        slowdown: Mapping[int, float],
    ) -> None:
        """`nodes` and `environment` are by rank; `slowdown` names the slowed ranks only."""
        self._user, self._nodes, self._environment, self._slowdown = user, nodes, environment, slowdown
        self._issued = 0

    def __reduce__(self) -> tuple[type[Ticket], tuple[Any, ...]]:
        assert get_spawning_popen() is not None, "a placement is pickled only for a process that is being started"
        rank = self._issued
        self._issued += 1
        user = None if self._user is None else DupFd(self._user)
        return Ticket, (user, DupFd(self._nodes[rank]), dict(self._environment[rank]), self._slowdown.get(rank, 1.0))


class Ticket:
    """Namespaces, environment and slowdown of one rank."""

    def __init__(self, user: Any, net: Any, environment: Mapping[str, str], slowdown: float) -> None:
        self._user, self._net, self.environment, self._slowdown = user, net, environment, slowdown

    def enter(self) -> None:
        """Move this process to its node; to be called before it has a second thread.

        Raises:
            OSError: the kernel refuses.
        """
        user, net = None if self._user is None else self._user.detach(), self._net.detach()
        namespaces.enter(user, net)
        for file in (user, net):
            if file is not None:
                os.close(file)
        if self._slowdown > 1:
            straggler.slow_down(self._slowdown)
