"""Launcher that starts ranks on this machine with torch elastic, each a new process forked from a warm server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field, PrivateAttr

from repro.core.machine import count_cores
from repro.launchers.processes import fork_server
from repro.launchers.processes.fork_server import WarmServer
from repro.launchers.processes.hang import Deadline
from repro.launchers.processes.node_launch import NodeLaunch, interface_of
from repro.launchers.processes.rank import LOOPBACK, Assignment, Membership
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult, usual_ranks
from repro.seams.plugin import Setting


class Local(Launcher):
    """One process per rank on this machine.

    Ranks get the environment that `open` found, then elastic's variables, then the request's.
    """

    title: ClassVar[str] = "torch elastic on this machine"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo")  # elastic starts every rank with torch
    monitor_seconds: float = Field(default=0.05, gt=0, le=5)
    """Interval at which elastic checks for ended ranks; adds half of it to a launch on average."""
    grace_seconds: int = Field(default=5, ge=1)
    """Time between a signal to the launcher and the killing of its ranks."""

    _server: WarmServer | None = PrivateAttr(default=None)
    _first: bool = PrivateAttr(default=False)

    @property
    def preload_seconds(self) -> float:
        """Duration of `open`, counted once per run; 0 for a launcher that found the server running."""
        return self._server.seconds if self._server and self._first else 0.0

    def unsupported(self, setting: Setting) -> str | None:
        if setting.on_gpu and setting.processes > setting.device_count:
            fewer = f"-o processes={setting.device_count}" if setting.device_count else ""
            return (f"{setting.processes} processes need one GPU each; this machine has {setting.device_count}: use "
                    f"{' or '.join(filter(None, (fewer, '-o device=cpu')))}")
        cores = setting.cores or count_cores()
        most = self._most(cores)
        if not setting.on_gpu and setting.launched > most:
            return f"{setting.launched} processes are too many for {cores} cores; at most {most}"
        return None

    def _most(self, cores: int) -> int:
        """Return the most processes that may share `cores`."""
        return usual_ranks(cores)

    def open(self, preload: Sequence[str], device: str) -> None:
        """Start the fork server and return when it is warm.

        Raises:
            UsageError: a module cannot be loaded, loading it starts CUDA, or a launcher with other modules is open.
        """
        self._server = fork_server.acquire(preload, device)
        self._first = self._server.users == 1

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Run the entry in one new process per rank and wait for all of them.

        A signal that ends the launch is delivered again after every rank has ended: SIGINT becomes KeyboardInterrupt.

        Raises:
            TrialError: elastic itself failed before or after the ranks ran.
        """
        return self._run(request, None, interface_of(LOOPBACK))

    def close(self) -> None:
        """Release the fork server; the last launcher that does so stops it and restores the environment."""
        if self._server is not None:
            server, self._server = self._server, None
            fork_server.release(server)

    def _run(self, request: LaunchRequest, place: object | None, environment: Mapping[str, str]) -> LaunchResult:
        """Launch ranks at `place`; the request's environment overrides `environment`."""
        assert self._server is not None, "launch comes after open"
        request.folder.mkdir(parents=True, exist_ok=True)
        self._server.revive()
        deadline = Deadline(request)
        work = Assignment(request.entry, request.payload, str(request.folder), {**environment, **request.environment},
                          request.expendable)
        found = NodeLaunch(work, request.processes, place, Membership(), self.monitor_seconds, self.grace_seconds
                           ).carry_out(deadline.in_time, self._server.folder)
        return deadline.result(found.codes, found.reports, found.suspect)
