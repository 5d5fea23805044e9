"""Runs on two nodes, each an agent with a fork server of its own on this machine: the same bits as on one node, and
what happens when a rank, an agent or the run itself is killed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from repro.core.errors import UsageError
from repro.launchers.nodes import channel
from repro.launchers.nodes import hosts as host_lists
from repro.launchers.nodes.head import identity
from repro.launchers.nodes.hosts import key_of
from repro.launchers.torchrun import Torchrun
from repro.record.folder.store import Record, read_record
from repro.seams.launching import LaunchRequest
from tests.commands import ROOT, environment, free_port
from tests.plans import suite
from tests.waiting import until

SECRET = "smuggled-secret-of-nodes-4711"
TWO = "{kind: torchrun, nodes: 2, silence_seconds: 3, join_seconds: 60}"
LONG = 4000


def written(seeds: int, epochs: int, launcher: str = TWO, engines: str = "[ddp]") -> str:
    stop = f"{{metric: top1, target: 0.5, max_epochs: {epochs}, design: fixed_budget}}"
    return suite("nodes", f"matrix:\n  engine: {engines}\n", head="master_seed: 20151102\n", seeds=seeds,
                 workload="{kind: digits-mlp, hidden: 16, depth: 1}", optimizer="{kind: sgd, lr: 0.05}", stop=stop,
                 evaluate_every=2000, device=None, comm="ring", processes=4, determinism="bitwise", launcher=launcher)


class Nodes:
    """A run, and the agents that take part in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.started: list[subprocess.Popen[str]] = []
        self.variables = {**environment(), "REPRO_SECRET": SECRET, "REPRO_LISTEN": f"127.0.0.1:{self.port}"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-m", "repro", *arguments], cwd=self.folder, text=True,
                                   env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def agent(self) -> subprocess.Popen[str]:
        return self.start("agent", "--join", f"127.0.0.1:{self.port}", "--wait", "60")

    def run(self, suite: str, name: str = "run") -> subprocess.Popen[str]:
        (self.folder / f"{name}.yaml").write_text(suite)
        return self.start("run", f"{name}.yaml", "--no-mlflow", "--out", name)

    def end(self, process: subprocess.Popen[str]) -> str:
        """Wait for a process that succeeds and return what it printed."""
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        return said

    def record(self, name: str = "run") -> Record:
        return read_record(self.folder / name)

    def wait_for_training(self, name: str = "run") -> None:
        """Wait until a trial has trained for a while."""
        logs = f"{name}/trials/*/result_*.txt"
        until(lambda: any("eval_accuracy" in log.read_text() for log in self.folder.glob(logs)))


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the ranks of a run or agent: the children of its fork server."""
    return [rank for server in psutil.Process(process.pid).children() for rank in server.children()
            if "forkserver" in " ".join(server.cmdline())]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def hashes(record: Record) -> list[tuple[str, ...]]:
    return [tuple(item.hashes[name] for name in ("weights_step_1", "final_weights")) for item in record.results]


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["[ddp]", "[ddp, {kind: deepspeed, stage: 1}]"])
def test_two_nodes_end_with_the_bits_of_one(nodes: Nodes, engines: str) -> None:
    agent = nodes.agent()
    run = nodes.run(written(1, 2, TWO, engines))
    said = nodes.end(run)
    assert "waiting up to 60 s for 1 more node; there: repro agent --join 127.0.0.1" in said
    assert "the run is over" in nodes.end(agent)
    nodes.end(nodes.run(written(1, 2, "local", engines), "one"))
    two, one = nodes.record(), nodes.record("one")
    assert {item.status for item in two.results} == {"ok"}
    assert sorted(hashes(two)) == sorted(hashes(one))
    for item in two.results:
        names = {path.name for path in two.folder.trial(item.trial_id).iterdir()}
        assert {f"rank{rank}.log" for rank in range(4)} <= names, "logs of both nodes"
    (node,) = two.nodes.nodes
    assert node.clock_bound_ns is not None and abs(node.clock_offset_ns) <= 2 * node.clock_bound_ns, "one machine"
    assert [(link.sender, link.receiver) for link in two.nodes.links] == [(0, 1), (1, 0)]
    assert all((link.bytes_per_second is None or 1e6 < link.bytes_per_second < 1e12) and 0 < link.latency_seconds < 1
               for link in two.nodes.links)
    assert node.environment.cores == two.environment.cores
    text = nodes.start("verify", "run").communicate(timeout=120)[0]
    assert "sound" in text or "0 problems" in text, text
    stored = b"".join(path.read_bytes() for path in nodes.folder.glob("run/**/*") if path.is_file())
    assert SECRET.encode() not in stored and SECRET not in said


def lost(nodes: Nodes, kill: Callable[[subprocess.Popen[str]], None]) -> tuple[str, subprocess.Popen[str]]:
    """Kill something of the agent in the first trial; return that trial's reason, and the run, which goes on."""
    agent = nodes.agent()
    run = nodes.run(written(2, LONG))
    nodes.wait_for_training()
    commands = [" ".join(item.cmdline()) for item in psutil.Process(agent.pid).children(recursive=True)]
    assert SECRET not in " ".join([*commands, *psutil.Process(agent.pid).cmdline()])
    kill(agent)
    until(lambda: list(nodes.folder.glob("run/trials/*/result.json")), run)
    (result,) = nodes.record().results
    assert result.status == "crashed"
    return result.reason, run


@pytest.mark.slow
def test_a_killed_rank_of_another_node_is_named_and_the_run_goes_on(nodes: Nodes) -> None:
    reason, run = lost(nodes, lambda agent: ranks_of(agent)[1].kill())
    assert "rank 3: killed by SIGKILL" in reason and "(on node 1 (" in reason
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)


