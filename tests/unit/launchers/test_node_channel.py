"""The channel between nodes: who does not hold the secret does not join, nothing is read twice, altered or unproved."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from repro.core.errors import TrialError, UsageError
from repro.launchers.nodes import channel, hosts
from repro.launchers.nodes.agent import moved
from repro.launchers.nodes.agent_lane import EARLY, Lane
from repro.launchers.nodes.channel import GREETING, NONCE, TAG, Arrivals, Channel, LinkLost, accept, connect
from repro.launchers.nodes.head import Clock, Head, difference, identity
from tests.waiting import LONG_SECONDS

SECRET, OTHER = b"s" * 32, b"t" * 32


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opened."""
    with contextlib.ExitStack() as opened:
        yield opened


def joined(
    server: socket.socket, stack: contextlib.ExitStack, theirs: bytes = SECRET
) -> tuple[Channel, Channel]:
    """Return both ends of a channel; an agent with another secret ends in LinkLost on both sides."""
    found: list[Channel | LinkLost] = []

    def agent() -> None:
        try:
            found.append(connect("127.0.0.1", server.getsockname()[1], theirs))
        except LinkLost as error:
            found.append(error)

    thread = threading.Thread(target=agent)
    thread.start()
    link, _ = server.accept()
    try:
        head = accept(link, SECRET)
    except LinkLost:
        link.close()
        thread.join()
        assert isinstance(found[0], LinkLost) and "the secrets differ" in str(found[0])
        raise
    thread.join()
    assert isinstance(found[0], Channel)
    stack.callback(head.close)
    stack.callback(found[0].close)
    return head, found[0]


def tapped(
    server: socket.socket, stack: contextlib.ExitStack, change: bool = False
) -> tuple[Channel, Channel, Tap]:
    """Return both ends of a channel through a tap, and the tap."""
    tap = Tap(server.getsockname()[1], stack, change)
    found: list[Channel] = []
    thread = threading.Thread(target=lambda: found.append(connect("127.0.0.1", tap.port, SECRET)))
    thread.start()
    head = accept(server.accept()[0], SECRET)
    thread.join()
    stack.callback(head.close)
    stack.callback(found[0].close)
    return head, found[0], tap


def test_both_directions_carry_kind_content_and_bytes(listening: socket.socket, stack: contextlib.ExitStack) -> None:
    head, agent = joined(listening, stack)
    body = os.urandom(3 << 20)
    agent.send("part", {"number": 3, "text": "ä\n"}, body[:1000])
    sending = threading.Thread(target=head.send, args=("part", {}, body))
    sending.start()
    assert agent.receive().body == body
    sending.join()
    message = head.receive()
    assert (message.kind, message.content, message.body) == ("part", {"number": 3, "text": "ä\n"}, body[:1000])
    agent.close()
    with pytest.raises(LinkLost, match="closed"):
        head.receive()


def test_an_agent_with_another_secret_is_refused(listening: socket.socket, stack: contextlib.ExitStack) -> None:
    with pytest.raises(LinkLost, match="does not hold the secret"):
        joined(listening, stack, OTHER)


def test_a_head_with_another_secret_is_refused_by_the_agent(listening: socket.socket) -> None:
    """It cannot prove itself by sending the agent's own proof back."""
    def impostor() -> None:
        link, _ = listening.accept()
        with link:
            link.sendall(GREETING + bytes(NONCE))
            answer = link.recv(NONCE + TAG)
            link.sendall(answer[NONCE:])
            link.recv(1)

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(LinkLost, match="does not hold the secret of this agent"):
        connect("127.0.0.1", listening.getsockname()[1], SECRET)
    thread.join()


class Tap:
    """Passes bytes between an agent and a head, and keeps those of the agent."""

    def __init__(self, to: int, stack: contextlib.ExitStack, change: bool) -> None:
        self.server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port, self.to, self.change = self.server.getsockname()[1], to, change
        self.sent = bytearray()
        threading.Thread(target=self._pass, daemon=True).start()

    def _pass(self) -> None:
        agent, _ = self.server.accept()
        head = socket.create_connection(("127.0.0.1", self.to))
        threading.Thread(target=self._back, args=(head, agent), daemon=True).start()
        with head, contextlib.suppress(OSError):
            while data := bytearray(agent.recv(1 << 16)):
                self.sent += data
                if self.change and len(self.sent) > NONCE + TAG:
                    data[-1] ^= 1
                head.sendall(data)

    def _back(self, head: socket.socket, agent: socket.socket) -> None:
        with agent, contextlib.suppress(OSError):
            while data := head.recv(1 << 16):
                agent.sendall(data)


