"""Process that ranks are forked from: start it warm, check it, stop it completely.

`multiprocessing` has one fork server per process. It starts asynchronously and does not report modules that it could
not load, so a first small process brings back the report of `repro.launchers.processes.preload`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from repro.core.errors import UsageError

PRELOAD = "repro.launchers.processes.preload"


def orders(modules: Sequence[str], log: Path) -> str:
    """Return the server's orders at its start, as the text of its environment variable."""
    about = spawn.get_preparation_data("rank")
    return json.dumps(
        {
            "modules": list(modules),
            "log": str(log),
            "path": about["sys_path"],
            "main_path": about.get("init_main_from_path"),
            "main_name": about.get("init_main_from_name"),
            "owner": os.getpid(),
        }
    )


def begin() -> None:
    """Start the server with the current environment and return at once; it loads its modules in the meantime.

    A running server is stopped first: it has other modules and another environment.
    """
    stop()
    forkserver.set_forkserver_preload([PRELOAD])
    forkserver.ensure_running()


def finish(log: Path) -> dict[str, Any]:
    """Wait until the server is warm; return its report.

    Raises:
        UsageError: a module could not be loaded, or loading it started CUDA or ended the server.
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
    _check(report, log)
    return report


def alive() -> bool:
    """Return True if the server runs."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    try:
        return server is not None and psutil.Process(server).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop() -> None:
    """End the server's remaining processes, then the server.

    A signal can arrive between the server's fork and the moment the parent learns the new process's number. Such a rank
    would hold the server's pipe open, and the server would wait for it for ever.
    """
    kill_ranks()
    # multiprocessing has no public call to stop its fork server. The server removes its folder when it ends, and with
    # it the socket that multiprocessing then unlinks.
    with contextlib.suppress(FileNotFoundError):
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


def kill_ranks() -> None:
    """Kill every running process that the server has forked."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(server).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _report(pipe: Connection) -> None:
    """Send the server's loading report; runs in a process forked from the server.

    Only a forked process knows whether the driver was called before: torch marks the fork, also where its own
    initialisation has not run.
    """
    module = sys.modules.get(PRELOAD)
    if module is None:
        pipe.send({"failed": {PRELOAD: "not importable in a new process"}})
    else:
        pipe.send(module.REPORT | {"cuda_started": module.cuda_is_lost()})
    pipe.close()


def _check(report: dict[str, Any], log: Path) -> None:
    if report["failed"]:
        each = "; ".join(f"{name} ({why})" for name, why in report["failed"].items())
        raise UsageError(f"cannot be loaded in the fork server: {each}\n{_tail(log)}".rstrip())
    if report["cuda_started"]:
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


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])
