"""Launchers with real processes: ends are reported rank by rank, and no process is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from repro.core.errors import UsageError
from repro.launchers.inline import Inline
from repro.launchers.local import Local
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult
from repro.seams.plugin import Setting
from tests.waiting import LONG_SECONDS, until

ROOT = Path(__file__).parents[2]


def note(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry: write down what this rank sees."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "EXTRA")
    seen: dict[str, Any] = {name: os.environ.get(name) for name in names}
    seen |= {"pid": os.getpid(), "parent": os.getppid(), "torch": "torch" in sys.modules, "payload": dict(payload)}
    seen["accelerator"] = os.environ.get("DS_ACCELERATOR")
    (Path(folder) / f"seen{seen['RANK']}.json").write_text(json.dumps(seen))
    print("printed by rank", seen["RANK"])
    os.system("echo from a child of rank $RANK >&2")


def all_reduce(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry: one sum over ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.destroy_process_group()
    print("sum", value.item())


def misbehave(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry: the rank named in the payload ends as requested, the others would keep sleeping."""
    (Path(folder) / f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    if int(os.environ["RANK"]) == payload["rank"]:
        while len(list(Path(folder).glob("pid*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        print("last words", end="")
        how = payload["how"]
        if how == "raise":
            raise ValueError("first line\nsecond line")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(how)
    subprocess.Popen(["sleep", "600"])  # not even what a rank starts may survive it
    time.sleep(600)


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    launcher = Local(monitor_seconds=0.02)
    launcher.open(["torch", "tests.flow.test_launchers"], "cpu")
    try:
        yield launcher
    finally:
        launcher.close()


def _order(folder: Path, entry: Callable[..., None], processes: int = 2, **more: Any) -> LaunchRequest:
    values = {"payload": {}, "device": "cpu", "timeout_seconds": 300.0, **more}
    return LaunchRequest(f"tests.flow.test_launchers:{entry.__name__}", processes=processes, folder=folder, **values)


def _seen(folder: Path, rank: int) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads((folder / f"seen{rank}.json").read_text())
    return seen


def _gone(pids: list[int]) -> bool:
    """Return True when all these processes have ended; a zombie without a reaper counts as ended."""
    return until(lambda: not any(map(_runs, pids)))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ranks_gone(folder: Path) -> bool:
    """Return True if the process groups of all ranks that reached the entry are empty."""
    groups = [int(each.read_text() or 0) for each in folder.glob("pid*")]
    return _gone([each.pid for each in psutil.process_iter() if _group(each.pid) in groups])


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_ranks_see_their_place_and_print_to_their_own_log(local: Local, tmp_path: Path) -> None:
    order = _order(tmp_path, note, payload={"a": [1, 2]}, environment={"EXTRA": "given"})
    outcome = local.launch(order)
    assert outcome.ok, outcome
    for rank in (0, 1):
        seen = _seen(tmp_path, rank)
        assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert (seen["MASTER_ADDR"], seen["EXTRA"], seen["accelerator"]) == ("127.0.0.1", "given", "cpu")
        assert seen["payload"] == {"a": [1, 2]}
        assert seen["torch"], "preloaded"
        assert seen["OMP_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"]
        log = (tmp_path / f"rank{rank}.log").read_text()
        assert log == f"printed by rank {rank}\nfrom a child of rank {rank}\n"


def test_every_launch_gets_fresh_processes_from_one_server(local: Local, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        assert local.launch(_order(folder, note)).ok
    seen = [_seen(folder, rank) for folder in folders for rank in (0, 1)]
    assert len({each["pid"] for each in seen}) == 4
    assert len({each["parent"] for each in seen}) == 1
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"] != "0"


def test_ranks_communicate(local: Local, tmp_path: Path) -> None:
    outcome = local.launch(_order(tmp_path, all_reduce))
    assert outcome.ok, outcome
    assert [(tmp_path / f"rank{rank}.log").read_text() for rank in (0, 1)] == ["sum 2.0\n"] * 2


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("raise", 1, "ValueError: first line"),
        ("kill", -signal.SIGKILL, "killed by SIGKILL (by the kernel when memory runs out, or by hand)"),
        (7, 7, "exit code 7"),
    ],
)
def test_a_failing_rank_is_named_with_its_reason(
    local: Local, tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str | int, code: int, reason: str
) -> None:
    outcome = local.launch(_order(tmp_path, misbehave, payload={"rank": 1, "how": how}))
    assert not outcome.ok
    assert not outcome.timed_out
    first, second = outcome.ends
    assert (second.rank, second.exit_code, second.reason) == (1, code, reason)
    assert (first.exit_code, first.reason) == (-signal.SIGTERM, "after rank 1: killed by SIGTERM")
    assert "last words" in (tmp_path / "rank1.log").read_text(), "nothing that was printed is lost"
    assert ("Traceback" in (tmp_path / "rank1.log").read_text()) == (how == "raise")
    assert capfd.readouterr().err == "", "elastic's own account of it stays off the terminal"
    assert _ranks_gone(tmp_path)


def test_a_time_out_kills_all_ranks(local: Local, tmp_path: Path) -> None:
    outcome = local.launch(_order(tmp_path, misbehave, payload={"rank": -1}, timeout_seconds=0.5))
    assert outcome.timed_out
    assert not outcome.ok
    assert outcome.seconds >= 0.5
    assert {end.reason for end in outcome.ends} == {"not finished after 0.5 s"}
    assert {end.exit_code for end in outcome.ends} <= {-signal.SIGKILL, -signal.SIGTERM}
    assert _ranks_gone(tmp_path)


def hang(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry: note one event; then one rank does not come to the sum that the others wait in."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        (Path(folder) / "events").write_text("one")
    if os.environ["RANK"] == "1":
        if payload["how"] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(("how", "why"), [
    ("sleep", "it was in hang (test_launchers.py:"), ("stop", "it was stopped by a signal"),
])
def test_hung_ranks_dump_their_stacks_and_are_ended(local: Local, tmp_path: Path, how: str, why: str) -> None:
    watched = {"stall_seconds": 3.0, "progress": tmp_path / "events"}
    outcome = local.launch(_order(tmp_path, hang, payload={"how": how}, **watched))
    assert outcome.hung and not outcome.timed_out and not outcome.ok
    assert outcome.seconds >= 3
    first, second = outcome.ends
    assert outcome.first_failure == second, "the one that the other waited for"
    assert second.reason.startswith(f"hung: no event for 3 s, {why}")
    assert first.reason.startswith("after rank 1: hung: no event for 3 s, it was in ")
    assert "all_reduce" in (tmp_path / "rank0.log").read_text(), "every rank's stacks are in its log"
    assert "Thread 0x" in (tmp_path / "rank0.log").read_text()
    assert local.launch(_order(tmp_path / "again", note, 1)).ok, "the launcher is still usable"


def test_ctrl_c_ends_the_ranks_then_interrupts(local: Local, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        until(lambda: all((tmp_path / f"pid{rank}").exists() for rank in (0, 1)))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        local.launch(_order(tmp_path, misbehave, payload={"rank": -1}))
    thread.join()
    assert _ranks_gone(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before
    assert local.launch(_order(tmp_path / "again", note, 1)).ok, "the launcher is still usable"


PARENT = """
import sys
from pathlib import Path
from repro.launchers.local import Local
from repro.seams.launching import LaunchRequest

launcher = Local()
launcher.open(["tests.flow.test_launchers"], "cpu")
order = LaunchRequest("tests.flow.test_launchers:misbehave", {"rank": -1}, 2, "cpu", Path(sys.argv[1]), 300.0)
launcher.launch(order)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """For temporary files of others; a socket's name has a hundred characters at most, so not below `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_shared_memory_that_cannot_be_written_is_named(temporary: Path) -> None:
    (temporary / "parent.py").write_text(PARENT)
    mounted = "mount -t tmpfs -o ro tmpfs /dev/shm && exec"
    ended = subprocess.run(["unshare", "-m", "sh", "-c", f"{mounted} {sys.executable} parent.py ."], cwd=temporary,
                           env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert "torch elastic could not launch: OSError: [Errno 30] Read-only file system: /dev/shm, where " \
           "processes share locks, cannot be written" in ended.stderr


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_nothing_outlives_a_killed_parent(tmp_path: Path, temporary: Path, signum: signal.Signals) -> None:
    script = tmp_path / "parent.py"  # without a __main__ guard: ranks must not run it again
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    try:
        until(lambda: all((tmp_path / f"pid{rank}").exists() for rank in (0, 1)), parent)
        family: list[int] = []
        while len(family) < 6:  # server, tracker, two ranks and what they start after that
            family = [each.pid for each in psutil.Process(parent.pid).children(recursive=True)]
        parent.send_signal(signum)
        assert parent.wait(LONG_SECONDS) == -signum
        assert _gone(family)
        assert list(temporary.iterdir()) == []
    finally:
        parent.kill()
        parent.wait()


def test_a_module_that_cannot_be_loaded_is_an_error(local: Local) -> None:
    code = (
        "from repro.launchers.local import Local\n"
        "from repro.core.errors import UsageError\n"
        "import os, psutil\n"
        "before = dict(os.environ)\n"
        "launcher = Local()\n"
        "try:\n"
        "    launcher.open(['json', 'repro.no_such_module'], 'cpu')\n"
        "except UsageError as error:\n"
        "    print(error)\n"
        "launcher.close()\n"
        "assert os.environ == before\n"
        "alive = [' '.join(each.cmdline()) for each in psutil.Process().children()]\n"
        "assert all('resource_tracker' in each for each in alive), alive\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "repro.no_such_module (ModuleNotFoundError: No module named" in done.stdout
    with pytest.raises(UsageError, match="already open"):
        Local().open([], "cpu")


def test_a_loading_server_ends_with_its_parent(tmp_path: Path) -> None:
    """A process that is killed early leaves no process that keeps loading."""
    (tmp_path / "endless.py").write_text("import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\n"
                                         "time.sleep(60)\n")
    code = "from repro.launchers.local import Local; Local().open(['endless'], 'cpu')"
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    starter = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
                               stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "begun").exists())
    servers = psutil.Process(starter.pid).children(recursive=True)
    assert servers
    starter.kill()
    starter.wait()
    gone, left = psutil.wait_procs(servers, timeout=40)
    assert not left and gone, left


def test_an_inline_launcher_loads_before_any_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_once.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    Inline().open(["loaded_once", "no_such_module_at_all"], "cpu")
    assert sys.modules["loaded_once"].value == 1
    monkeypatch.delitem(sys.modules, "loaded_once")


def test_warming_up_is_timed(local: Local) -> None:
    assert local.preload_seconds > 0


@pytest.mark.parametrize(
    ("launcher", "change", "why"),
    [
        (Local(), {"device": "cuda", "processes": 3, "device_count": 2}, "this machine has 2"),
        (Local(), {"processes": 100_000}, "too many"),
        (Local(), {"processes": 8}, None),
        (Inline(), {"processes": 2}, "use launcher local"),
        (Inline(), {"processes": 64, "engine": "fake", "simulated": True}, None),
        (Inline(), {"processes": 1}, None),
    ],
)
def test_unsupported_settings_are_reported_early(launcher: Launcher, change: dict[str, Any], why: str | None) -> None:
    values: dict[str, Any] = dict.fromkeys(("workload", "comm", "precision", "optimizer", "launcher"), "any")
    values |= {"engine": "ddp", "processes": 1, "accumulation": 1, "device": "cpu", "device_count": 0} | change
    said = launcher.unsupported(Setting(**values))
    assert said is None if why is None else why in (said or "")


def _inline(folder: Path, entry: Callable[..., None], **more: Any) -> LaunchResult:
    return Inline().launch(_order(folder, entry, 1, **more))


def test_inline_runs_here_and_puts_the_environment_back(tmp_path: Path) -> None:
    before = dict(os.environ)
    outcome = _inline(tmp_path, note, environment={"EXTRA": "given"})
    assert outcome.ok
    seen = _seen(tmp_path, 0)
    assert (seen["pid"], seen["RANK"], seen["WORLD_SIZE"], seen["EXTRA"]) == (os.getpid(), "0", "1", "given")
    assert dict(os.environ) == before
    assert (tmp_path / "rank0.log").read_text() == "printed by rank 0\n"


def test_inline_can_form_a_group_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that torchrun has started, whose store is another one's."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    outcome = _inline(tmp_path, all_reduce)
    assert outcome.ok, outcome
    assert (tmp_path / "rank0.log").read_text().endswith("sum 1.0\n")


def test_inline_tells_how_the_entry_ended(tmp_path: Path) -> None:
    raised = _inline(tmp_path, misbehave, payload={"rank": 0, "how": "raise"})
    assert (raised.ends[0].exit_code, raised.ends[0].reason) == (1, "ValueError: first line")
    assert "second line" in (tmp_path / "rank0.log").read_text()
    left = _inline(tmp_path, misbehave, payload={"rank": 0, "how": 3})
    assert (left.ends[0].exit_code, left.ends[0].reason) == (3, "exit code 3")


def sleep(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry: sleep for a minute in every case."""
    with contextlib.suppress(Exception):  # which the time-out must get through
        time.sleep(60)


def test_inline_is_stopped_in_time(tmp_path: Path) -> None:
    outcome = _inline(tmp_path, sleep, timeout_seconds=0.2)
    assert outcome.timed_out and outcome.seconds < 60 and "0.2 s" in outcome.ends[0].reason


def test_inline_is_stopped_when_nothing_gets_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    outcome = _inline(tmp_path, sleep, stall_seconds=0.2, progress=tmp_path / "events")
    assert outcome.hung and not outcome.timed_out and not outcome.ok
    assert outcome.seconds < 60
    assert outcome.ends[0].reason == "hung: no event for 0.2 s; all stacks are in its log"
    assert "in sleep" in (tmp_path / "rank0.log").read_text()
    assert signal.getsignal(signal.SIGUSR1) is before