def test_a_recorded_join_is_refused_when_it_is_sent_again(
    listening: socket.socket, stack: contextlib.ExitStack
) -> None:
    first, agent, tap = tapped(listening, stack)
    agent.send("hello", {"host": "a"})
    assert first.receive().kind == "hello"
    again = stack.enter_context(socket.create_connection(listening.getsockname()))
    again.sendall(bytes(tap.sent))
    with listening.accept()[0] as link, pytest.raises(LinkLost, match="does not hold the secret"):
        accept(link, SECRET)


def test_a_message_that_was_altered_on_its_way_is_refused(
    listening: socket.socket, stack: contextlib.ExitStack
) -> None:
    head, agent, _ = tapped(listening, stack, change=True)
    agent.send("hello", {"host": "a"})
    with pytest.raises(LinkLost, match="not from the other side"):
        head.receive()


def test_a_message_cannot_be_sent_twice_or_back(listening: socket.socket, stack: contextlib.ExitStack) -> None:
    head, agent = joined(listening, stack)
    agent.send("a")
    raw = head._link.recv(1 << 16)
    agent._link.sendall(raw)  # back to its sender
    head._link.sendall(raw)
    with pytest.raises(LinkLost, match="not from the other side"):
        agent.receive()


def test_strangers_do_not_keep_the_head_busy(stack: contextlib.ExitStack) -> None:
    """Connections that say nothing, or nonsense, leave an agent that joins after them unharmed."""
    head = Head("127.0.0.1", 0, SECRET, 10.0)
    strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", head.port)))
                 for _ in range(20)]
    for each in strangers[::2]:
        each.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    agent = connect("127.0.0.1", head.port, SECRET)
    agent.send("hello", {"identity": identity(), "host": "a", "pid": 1, "description": {}})
    node = head.join(20)
    assert node is not None and node.host == "a"
    assert head.join(0.2) is None
    head.close()
    assert agent.receive().kind == "close"
    agent.close()


FEW_FILES = """
import resource, sys
from repro.launchers.nodes import channel, head
channel.HANDSHAKE_SECONDS = 600.0
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
found = head.Head("127.0.0.1", 0, bytes.fromhex(sys.argv[1]), 10.0)
print(found.port, flush=True)
node = found.join(60)
print(node.host if node else "nobody", flush=True)
found.close()
"""


