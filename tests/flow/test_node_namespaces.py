"""Four nodes that share no folder, no clock, no name and no network but a switch: each in Linux namespaces of its own
(network, mount, PID, UTS, IPC, time), with clocks that differ by days. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.record.folder.store import Record, read_record
from tests.commands import environment
from tests.waiting import until

COUNT = 4
DAY = 86_400
PORT = 29410
LAUNCHER = f"launcher={{kind: torchrun, nodes: {COUNT}, silence_seconds: 3, join_seconds: 90}}"
TRAIN = ("quickstart", "-o", LAUNCHER, "-o", "processes=4", "-o", "sequential=null", "-o", "stop.target=0.5",
         "-o", "workload={kind: digits-mlp, hidden: 16, depth: 1}")


def namespaces_work() -> bool:
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    command = ["unshare", "-n", "-m", "-p", "-u", "-i", "-T", "--fork", "--monotonic", "1", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not namespaces_work(), reason="needs root, iproute2, util-linux and time namespaces")]


def told(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, timeout=60).stdout


def last_child(pid: int) -> int:
    found = until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return int(found[0])


class Cluster:
    """A switch and nodes; all ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holders: list[subprocess.Popen[bytes]] = []
        self.started: list[subprocess.Popen[str]] = []
        self.switch = self._hold("-n", name="switch", script="exec sleep infinity")
        told("nsenter", "-t", self.switch, "-n", "ip", "link", "add", "br0", "type", "bridge")
        told("nsenter", "-t", self.switch, "-n", "ip", "link", "set", "br0", "up")
        self.nodes = [self._node(number) for number in range(COUNT)]

    def _hold(self, *kinds: str, name: str, script: str) -> int:
        """Start a process that holds new namespaces; return the pid of a process in them."""
        self.holders.append(subprocess.Popen(["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", script, name]))
        return last_child(self.holders[-1].pid)

    def _node(self, number: int) -> int:
        ahead = str(number * 3 * DAY)
        # The folder of the run is below one of these; only node 0 sees it.
        own = "" if number == 0 else "mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; "
        pid = self._hold("-n", "-m", "-p", "-u", "-i", "-T", "--mount-proc", "--monotonic", ahead, "--boottime", ahead,
                         name=f"node{number}", script=f"hostname node{number}; {own}exec sleep infinity")
        until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        told("nsenter", "-t", self.switch, "-n", "ip", "link", "add", f"port{number}", "type", "veth", "peer", "name",
             "eth0", "netns", str(pid))
        for words in (("link", "set", f"port{number}", "master", "br0"), ("link", "set", f"port{number}", "up")):
            told("nsenter", "-t", self.switch, "-n", "ip", *words)
        for words in (("addr", "add", f"10.99.0.{number + 1}/24", "dev", "eth0"), ("link", "set", "eth0", "up"),
                      ("link", "set", "lo", "up")):
            told("nsenter", "-t", pid, "-n", "ip", *words)
        return pid

    def cut(self, number: int, back: bool = False) -> None:
        """Cut the cable of a node, without a word to anybody; or put it back."""
        told("nsenter", "-t", self.switch, "-n", "ip", "link", "set", f"port{number}", "up" if back else "down")

    def start(self, number: int, *arguments: str) -> subprocess.Popen[str]:
        """Start `repro` on a node."""
        variables = {**environment(), "REPRO_SECRET": "a secret of sixteen characters", "TMPDIR": "/tmp"}
        process = subprocess.Popen(
            ["nsenter", "-t", str(self.nodes[number]), "-a", f"--wd={self.folder if number == 0 else '/tmp'}",
             sys.executable, "-m", "repro", *arguments],
            text=True, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def agents(self) -> list[subprocess.Popen[str]]:
        return [self.agent(number) for number in range(1, COUNT)]

    def agent(self, number: int) -> subprocess.Popen[str]:
        return self.start(number, "agent", "--join", f"10.99.0.1:{PORT}", "--wait", "120")

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill the `repro` that nsenter has forked, with signal 9 and nothing else."""
        os.kill(last_child(process.pid), signal.SIGKILL)
        process.communicate(timeout=60)

    def close(self) -> None:
        for holder in self.holders:  # PID 1 of a PID namespace takes everything in it along
            holder.kill()
            holder.wait()
        for process in self.started:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=400)
    assert process.returncode == code, said
    return said


def wait_for(what: str, cluster: Cluster, pattern: str, count: int = 1) -> None:
    until(lambda: len(list(cluster.folder.glob(pattern))) >= count)


def sound(cluster: Cluster, name: str = "run") -> Record:
    """Return a record in which nothing is lost and nothing is doubled."""
    record = read_record(cluster.folder / name)
    assert len({item.trial_id for item in record.results}) == len(record.results) == record.planned
    assert {item.status for item in record.results} <= {"ok", "missed", "completed"}, \
        {item.trial_id: (item.status, item.reason) for item in record.results}
    finished(cluster.start(0, "verify", name))
    return record


def test_clocks_names_and_folders_differ_and_quickstart_runs(cluster: Cluster) -> None:
    agents = cluster.agents()
    said = finished(cluster.start(0, "run", *TRAIN, "--seeds", "2", "--no-mlflow", "--out", "run"))
    for agent in agents:
        assert "the run is over" in finished(agent)
    record = sound(cluster)
    assert [(node.node, node.host) for node in record.nodes.nodes] == [(k, f"node{k}") for k in range(1, COUNT)], said
    for node in record.nodes.nodes:
        assert node.clock_bound_ns is not None and node.clock_bound_ns < 1e9
        assert abs(node.clock_offset_ns / 1e9 - node.node * 3 * DAY) <= node.clock_bound_ns / 1e9 + 1e-3
    for result in record.results:
        assert {f"rank{rank}.log" for rank in range(COUNT)} <= {
            path.name for path in record.folder.trial(result.trial_id).iterdir()}


def test_firecaffe_runs_with_its_algorithms(cluster: Cluster) -> None:
    agents = cluster.agents()
    finished(cluster.start(0, "run", "firecaffe", "-o", LAUNCHER, "-o", "processes=1,2,4", "-o", "stop.max_epochs=1",
                           "-o", "batch.global=64", "-o", "stop.target=0.2", "--seeds", "1", "--no-mlflow",
                           "--out", "run"))
    list(map(finished, agents))
    record = sound(cluster)
    assert {cell.choices.processes for cell in record.plan.cells} == {1, 2, 4}


def test_a_folder_that_is_not_shared_is_named(cluster: Cluster) -> None:
    agents = cluster.agents()
    shared = LAUNCHER.replace("nodes:", "shared: true, nodes:")
    said = finished(cluster.start(0, "run", *TRAIN, "-o", shared, "-o", "engine=ddp", "--seeds", "1", "--no-mlflow",
                                  "--out", "run"), 1)
    assert "node1" in said and "it is not shared; leave out launcher.shared" in said
    list(map(finished, agents))


LONG = (*TRAIN, "-o", "stop.max_epochs=100", "-o", "stop.design=fixed_budget", "-o", "engine=ddp", "--seeds", "2",
        "--no-mlflow", "--out", "run")


def descendants(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


def last_rank(agent: subprocess.Popen[str]) -> int:
    """Return the rank of an agent: the only process below its fork server."""
    return descendants(agent.pid)[-1]


@pytest.mark.parametrize("what", ["agent", "rank", "parent", "link"])
def test_a_run_is_resumed_after_a_loss(cluster: Cluster, what: str) -> None:
    agents = cluster.agents()
    run = cluster.start(0, "run", *LONG)
    wait_for("no trial trains", cluster, "run/trials/*/system_1.txt")
    time.sleep(2)
    begin = time.monotonic()
    if what == "parent":
        cluster.kill(run)
    else:
        if what == "agent":
            cluster.kill(agents[1])
            agents[1] = cluster.agent(2)
        elif what == "rank":
            os.kill(last_rank(agents[1]), signal.SIGKILL)
        else:
            cluster.cut(2)
        wait_for("the trial does not end", cluster, "run/trials/*/result.json")
        seconds = time.monotonic() - begin
        cluster.cut(2, back=True)
        (first, *_) = read_record(cluster.folder / "run").results
        assert first.status == "crashed" and "node 2 (node2)" in first.reason, first.reason
        print(f"{what}: {first.reason} after {seconds:.1f} s")
        finished(run, 1)  # the other trial has run, with all nodes again
        list(map(finished, agents))
        agents = cluster.agents()
    finished(cluster.start(0, "run", "--resume", "run", "--no-mlflow", "--rerun-failed"))
    list(map(finished, agents))
    sound(cluster)
