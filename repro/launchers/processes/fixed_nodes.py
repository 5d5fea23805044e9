"""Torch elastic for nodes that are known beforehand: one of them hosts the store, on a port chosen by the kernel.

Elastic's `c10d` rendezvous sleeps a random 0 to 0.3 s before its first round, to spread the first requests of many
nodes, asks the store for waiting nodes at every poll, and numbers nodes by the order in which they come. With given
nodes the first two are useless, and the third would move ranks to other nodes in every launch. The store is bound
before its port is published, so two suites on one machine never race for a port.
"""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, not marked so
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from repro.core.errors import TrialError
from repro.launchers.processes.rank import Membership, listen_at

BACKEND = "repro-fixed-nodes"
STORE_SECONDS = 60


def bind_store(address: str) -> TCPStore:
    """Bind a store to any free port of one address of this node (torch itself: of all, and it asks for no secret).

    Args:
        address: "" for all.

    Raises:
        TrialError: this node does not have the address.
    """
    try:
        listening = listen_at(address, 0)
    except OSError as error:
        raise TrialError(f"{address} cannot be listened on: {error.strerror}; the processes of a trial meet there, so "
                         "its network interface must be up (`ip address`)") from error
    port = listening.getsockname()[1]
    return TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=STORE_SECONDS),
                    multi_tenant=False, master_listen_fd=listening.detach())


class FixedNodes(RendezvousHandler):
    """One node of a world of given nodes, with the store shared by its workers."""

    def __init__(self, run_id: str, members: Membership) -> None:
        self._run_id, self._members = run_id, members
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks are clients of the agent's store; none binds a port for it."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        given = self._members
        if given.node == 0:
            self._store = given.store or bind_store(given.address)
        else:
            self._store = TCPStore(given.address, given.port, is_master=False,
                                   timeout=timedelta(seconds=STORE_SECONDS))
        where = RendezvousStoreInfo(given.address, self._store.port)
        return RendezvousInfo(PrefixStore(given.prefix, self._store), given.node, given.nodes, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no second round."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True


class NoLogs(LogsSpecs):
    """Makes elastic write and follow no logs: each rank redirects its own output and reports its own failure.

    Elastic's default leaves folders behind in /tmp and follows log files with one thread per stream, which wakes ten
    times a second and delays the end of a launch by as much.
    """

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for each in envs.values():
            each["TORCHELASTIC_ERROR_FILE"] = ""
        console, nowhere = dict.fromkeys(envs, ""), dict.fromkeys(envs, os.devnull)
        return LogsDest(stdouts=console, stderrs=console, error_files=nowhere)

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return FixedNodes(parameters.run_id, parameters.config["members"])


def register() -> None:
    """Register the rendezvous with elastic, which accepts the same function again."""
    rendezvous_handler_registry.register(BACKEND, _create)
