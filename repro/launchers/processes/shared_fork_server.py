"""Fork server shared by all open launchers of this process, and the environment that its ranks inherit."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import process
from pathlib import Path

import repro
from repro.core import orphans
from repro.core.errors import OutputError, UsageError
from repro.core.orphans import name_owner, remove_orphaned
from repro.launchers.processes import fork_server

NOISY = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
_LOCK = threading.Lock()
_shared: WarmServer | None = None


class WarmServer:
    """Running fork server; multiprocessing has one per process, so launchers with equal modules share it."""

    def __init__(self, modules: Sequence[str], device: str) -> None:
        self.modules, self.device, self.users = tuple(modules), device, 0
        self._folder = LaunchFolder()
        self._before = dict(os.environ)
        self.module_seconds: Mapping[str, float] = {}
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
        begin = time.monotonic()
        orphans.end(orphans.find())
        log = Path(self.folder) / "server.log"
        _set_environment(self.device, fork_server.orders(self.modules, log))
        fork_server.begin()
        # Meanwhile, on another core: the modules that the launching process needs.
        _load_elastic()
        self.module_seconds = fork_server.finish(log)["seconds"]
        self.seconds = time.monotonic() - begin

    def revive(self) -> None:
        """Start the server again if it was killed, and return when it is warm: a rank must not wait for it.

        Raises:
            UsageError: it cannot be started again.
        """
        if not fork_server.alive():
            self._folder.restore()
            fork_server.begin()
            fork_server.finish(Path(self.folder) / "server.log")

    def stop(self) -> None:
        """End the server and restore the environment."""
        fork_server.stop()
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
    os.environ["DS_ACCELERATOR"] = "cuda" if device.startswith("cuda") else "cpu"
    if device.startswith("cuda"):
        # Whether there is a GPU is asked of NVML then, which leaves CUDA alone.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["PYTHONSAFEPATH"] = "1"
    # Ranks are identified by the order of their start.
    os.environ["TORCH_MP_PARALLEL_START"] = "0"
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