@pytest.mark.slow
def test_a_killed_agent_is_named_and_another_takes_its_place(nodes: Nodes) -> None:
    def kill(agent: subprocess.Popen[str]) -> None:
        ranks = ranks_of(agent)
        agent.kill()
        psutil.wait_procs(ranks, timeout=20)
        assert not any(rank.is_running() for rank in ranks), "its ranks end with it"

    reason, run = lost(nodes, kill)
    assert f"node 1 ({socket.gethostname()}) was lost: it closed the connection" in reason
    nodes.variables["SLURMD_NODENAME"] = "gamma"  # as on another computer
    agent = nodes.agent()
    until(lambda: len(list(nodes.folder.glob("run/trials/*/result_*.txt"))) >= 2 and ranks_of(agent), run)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    assert (f"waiting up to 60 s for node 1 ({socket.gethostname()}), which was lost (it closed the connection); "
            f"there: repro agent --join 127.0.0.1:{nodes.port}") in said
    assert agent.wait(60) == 0
    record = nodes.record()
    first, second = (item.names() for item in record.node_history)
    assert first[0] == second[0] and first[1].startswith(socket.gethostname()) and second[1].startswith("gamma, cores ")
    assert [item.nodes for item in record.attempts] == [first, second]
    assert [item.text for item in record.incidents if item.kind == "moved"] == [
        f"node 1 is {second[1]}, was {first[1]}"]
    nodes.variables["SLURMD_NODENAME"] = "delta"
    nodes.agent()
    run = nodes.start("run", "--resume", "run", "--no-mlflow")
    until(lambda: len(nodes.record().node_history) == 3, run)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    measured = [item.links for item in nodes.record().node_history]
    assert [[(link.sender, link.receiver) for link in links] for links in measured] == [[(0, 1), (1, 0)]] * 3
    assert len({link.latency_seconds for links in measured for link in links}) == 6, "each of its own nodes"


