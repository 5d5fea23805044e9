"""Process that ranks are forked from: start it warm, check it, stop it completely.

`multiprocessing` has one fork server per process. It starts asynchronously and does not report modules that it could
not load, so a first small process brings back the report of `repro.launchers.processes.preload`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver, process, spawn, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

import repro
from repro.core import devices, orphans
from repro.core.errors import OutputError, UsageError
from repro.core.machine import NO_TELEMETRY
from repro.core.orphans import name_owner, remove_orphaned

PRELOAD = "repro.launchers.processes.preload"


def orders(modules: Sequence[str], log: Path) -> str:
    """Return the server's orders at its start, as the text of its environment variable."""
    about = spawn.get_preparation_data("rank")
    return json.dumps({
        "modules": list(modules), "log": str(log), "path": about["sys_path"], "owner": os.getpid(),
        "main_path": about.get("init_main_from_path"), "main_name": about.get("init_main_from_name"),
    })


def begin() -> None:
    """Start the server with the current environment and return at once; it loads its modules in the meantime.

    A running server is stopped first: it has other modules and another environment.
    """
    stop()
    # Python before 3.10.9 and 3.11.1 prefers sockets without a file, through which every local user can send it code.
    util.abstract_sockets_supported = False  # type: ignore[misc]  # final in its stubs
    forkserver.set_forkserver_preload([PRELOAD])
    forkserver.ensure_running()


def finish(log: Path, device: str) -> None:
    """Wait until the server is warm.

    Raises:
        UsageError: a module could not be loaded, or loading it ended the server or, for ranks on GPUs, called the
            driver.
    """
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    probe = context.Process(target=_report, args=(theirs,), daemon=True)
    try:
        probe.start()
        theirs.close()
        report: dict[str, Any] = ours.recv()
        probe.join()
    except (EOFError, ConnectionError, FileNotFoundError):  # its socket and its folder may be gone with it
        raise UsageError(f"the fork server {_end()} while it loaded its modules: "
                         f"{_tail(log) or 'it printed nothing'}") from None
    finally:
        ours.close()
    _check(report, log, device)


def alive() -> bool:
    """Return True if the server runs."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    try:
        return server is not None and psutil.Process(server).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop() -> None:
    """End the server's processes and the server.

    A signal can arrive after the server was asked for a process and before this one knows its number. The server may
    fork it only now, and would wait for its end: it holds the server's pipe open.
    """
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None and psutil.pid_exists(server):
        process = psutil.Process(server)
        threading.Thread(target=_end_children, args=(process,), name="repro-server-end", daemon=True).start()
    # multiprocessing has no public call to stop its fork server. The server removes its folder when it ends, and with
    # it the socket that multiprocessing then unlinks.
    with contextlib.suppress(FileNotFoundError):
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _end_children(process: psutil.Process) -> None:
    """Kill the processes that the server has forked, and those it forks meanwhile, until it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            time.sleep(0.02)


def _report(pipe: Connection) -> None:
    """Send the server's loading report; runs in a process forked from the server.

    Only a forked process knows whether the driver was called before: torch marks the fork, also where its own
    initialisation has not run.
    """
    module = sys.modules.get(PRELOAD)
    if module is None:
        pipe.send({"failed": {PRELOAD: "not importable in a new process"}})
    else:
        pipe.send(module.REPORT | {"cuda_started": devices.lost_to_fork()})
    pipe.close()


def _check(report: dict[str, Any], log: Path, device: str) -> None:
    if report["failed"]:
        each = "; ".join(f"{name} ({why})" for name, why in report["failed"].items())
        raise UsageError(f"cannot be loaded in the fork server: {each}\n{_tail(log)}".rstrip())
    if report["cuda_started"] and devices.on_gpu(device):  # ranks on the processor never call the driver
        names = ", ".join(report["seconds"])
        raise UsageError(f"one of these modules starts CUDA at import, after which ranks cannot be forked: {names}")


