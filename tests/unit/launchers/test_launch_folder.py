"""The folder of a launch: short enough for sockets, and removed by a later start if its owner was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path

import pytest

from repro.core import orphans
from repro.core.orphans import OWNER_FILE
from repro.launchers.processes import fork_server
from repro.launchers.processes.fork_server import PREFIX, LaunchFolder, short_temporary
from repro.launchers.processes.node_launch import interface_of
from repro.launchers.processes.rank import LOOPBACK

ROOT = Path(__file__).resolve().parents[3]
PARENT = """
import os, sys
from pathlib import Path
from repro.core.errors import ReproError
from repro.launchers.processes import fork_server
from repro.launchers.processes.fork_server import LaunchFolder

folder = LaunchFolder()
log = folder.path / "server.log"
os.environ["REPRO_FORK_SERVER"] = fork_server.orders(sys.argv[1:], log)
try:
    fork_server.begin()
    fork_server.finish(log, "cpu")
except ReproError as error:
    print("error:", error)
finally:
    fork_server.stop()
    folder.remove()
print(os.listdir(os.environ["TMPDIR"]), folder.path.exists())
"""
LATE = """
import multiprocessing, threading, time
from multiprocessing import forkserver, popen_forkserver
import psutil
from repro.launchers.processes import fork_server

asked, read = threading.Event(), forkserver.read_signed
def reading(handle):
    asked.set()
    return read(handle)

fork_server.begin()
server = psutil.Process(forkserver._forkserver._forkserver_pid)
multiprocessing.get_context("forkserver").Process(target=int).start()  # it has begun to serve
server.suspend()
forkserver.read_signed = reading
rank = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,), daemon=True)
threading.Thread(target=rank.start, daemon=True).start()
asked.wait()
threading.Timer(0.5, server.resume).start()
fork_server.stop()
print("stopped")
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def start(temporary: Path, *modules: str) -> str:
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": f"{ROOT}{os.pathsep}{temporary.parent}"}
    child = subprocess.run([sys.executable, "-c", PARENT, *modules], env=environment, capture_output=True, text=True,
                           timeout=120, check=False)
    assert child.stderr == "", child.stderr
    return child.stdout


def test_a_fork_server_starts_under_a_long_temporary_folder(tmp_path: Path) -> None:
    place = tmp_path / ("t" * 150)
    place.mkdir()
    assert start(place) == "[] False\n"


def test_the_socket_of_a_fork_server_is_a_file() -> None:
    """Also with a Python that prefers sockets which every local user can reach."""
    try:
        fork_server.begin()
        assert not util.abstract_sockets_supported
    finally:
        fork_server.stop()


def test_a_process_that_is_forked_while_the_server_is_stopped_does_not_keep_it() -> None:
    """A signal leaves the launch after the request for a rank, and the busy server comes to it later."""
    ended = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.returncode) == ("stopped\n", 0), ended.stderr


@pytest.mark.parametrize(("ending", "said"), [
    ("os.kill(os.getpid(), 9)", "was killed by SIGKILL (the kernel does that if memory runs out) while"),
    ("print('no licence'); sys.stdout.flush(); os._exit(7)", "ended with exit code 7 while it loaded its modules: no"),
])
def test_the_end_of_a_fork_server_while_it_loads_is_explained(tmp_path: Path, ending: str, said: str) -> None:
    (tmp_path / "ends.py").write_text(f"import os, sys\n{ending}\n")
    place = tmp_path / "t"
    place.mkdir()
    assert f"error: the fork server {said}" in start(place, "ends")


def test_folders_of_killed_owners_are_removed_and_no_others(temporary: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        living = orphans.identity(child.pid)
        dead = f"{child.pid}:1"  # a recycled pid
        elsewhere = f"{child.pid}:1:1.1"  # of a container that shares the folder
        for name, owner in (("dead", dead), ("living", living), ("ours", orphans.identity(os.getpid())),
                            ("elsewhere", elsewhere)):
            (temporary / f"{PREFIX}{name}").mkdir()
            (temporary / f"{PREFIX}{name}/{OWNER_FILE}").write_text(owner)
        (temporary / f"{PREFIX}unknown").mkdir()
        (temporary / "target").mkdir()
        (temporary / f"target/{OWNER_FILE}").write_text(dead)
        (temporary / f"{PREFIX}link").symlink_to("target")
        folder = LaunchFolder()
        folder.remove()
        child.kill()
    left = {path.name.removeprefix(PREFIX) for path in temporary.iterdir()}
    assert left == {"living", "ours", "elsewhere", "unknown", "target", "link"}


def test_a_short_temporary_folder_is_used_as_it_is(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert short_temporary() == str(temporary)
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * 100}")
    assert short_temporary() == "/tmp"


def test_nccl_is_told_the_whole_name_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes a name without `=` for the beginning of one: eth1 would be eth10 too."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    name = interface_of(LOOPBACK)["GLOO_SOCKET_IFNAME"]
    assert interface_of(LOOPBACK)["NCCL_SOCKET_IFNAME"] == f"={name}"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert interface_of(LOOPBACK) == {"GLOO_SOCKET_IFNAME": name}