@pytest.mark.slow
def test_a_flood_of_silent_connections_ends_no_joining() -> None:
    """More than the head may have files: the oldest are dropped, and the accept loop goes on."""
    command = [sys.executable, "-c", FEW_FILES, SECRET.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with contextlib.ExitStack() as opened:
            for _ in range(300):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            agent = connect("127.0.0.1", port, SECRET, LONG_SECONDS)
            agent.send("hello", {"identity": identity(), "host": "late", "pid": 1, "description": {}})
            assert process.stdout.readline() == "late\n"
            agent.close()


def test_a_peer_that_drips_bytes_has_one_time_limit(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_SECONDS", 0.5)
    ended = threading.Event()

    def drip() -> None:
        with socket.create_connection(listening.getsockname()) as link, contextlib.suppress(OSError):
            while not ended.wait(0.2):
                link.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with listening.accept()[0] as link, pytest.raises(LinkLost, match="no word in time"):
        accept(link, SECRET)
    ended.set()
    thread.join()


@pytest.mark.parametrize("hello", [{}, {"host": "a", "pid": "x", "description": {}, "identity": {}},
                                   {"host": "a", "pid": 1, "description": 3, "identity": {}}])
def test_a_hello_of_another_form_is_one_line(hello: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    head = Head("127.0.0.1", 0, SECRET, 10.0, told.append)
    agent = connect("127.0.0.1", head.port, SECRET)
    agent.send("hello", hello)
    with pytest.raises(LinkLost):
        agent.receive()
    (text,) = told
    assert "refused: an agent at 127.0.0.1 has the secret and another language: " in text and "install" in text
    head.close()
    agent.close()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("host", "to"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1")])
def test_agents_join_by_either_version_of_the_protocol(host: str, to: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    head = Head(host, 0, SECRET, 10.0)
    agent = connect(to, head.port, SECRET)
    agent.send("hello", {"identity": identity(), "host": "a", "pid": 1, "description": {}})
    node = head.join(20)
    assert node is not None and (node.channel.own_address, agent.peer_address) == (to, to)
    head.close()
    agent.close()


def test_a_store_listens_at_the_address_that_it_was_given_alone() -> None:
    """Also that of a run on one machine: torch's own listens at all addresses and lets anybody read and write."""
    fixed_nodes = pytest.importorskip("repro.launchers.processes.fixed_nodes")
    before = {item.laddr for item in psutil.Process().net_connections() if item.status == psutil.CONN_LISTEN}
    store = fixed_nodes.bind_store("127.0.0.1")
    opened = [item.laddr for item in psutil.Process().net_connections()
              if item.status == psutil.CONN_LISTEN and item.laddr not in before]
    assert [(address.ip, address.port) for address in opened] == [("127.0.0.1", store.port)]
    with pytest.raises(TrialError, match=r"192\.0\.2\.1 cannot be listened on: Cannot assign requested address"):
        fixed_nodes.bind_store("192.0.2.1")


def test_agents_with_another_secret_are_one_line_of_the_run() -> None:
    told: list[str] = []
    head = Head("", 0, SECRET, 10.0, told.append)
    for _ in range(3):
        with pytest.raises(LinkLost, match="it refused this agent: the secrets differ"):
            connect("127.0.0.1", head.port, OTHER)
    assert head.join(0.2) is None
    assert told == ["refused: a peer at 127.0.0.1 did not prove that it holds the secret of this run: an agent with "
                    "another REPRO_SECRET or ~/.config/repro/secret, or a stranger"]
    assert head.refused in told[0], "what a wait that ends in vain names"
    head.close()


def test_an_agent_with_other_code_is_refused_by_name() -> None:
    told: list[str] = []
    head = Head("127.0.0.1", 0, SECRET, 10.0, told.append)
    agent = connect("127.0.0.1", head.port, SECRET)
    agent.send("hello", {"identity": {**identity(), "torch": "1.0"}, "host": "old", "pid": 1, "description": {}})
    assert "old cannot take part: torch 1.0 there and" in agent.receive().content["reason"]
    assert head.join(0.2) is None, "it waits for another"
    (text,) = told
    assert "refused: old cannot take part: torch 1.0 there and" in text and head.refused in text
    head.close()
    agent.close()
    assert difference(identity(), identity()) == ""


def test_of_two_agents_that_were_started_on_one_host_the_first_stays() -> None:
    head = Head("127.0.0.1", 0, SECRET, 10.0)
    agents = [connect("127.0.0.1", head.port, SECRET) for _ in range(3)]
    for agent, start in zip(agents, ("a", "a", "b"), strict=True):
        agent.send("hello", {"identity": identity(), "host": "one", "pid": 1, "description": {}, "start": start})
    found = [head.join(20), head.join(20)]
    assert {node.start for node in found if node is not None} == {"a", "b"} == head.started
    head.close()
    for agent in agents:
        agent.close()


def test_an_address_in_use_is_one_line() -> None:
    head = Head("127.0.0.1", 0, SECRET, 10.0)
    with pytest.raises(UsageError, match="cannot be listened on: Address already in use; set REPRO_LISTEN=HOST:PORT"):
        Head("127.0.0.1", head.port, SECRET, 10.0)
    head.close()


# ---- the secret


def test_a_secret_is_made_once_and_only_its_owner_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(hosts.SECRET, raising=False)
    with pytest.raises(UsageError, match=r"no secret here: start `repro run` first, which makes .*repro/secret; "):
        hosts.read_secret()
    key = hosts.read_secret(make=True)
    assert hosts.read_secret() == key and len(key) == 64 and len(hosts.key_of(key)) == 32
    assert hosts.secret_file().stat().st_mode & 0o777 == 0o600
    hosts.secret_file().chmod(0o640)
    with pytest.raises(UsageError, match="others can read it; chmod 600"):
        hosts.read_secret()
    monkeypatch.setenv(hosts.SECRET, "short")
    with pytest.raises(UsageError, match="fewer than 16 characters"):
        hosts.read_secret()
    monkeypatch.setenv(hosts.SECRET, "x" * 16)
    assert hosts.read_secret() != key


# ---- channel, paths, clocks


def test_files_arrive_as_they_were_sent(
    listening: socket.socket, stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    head, agent = joined(listening, stack)
    given, target = tmp_path / "given", tmp_path / "target"
    (given / "a").mkdir(parents=True)
    contents = {"a/large": os.urandom((2 << 20) + 17), "empty": b"", "small": b"x"}
    for name, content in contents.items():
        (given / name).write_bytes(content)
    before = channel.file_state(given)
    (given / "small").write_bytes(b"xy")
    assert channel.changed_files(given, before) == ["small"]
    target.mkdir()
    arrivals = channel.Arrivals(target)
    sending = threading.Thread(target=channel.send_files, args=(agent, 1, given, channel.files_below(given)))
    sending.start()
    for _ in range(1 + 3 + 1 + 1 + 1):  # names, three parts of the large one, one of the small one
        arrivals.take(head.receive())
    sending.join()
    assert {name: (target / name).read_bytes() for name in contents} == {**contents, "small": b"xy"}


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out"])
def test_a_file_cannot_leave_its_folder(
    listening: socket.socket, stack: contextlib.ExitStack, tmp_path: Path, name: str
) -> None:
    head, agent = joined(listening, stack)
    agent.send("file", {"name": name, "size": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb924"
                                                           "27ae41e4649b934ca495991b7852b855"})
    with pytest.raises(LinkLost, match="leads out of its folder"):
        channel.Arrivals(tmp_path / "in").take(head.receive())


def test_paths_below_the_run_are_moved_and_no_others() -> None:
    payload = {"log": "/runs/a/x", "list": ["/runs/a", "/runs/ab", 3], "text": "see /runs/a", "none": None}
    assert moved(payload, "/runs/a", "/tmp/n") == {"log": "/tmp/n/x", "list": ["/tmp/n", "/runs/ab", 3],
                                                  "text": "see /runs/a", "none": None}


def test_the_offset_of_a_clock_is_that_of_the_fastest_answer() -> None:
    clock = Clock()
    clock.take(sent=1000, there=501_500, received=2000)
    assert (clock.offset_ns, clock.bound_ns) == (500_000, 500)
    clock.take(sent=3000, there=503_040, received=3080)
    assert (clock.offset_ns, clock.bound_ns) == (500_000, 40)
    clock.take(sent=5000, there=509_000, received=9000)
    assert clock.bound_ns == 40


def test_files_of_a_shard_that_say_that_others_are_there_are_sent_last(
    listening: socket.socket, stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    """So a connection that is lost between two files leaves a shard that was cut, never one that looks whole."""
    head, agent = joined(listening, stack)
    lane = Lane(agent, threading.Event())
    stack.callback(lane.close)
    names = ("1/environment.json", "1/ledger.jsonl", "1/plan.json", "1/sha256sums.txt", "1/trials/a/rank0.log",
             "1/trials/a/result.json", "1/trials/a/result_1.txt", "output.log")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    early = lane._send(3, tmp_path, {}, EARLY)
    assert sorted(early) == ["1/environment.json", "1/ledger.jsonl", "1/plan.json"]
    (tmp_path / "1/ledger.jsonl").write_text("longer than before")
    lane._send(3, tmp_path, early)
    got, arrivals, order = tmp_path / "got", Arrivals(tmp_path / "got"), []
    for _ in range(2 * (len(early) + len(names) - 2)):
        message = head.receive()
        order += [message.content["name"]] if message.kind == "file" else []
        arrivals.take(message)
    assert order == ["1/ledger.jsonl", "1/plan.json", "1/environment.json", "1/ledger.jsonl", "1/trials/a/rank0.log",
                     "1/trials/a/result_1.txt", "output.log", "1/trials/a/result.json", "1/sha256sums.txt"]
    assert (got / "1/ledger.jsonl").read_text() == "longer than before"