def _end() -> str:
    """Return how the server ended; multiprocessing reaps it later."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    late = time.monotonic() + 1.0
    while server is not None and time.monotonic() < late:
        with contextlib.suppress(ChildProcessError):
            if state := os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                return _cause(state.si_code, state.si_status)
        time.sleep(0.02)
    return "ended"


def _cause(code: int, status: int) -> str:
    if code == os.CLD_EXITED:
        return f"ended with exit code {status}"
    name = signal.Signals(status).name if status in set(signal.Signals) else f"signal {status}"
    hint = " (the kernel does that if memory runs out)" if status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-15:])


NOISY = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
_LOCK = threading.Lock()
_shared: WarmServer | None = None


class WarmServer:
    """Running fork server; multiprocessing has one per process, so launchers with equal modules share it."""

    def __init__(self, modules: Sequence[str], device: str) -> None:
        self.modules, self.device, self.users = tuple(modules), device, 0
        self._folder = LaunchFolder()
        self._before = dict(os.environ)
        self.seconds = 0.0

    @property
    def folder(self) -> str:
        """Folder for files of one launch; removed when the server stops."""
        return str(self._folder.path)

    def start(self) -> None:
        """Start the server and return when it is warm.

        Raises:
            UsageError: a module cannot be loaded, or loading it starts CUDA.
        """
        begun = time.monotonic()
        orphans.end(orphans.find())
        log = Path(self.folder) / "server.log"
        _set_environment(self.device, orders(self.modules, log))
        begin()
        # Meanwhile, on another core: the modules that the launching process needs.
        _load_elastic()
        finish(log, self.device)
        self.seconds = time.monotonic() - begun

    def revive(self) -> None:
        """Start the server again if it was killed, and return when it is warm: a rank must not wait for it.

        Raises:
            UsageError: it cannot be started again.
        """
        if not alive():
            self._folder.restore()
            begin()
            finish(Path(self.folder) / "server.log", self.device)

    def stop(self) -> None:
        """End the server and restore the environment."""
        stop()
        os.environ.clear()
        os.environ.update(self._before)
        self._folder.remove()


def acquire(modules: Sequence[str], device: str) -> WarmServer:
    """Return a server with `modules` loaded, starting it if there is none; to be released by `release`.

    Raises:
        UsageError: it cannot be started, or a server with other modules is in use.
    """
    global _shared
    with _LOCK:
        if _shared is not None and (_shared.modules, _shared.device) != (tuple(modules), device):
            raise UsageError("a launcher with other modules is already open in this process, which has one fork "
                             "server; close that launcher first")
        if _shared is None:
            started = WarmServer(modules, device)
            try:
                started.start()
            except BaseException:
                # Ctrl-C too: no process may stay, and the environment is restored.
                started.stop()
                raise
            _shared = started
        _shared.users += 1
        return _shared


def release(server: WarmServer) -> None:
    """Release a server; the last user stops it."""
    global _shared
    with _LOCK:
        server.users -= 1
        if server.users == 0:
            _shared = None
            server.stop()


def _set_environment(device: str, orders: str) -> None:
    """Set what the fork server, and through it every rank, inherits; keep a user's own values if they may differ."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Without it DeepSpeed asks the driver at its import, after which no forked rank can use CUDA.
    os.environ["DS_ACCELERATOR"] = devices.kind_of(device)
    os.environ.update(NO_TELEMETRY)
    if devices.on_gpu(device):
        # Whether there is a GPU is asked of NVML then, which leaves CUDA alone.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["PYTHONSAFEPATH"] = "1"
    # Ranks are identified by the order of their start.
    os.environ["TORCH_MP_PARALLEL_START"] = "0"
    # All nodes have as many ranks, so elastic numbers them without asking the store: that waits for the slowest node,
    # without a signal handler by which elastic could be left. Set before the first server starts: trials record what
    # their ranks inherit, and a server that is started again must not differ.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    os.environ["REPRO_FORK_SERVER"] = orders
    os.environ[orphans.OWNER] = orphans.identity(os.getpid())
    # The server must find this package before it receives the rest of the path.
    root = str(Path(repro.__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if "site-packages" not in root and root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (root, *known) if part)


def _load_elastic() -> None:
    import torch.distributed.launcher.api  # noqa: F401

    from repro.launchers.processes import fixed_nodes

    fixed_nodes.register()
    for name in NOISY:
        # Elastic logs the same failures again as warnings with tracebacks.
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())


PREFIX = "repro-launch-"
LONGEST_SOCKET = 107
"""Longest path of a socket on Linux, in bytes; macOS has 103."""
SOCKET = len("/repro-launch-01234567/listener-01234567") + 4
"""What multiprocessing adds to the temporary folder, and the difference of macOS."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # each folder made there has mode 0700


class LaunchFolder:
    """A new folder of mode 0700 that names its owner; multiprocessing makes its sockets in it."""

    def __init__(self) -> None:
        """Make the folder, and remove those of owners that were killed.

        Raises:
            OutputError: no temporary folder is writable with a path that is short enough for a socket.
        """
        base = short_temporary()
        remove_orphaned(base, PREFIX)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self.restore()

    def restore(self) -> None:
        """Make it again if a fork server that was killed has removed it, and have multiprocessing use it."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        name_owner(self.path)
        # multiprocessing has no public option for the folder of its sockets; its own would be in TMPDIR, and stay
        # there after kill -9.
        process.current_process()._config["tempdir"] = str(self.path)  # type: ignore[attr-defined]

    def remove(self) -> None:
        process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
        shutil.rmtree(self.path, ignore_errors=True)


def short_temporary() -> str:
    """Return the temporary folder, or another if sockets in it would have paths that are too long.

    Raises:
        OutputError: none is writable.
    """
    wanted = tempfile.gettempdir()
    for place in (wanted, *SHORT):
        if len(os.fsencode(place)) + SOCKET <= LONGEST_SOCKET and os.access(place, os.W_OK | os.X_OK):
            return place
    raise OutputError(f"{wanted}: too long for a socket (at most {LONGEST_SOCKET - SOCKET} bytes), and none of "
                      f"{', '.join(SHORT)} is writable; set TMPDIR to a shorter path")
