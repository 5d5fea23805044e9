"""Fork server shared by all open launchers of this process, and the environment that its ranks inherit."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import repro
from repro.core import orphans
from repro.core.errors import UsageError
from repro.launchers.processes import fork_server
from repro.launchers.processes.launch_folder import LaunchFolder

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
