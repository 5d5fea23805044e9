"""The fork server that all open launchers of this process share, and the environment that its ranks inherit."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import repro
from repro.core import orphans
from repro.core.errors import UsageError
from repro.launchers.processes import fork_server

NOISY = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
_LOCK = threading.Lock()
_shared: WarmServer | None = None


class WarmServer:
    """A running fork server; multiprocessing has one a process, so launchers with equal modules use it together."""

    def __init__(self, modules: Sequence[str], device: str) -> None:
        self.modules, self.device, self.users = tuple(modules), device, 0
        self._folder = tempfile.TemporaryDirectory(prefix="repro-launch-")
        self._before = dict(os.environ)
        self.module_seconds: Mapping[str, float] = {}
        self.seconds = 0.0

    @property
    def folder(self) -> str:
        """For files of one launch; gone when the server stops."""
        return self._folder.name

    def start(self) -> None:
        """Return when the server is warm.

        Raises:
            UsageError: a module cannot be loaded, or loading it starts CUDA.
        """
        begin = time.monotonic()
        orphans.end(orphans.find())
        log = Path(self.folder) / "server.log"
        _set_environment(self.device, fork_server.orders(self.modules, log))
        fork_server.begin()
        # Meanwhile, on another core: what the launching side itself needs.
        _load_elastic()
        self.module_seconds = fork_server.finish(log)["seconds"]
        self.seconds = time.monotonic() - begin

    def revive(self) -> None:
        """Start the server again where it was killed, and return when it is warm: a rank must not wait for it.

        Raises:
            UsageError: it cannot be started any more.
        """
        if not fork_server.alive():
            Path(self.folder).mkdir(mode=0o700, exist_ok=True)
            fork_server.begin()
            fork_server.finish(Path(self.folder) / "server.log")

    def stop(self) -> None:
        """End the server and put the environment back."""
        fork_server.stop()
        os.environ.clear()
        os.environ.update(self._before)
        self._folder.cleanup()


def acquire(modules: Sequence[str], device: str) -> WarmServer:
    """The server that has `modules` loaded, started when there is none; to be given back by `release`.

    Raises:
        UsageError: it cannot be started, or one with other modules is in use.
    """
    global _shared
    with _LOCK:
        if _shared is not None and (_shared.modules, _shared.device) != (tuple(modules), device):
            raise UsageError("a launcher is already open in this process, which has one fork server, with other "
                             "modules: close it")
        if _shared is None:
            started = WarmServer(modules, device)
            try:
                started.start()
            except BaseException:
                # Ctrl-C too: nothing must go on running, and the environment is put back.
                started.stop()
                raise
            _shared = started
        _shared.users += 1
        return _shared


def release(server: WarmServer) -> None:
    """Give a server back; the last one to do so stops it."""
    global _shared
    with _LOCK:
        server.users -= 1
        if server.users == 0:
            _shared = None
            server.stop()


def _set_environment(device: str, orders: str) -> None:
    """What the fork server and through it every rank inherits; a user's own choice stands where there can be one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["PYTHONSAFEPATH"] = "1"
    # Ranks are told apart by the order they start in.
    os.environ["TORCH_MP_PARALLEL_START"] = "0"
    os.environ["REPRO_FORK_SERVER"] = orders
    os.environ[orphans.OWNER] = orphans.identity(os.getpid())
    # The server must find this package before it is told the rest of the path.
    root = str(Path(repro.__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if "site-packages" not in root and root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (root, *known) if part)


def _load_elastic() -> None:
    import torch.distributed.launcher.api  # noqa: F401

    from repro.launchers.processes import one_node

    one_node.register()
    for name in NOISY:
        # Elastic repeats as warnings, with tracebacks, what the outcome says in one line.
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
