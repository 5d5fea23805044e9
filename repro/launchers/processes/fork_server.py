"""The process that ranks are forked from: started warm, checked, and stopped without a trace.

`multiprocessing` has one fork server a process. Its start is asynchronous and silent about modules that it could not
load, so a first small process is sent through it that brings back the report of `repro.launchers.processes.preload`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from repro.core.errors import UsageError

PRELOAD = "repro.launchers.processes.preload"


def orders(modules: Sequence[str], log: Path) -> str:
    """What the server shall do when it starts, as the text of its environment variable."""
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
    """Start the server with the present environment and return at once; it loads its modules meanwhile.

    A server that somebody else started is stopped first: it has other modules and another environment.
    """
    stop()
    forkserver.set_forkserver_preload([PRELOAD])
    forkserver.ensure_running()


def finish(log: Path) -> dict[str, Any]:
    """Wait until the server is warm; its report.

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
    except EOFError:
        raise UsageError(f"the fork server ended while it loaded its modules:\n{_tail(log)}") from None
    finally:
        ours.close()
    _check(report, log)
    return report


def alive() -> bool:
    """Whether the server that was started still runs."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    try:
        return server is not None and psutil.Process(server).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop() -> None:
    """End the server, and before it whatever it still has running.

    A signal can land between the server's fork and the moment the parent learns the new process's number. Such a rank
    would hold the server's pipe open, and the server would wait for it for ever.
    """
    kill_ranks()
    # The one way there is: multiprocessing offers no public call to stop its fork server.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def kill_ranks() -> None:
    """Kill every process that the server has forked and that is still there."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(server).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _report(pipe: Connection) -> None:
    """In a process forked from the server: send what the server noted when it loaded."""
    module = sys.modules.get(PRELOAD)
    pipe.send(module.REPORT if module is not None else {"failed": {PRELOAD: "not importable in a new process"}})
    pipe.close()


def _check(report: dict[str, Any], log: Path) -> None:
    if report["failed"]:
        each = "; ".join(f"{name} ({why})" for name, why in report["failed"].items())
        raise UsageError(f"cannot be loaded in the fork server: {each}\n{_tail(log)}".rstrip())
    if report["cuda_started"]:
        names = ", ".join(report["seconds"])
        raise UsageError(f"one of these modules starts CUDA when imported, so ranks cannot be forked after it: {names}")


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])