@pytest.mark.slow
def test_links_are_measured_again_with_a_new_node_only(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def agent(name: str) -> subprocess.Popen[str]:
        nodes.variables["SLURMD_NODENAME"] = name  # as on another computer
        return nodes.agent()

    for name in ("REPRO_SECRET", "REPRO_LISTEN"):
        monkeypatch.setenv(name, nodes.variables[name])
    launcher = Torchrun(nodes=3, join_seconds=60, silence_seconds=5)
    first, _ = sorted((agent("alpha"), agent("beta")), key=lambda process: process.pid)
    launcher.open([], "cpu")
    try:
        before = list(launcher.links)
        launcher.gather()
        assert launcher.links == before and [link["sender"] for link in before] == [0, 1, 2]
        first.kill()  # node 1
        until(lambda: launcher._head is not None and any(node.lost for node in launcher._head.nodes))
        agent("gamma")
        launcher.gather()
        assert [link["sender"] for link in launcher.links] == [0, 1, 2]
        assert [new == old for new, old in zip(launcher.links, before, strict=True)] == [False, False, True]
    finally:
        launcher.close()


@pytest.mark.slow
def test_what_ranks_have_printed_stays_when_their_node_is_replaced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts of one trial print into the same files; a new agent has none of them."""
    for name in ("REPRO_SECRET", "REPRO_LISTEN"):
        monkeypatch.setenv(name, nodes.variables[name])
    launcher = Torchrun(nodes=2, join_seconds=60, silence_seconds=5)
    agent = nodes.agent()
    launcher.open([], "cpu")

    def printed(number: int) -> list[str]:
        folder = nodes.folder / "run" / "trial"
        found = launcher.launch(LaunchRequest("builtins:print", {"start": number}, 2, "cpu", folder, 60.0,
                                              root=nodes.folder / "run"))
        assert found.ok, found.failure_text()
        return re.findall(r"'start': (\d)", (folder / "rank1.log").read_text())

    try:
        assert printed(1) == ["1"]
        agent.kill()
        until(lambda: launcher._head is not None and any(node.lost for node in launcher._head.nodes))
        nodes.agent()
        assert printed(2) == ["1", "2"]
        assert printed(3) == ["1", "2", "3"]
    finally:
        launcher.close()


def test_an_agent_that_joins_and_goes_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPRO_SECRET", "REPRO_LISTEN"):
        monkeypatch.setenv(name, nodes.variables[name])
    told: list[str] = []

    def come_and_go(text: str) -> None:
        told.append(text)
        if text.startswith("waiting"):
            agent = channel.connect("127.0.0.1", nodes.port, key_of(SECRET))
            agent.send("hello", {"identity": identity(), "host": "away", "pid": 1, "description": {}})
            threading.Timer(0.5, agent.close).start()

    launcher = Torchrun(nodes=2, join_seconds=4)
    monkeypatch.setattr(launcher, "_tell", come_and_go)
    with pytest.raises(UsageError, match=r"node 1 did not join within 4 s; .*; the last one: away joined and was lost"):
        launcher.open([], "cpu")
    assert any(text.startswith("away joined and was lost (") for text in told)


@pytest.mark.slow
def test_a_stale_agent_is_refused_and_the_run_waits_for_another(nodes: Nodes) -> None:
    old = nodes.folder / "old"
    shutil.copytree(ROOT / "repro", old / "repro", ignore=shutil.ignore_patterns("__pycache__"))
    (old / "repro" / "core" / "another_version.py").write_text("")
    run = nodes.run(written(1, 2))
    current, nodes.variables = nodes.variables, {**nodes.variables, "PYTHONPATH": str(old)}
    said, _ = nodes.agent().communicate(timeout=120)
    nodes.variables = current
    words = f"{socket.gethostname()} cannot take part: code of repro "
    assert f"error: {words}" in said, said
    assert run.poll() is None, "it goes on waiting"
    agent = nodes.agent()
    assert f"refused: {words}" in nodes.end(run)
    nodes.end(agent)
    assert [item.status for item in nodes.record().results] == ["ok"]


@pytest.mark.slow
def test_an_agent_that_is_lost_while_it_joins_is_waited_for(nodes: Nodes) -> None:
    run = nodes.run(written(1, 1))
    lost: list[channel.Channel] = []

    def join() -> bool:
        with suppress(channel.LinkLost):
            lost.append(channel.connect("127.0.0.1", nodes.port, key_of(SECRET)))
        return bool(lost)

    until(join)
    lost[0].send("hello", {"identity": identity(), "host": "gone", "pid": 1, "description": {}})
    assert lost[0].receive().kind == "open"
    lost[0].close()
    agent = nodes.agent()
    nodes.end(run)
    nodes.end(agent)
    assert [item.status for item in nodes.record().results] == ["ok"]


@pytest.mark.slow
def test_agents_of_a_killed_run_serve_the_one_that_resumes_it(nodes: Nodes) -> None:
    agent = nodes.agent()
    run = nodes.run(written(3, 60))
    until(lambda: list(nodes.folder.glob("run/trials/*/result.json")))
    nodes.wait_for_training()
    ranks = ranks_of(agent)
    run.kill()
    run.communicate()
    psutil.wait_procs(ranks, timeout=30)
    assert not any(rank.is_running() for rank in ranks), "an agent without a run trains nothing"
    assert agent.poll() is None
    before = {item.trial_id: item for item in nodes.record().results}
    assert "3 of 3" in nodes.end(nodes.start("run", "--resume", "run", "--no-mlflow"))
    nodes.end(agent)
    after = {item.trial_id: item for item in nodes.record().results}
    assert len(after) == 3 and {key: after[key] for key in before} == before
    assert {item.status for item in after.values()} == {"ok"}


@pytest.mark.slow
def test_two_runs_of_one_secret_do_not_mix(nodes: Nodes, tmp_path: Path) -> None:
    """At the same time, each with an agent; a third agent, which comes for a node that is there, takes no part."""
    other = Nodes(tmp_path)
    other.started = nodes.started  # the fixture ends them
    runs = [nodes.run(written(2, 20), "first"), other.run(written(2, 20).replace("20151102", "7"), "second")]
    agents = [nodes.agent(), other.agent()]
    nodes.wait_for_training("first")
    third = nodes.agent()
    for process in (*runs, *agents):
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
    said, _ = third.communicate(timeout=120)
    assert "Traceback" not in said and "the run is over" in said, said
    for name, seed in (("first", 20151102), ("second", 7)):
        record = nodes.record(name)
        assert [item.status for item in record.results] == ["ok", "ok"]
        assert record.plan.master_seed == seed and len(record.attempts) == 2
        assert not [item for item in record.incidents if item.kind == "moved"]
        nodes.end(nodes.start("verify", name))


@pytest.mark.slow
def test_an_agent_of_a_killed_run_serves_another_run_there_as_a_new_agent_does(nodes: Nodes) -> None:
    agent = nodes.agent()
    run = nodes.run(written(2, LONG), "first")
    nodes.wait_for_training("first")
    for child in psutil.Process(run.pid).children(recursive=True):
        child.kill()
    run.kill()
    nodes.end(nodes.run(written(1, 2), "second"))
    nodes.end(agent)
    nodes.end(nodes.run(written(1, 2, "local"), "alone"))
    assert hashes(nodes.record("second")) == hashes(nodes.record("alone"))
    assert not [item for item in nodes.record("first").results if item.status == "ok"]


@pytest.mark.slow
def test_a_shared_folder_takes_checkpoints_of_all_nodes(nodes: Nodes) -> None:
    """A killed rank of the other node: the trial resumes from a checkpoint of both nodes."""
    suite = written(1, 120, TWO.replace("nodes: 2", "nodes: 2, shared: true"), "[{kind: deepspeed, stage: 1}]")
    agent = nodes.agent()
    run = nodes.run(suite + "on_failure: resume_from_checkpoint\ncheckpoint_every: 5\n")
    until(lambda: list(nodes.folder.glob("run/trials/*/checkpoints/step_*")), run)
    ranks_of(agent)[1].kill()
    nodes.end(run)
    nodes.end(agent)
    (result,) = nodes.record().results
    assert result.status == "ok" and len(result.resumed) == 1, result.warnings


def start_like_ssh(folder: Path) -> str:
    """Return a command that is called as ssh is: it starts its last argument by a shell, and notes its arguments."""
    program = folder / "like-ssh"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n[ "$1" = lost ] && echo "no route to host" >&2 && '
                       'exit 255\nfor last; do :; done\nunset REPRO_SECRET\nexec sh -c "$last"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
def test_ranks_are_packed_on_as_few_nodes_as_ranks_per_node_says(nodes: Nodes) -> None:
    agent = nodes.agent()
    nodes.end(nodes.run(written(1, 2, TWO.replace("nodes: 2", "nodes: 2, ranks_per_node: 4"))))
    nodes.end(agent)
    nodes.end(nodes.run(written(1, 2, "local"), "one"))
    packed, one = nodes.record(), nodes.record("one")
    assert hashes(packed) == hashes(one)
    assert [node.node for node in packed.nodes.nodes] == [1] and len(packed.nodes.links) == 2
    (folder,) = nodes.folder.glob("run/trials/*")
    assert {f"rank{rank}.log" for rank in range(4)} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_an_agent_that_was_started_by_ssh_is_started_again(nodes: Nodes) -> None:
    nodes.variables |= {"REPRO_SSH": start_like_ssh(nodes.folder), "REPRO_HOSTS": "localhost"}
    run = nodes.run(written(2, 300))
    nodes.wait_for_training()
    (agent,) = [child for child in psutil.Process(run.pid).children(recursive=True) if "agent" in child.cmdline()]
    agent.kill()
    said, _ = run.communicate(timeout=240)
    assert "like-ssh localhost ended with exit code " in said and "it is started again (2 of 3)" in said, said
    assert sorted(item.status for item in nodes.record().results) == ["crashed", "ok"]
    assert "2 of 2" in nodes.end(nodes.start("run", "--resume", "run", "--no-mlflow", "--rerun-failed"))


@pytest.mark.slow
def test_hosts_get_their_agents_by_ssh(nodes: Nodes) -> None:
    nodes.variables |= {"REPRO_SSH": start_like_ssh(nodes.folder), "REPRO_HOSTS": "localhost"}
    said = nodes.end(nodes.run(written(1, 2)))
    assert "waiting up to" not in said and "1 of 1" in said
    calls = (nodes.folder / "calls").read_text()
    assert calls.startswith("localhost ") and "--secret-stdin" in calls and SECRET not in calls


@pytest.mark.parametrize(("hosts", "words"), [
    ("localhost,localhost", "REPRO_HOSTS names localhost twice; each node has one agent"),
    ("-oProxyCommand=x", "'-oProxyCommand=x' is no host"),
    ("no.such.host.invalid", "REPRO_HOSTS: no.such.host.invalid cannot be found"),
    ("localhost", "REPRO_HOSTS names 1 host beside this one, and 3 are needed"),
    ("lost", "1 of 2 nodes are there: like-ssh lost ended with exit code 255 after . s: no route to host, at start 3"),
])
def test_bad_hosts_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, words: str) -> None:
    monkeypatch.setattr(host_lists, "_own_address", own if hosts == "lost" else host_lists._own_address)
    monkeypatch.setenv("REPRO_HOSTS", hosts)
    monkeypatch.setenv("REPRO_SECRET", SECRET)
    monkeypatch.setenv("REPRO_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("REPRO_SSH", start_like_ssh(tmp_path))
    with pytest.raises(UsageError, match=words.replace("(", ".")) as found:
        Torchrun(nodes=4 if "3 are needed" in words else 3 if "twice" in words else 2, join_seconds=20).open([], "cpu")
    assert "\n" not in str(found.value)


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return a file of hosts as schedulers write it: a line for each slot."""
    own_name = socket.gethostname().partition(".")[0] + getattr(request, "param", "")
    for name in ("REPRO_HOSTS", "REPRO_SSH"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "hosts"
    file.write_text(f"{own_name}\n" * 2 + "node1\nnode1\nnode2\nnode2\n")
    monkeypatch.setattr(host_lists, "_own_address", own)
    return file


@pytest.mark.parametrize("allocation", ["", ".cluster.example"], indirect=True, ids=["short", "with_domain"])
@pytest.mark.parametrize(("variable", "starter"), [("PBS_NODEFILE", "ssh"), ("LSB_DJOB_HOSTFILE", "blaunch")])
def test_an_allocation_names_the_hosts(
    allocation: Path, monkeypatch: pytest.MonkeyPatch, variable: str, starter: str
) -> None:
    assert host_lists.find(2) is None, "no list: the user starts agents"
    monkeypatch.setenv(variable, str(allocation))
    found = host_lists.find(2)
    assert found is not None and found.names == ("node1", "node2") and found.source == variable
    command = found.agent("node2", 29410, 60)
    assert command[0] == starter and command[-2] == "node2"
    assert command[-1].endswith("-m repro agent --join 127.0.0.1:29410 --wait 60 --as node2 --secret-stdin")
    with pytest.raises(UsageError, match=f"{variable} names 2 hosts beside this one, and 3 are needed"):
        host_lists.find(3)
    monkeypatch.setenv("REPRO_HOSTS", "other")
    assert host_lists.find(1).names == ("other",), "the user's own list comes first"  # type: ignore[union-attr]
    monkeypatch.delenv("REPRO_HOSTS")
    allocation.unlink()
    with pytest.raises(UsageError, match=f"{variable}: .*hosts cannot be read: No such file"):
        host_lists.find(2)


def test_a_file_of_hosts_has_slots_and_comments(allocation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocation.write_text("# rack 1\nnode1 slots=8\nuser@node2 slots=8  # slow\n\n")
    monkeypatch.setenv("REPRO_HOSTS", f"@{allocation}")
    assert host_lists.find(2).names == ("node1", "user@node2")  # type: ignore[union-attr]
    allocation.write_text("node1 slots=8\nnode1 slots=8\n")
    with pytest.raises(UsageError, match="REPRO_HOSTS names node1 twice"):
        host_lists.find(1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (apt-get install openmpi-bin)")
def test_mpirun_starts_the_run_and_its_agents(nodes: Nodes) -> None:
    (nodes.folder / "run.yaml").write_text(written(1, 2))
    nodes.variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                        "MASTER_ADDR": "127.0.0.1"}
    script = (f'if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then exec {sys.executable} -m repro run run.yaml --no-mlflow '
              f"--out run; else exec {sys.executable} -m repro agent; fi")
    process = subprocess.Popen(["mpirun", "-np", "2", "--oversubscribe", "-x", "REPRO_SECRET", "-x", "MASTER_ADDR",
                                "sh", "-c", script], cwd=nodes.folder, text=True, env=nodes.variables,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    nodes.started.append(process)
    said = nodes.end(process)
    assert "1 of 1" in said and "the run is over" in said
    (node,) = nodes.record().nodes.nodes
    assert node.node == 1


def own(*_: str) -> str:
    return "127.0.0.1"


def test_checkpoints_need_a_folder_that_all_nodes_see(nodes: Nodes) -> None:
    suite = written(1, 1) + "on_failure: resume_from_checkpoint\n"
    said, _ = (run := nodes.run(suite)).communicate(timeout=60)
    assert run.returncode == 2
    assert "error: launcher torchrun: the parts of a checkpoint would lie on different nodes" in said


@pytest.mark.slow
def test_the_first_commands_of_the_page_run_as_they_are(nodes: Nodes) -> None:
    """But on a port of this test, with two pairs; the run makes the secret that the agent reads."""
    page = (ROOT / "docs/nodes.md").read_text(encoding="utf-8")
    first, second = (shlex.split(line) for line in re.findall(r"^(?:one|two)\$ repro (.*)$", page, re.MULTILINE))
    del nodes.variables["REPRO_SECRET"]
    nodes.variables["XDG_CONFIG_HOME"] = str(nodes.folder)
    nodes.variables["REPRO_TIMING_LOCK"] = "off"
    run = nodes.start(*first, "-o", "sequential=null", "--seeds", "2", "--no-mlflow")
    until((nodes.folder / "repro/secret").is_file, run)
    agent = nodes.start(*(word.replace(":29410", f":{nodes.port}") for word in second))
    assert ":29410" in second[-1]
    said, _ = run.communicate(timeout=400)
    assert run.returncode == 0, said
    assert agent.wait(30) == 0
    assert {item.status for item in read_record(nodes.folder / "runs/two").results} == {"ok"}


@pytest.mark.slow
def test_a_run_that_no_agent_joins_says_what_to_do(nodes: Nodes) -> None:
    run = nodes.run(written(1, 1, TWO.replace("60", "1"), "[ddp]"))
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 2
    assert f"error: node 1 did not join within 1 s; there: repro agent --join 127.0.0.1:{nodes.port}" in said
    assert not (nodes.folder / "run").exists()
    agent = nodes.start("agent", "--join", f"127.0.0.1:{nodes.port}", "--wait", "0.2")
    said, _ = agent.communicate(timeout=60)
    assert agent.returncode == 1
    assert "Connection refused; trying again" in said and "no run at 127.0.0.1" in said
