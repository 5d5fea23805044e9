"""Cost of a trial in addition to training: a trial of one step over a bare `torchrun` of the same work."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from repro.bench.trial import BenchOutcome, bench_trial, outcome, preload, run_trial
from repro.core import registry
from repro.core.errors import TrialError
from repro.launchers.nodes import hosts
from repro.launchers.nodes.hosts import LISTEN
from repro.launchers.torchrun import Torchrun
from repro.seams.launching import Launcher

LIMIT = 0.30


class AgentsHere(Torchrun):
    """Nodes whose agents are all on this machine."""

    def _start_agents(self, port: int, text: str) -> None:
        for node in range(1, self.nodes):
            command = [sys.executable, "-m", "repro", "agent", "--join", f"127.0.0.1:{port}"]
            self._starts.start(str(node), f"agent {node}", command, {**os.environ, hosts.SECRET: text})


def measure(pairs: int, nodes: int = 1) -> BenchOutcome:
    """Measure the seconds from the request to the end of all processes; the order inside a pair alternates.

    The fork servers are loaded before the first pair, as before the first trial of a run; the time is reported.

    Args:
        nodes: 1: two ranks of one launcher; more: that many agents on this machine with a rank each, against as many
            `torchrun` that are started at once, each by a shell as ssh would.
    """
    launcher: Launcher = registry.load("launcher", "local")() if nodes == 1 else AgentsHere(nodes=nodes)
    processes = 2 if nodes == 1 else nodes
    before = os.environ.get(LISTEN)
    os.environ[LISTEN] = "127.0.0.1:0"
    try:
        launcher.open(preload(), "cpu")
        ours, theirs = _pairs(pairs, launcher, processes, nodes)
        loaded = launcher.preload_seconds
    finally:
        launcher.close()
        os.environ.pop(LISTEN)
        if before is not None:
            os.environ[LISTEN] = before
    where = f"{processes} processes" + (f" of {nodes} nodes, all on this machine" if nodes > 1 else "")
    what = f"turnaround: one step on {where}, start to end (fork server loaded once per run in {loaded:.1f} s)"
    return outcome(what, ("repro", ours), ("torchrun", theirs), "s", LIMIT)


def _pairs(pairs: int, launcher: Launcher, processes: int, nodes: int) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(pairs):
            for harness in (True, False) if pair % 2 else (False, True):
                if harness:
                    ours.append(run_trial(launcher, bench_trial(processes, 1, 1), Path(scratch, f"{pair}")))
                else:
                    theirs.append(_torchrun(nodes))
    return ours, theirs


SCRIPT = Path(__file__).with_name("bare_ddp.py")


def _torchrun(nodes: int) -> float:
    """Return the seconds of one torchrun a node; of several nodes each is started as `ssh NODE torchrun ...` would."""
    if nodes == 1:
        return _seconds([
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return _seconds([
        ["sh", "-c", shlex.join([
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", str(node),
            "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port), str(SCRIPT)])]
        for node in range(nodes)])


def _seconds(commands: list[list[str]]) -> float:
    """Return the seconds that commands take which are started at once."""
    environment, begin = {**os.environ, "OMP_NUM_THREADS": "1"}, time.perf_counter()
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
               for command in commands]
    try:
        said = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    seconds = time.perf_counter() - begin
    for process, text in zip(started, said, strict=True):
        if process.returncode != 0:
            raise TrialError(f"torchrun failed: {(text.strip().splitlines() or ['no message'])[-1]}")
    return seconds
