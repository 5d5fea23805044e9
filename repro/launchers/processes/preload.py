"""Module whose import preloads the fork server; imported there only, by name.

`multiprocessing` swallows an ImportError of a preloaded module. This module imports them itself, keeps failures and
times in `REPORT`, and leaves the server in the state that every rank is forked from.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from repro.core import registry

ORDERS = "REPRO_FORK_SERVER"
"""Environment variable with {"modules", "log", "path", "main_path", "main_name", "owner"} as JSON."""
ASK_SECONDS = 0.3


def _import_all(modules: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    for module in modules:
        begin = time.monotonic()
        try:
            importlib.import_module(module)
        except Exception as error:  # a third party's module may raise anything; reported by the rank that needs it
            traceback.print_exc()
            failed[module] = f"{type(error).__name__}: {error}"
        seconds[module] = round(time.monotonic() - begin, 4)
    return seconds, failed


@contextmanager
def _ending_with_owner(owner: int, folder: Path) -> Iterator[None]:
    """End this process if the owner ends inside the block. The server itself checks only after loading, which takes
    seconds, and a minute on a busy machine.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(ASK_SECONDS):
            if os.getppid() != owner:
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # a process with threads must not be forked


def _work() -> dict[str, Any]:
    orders = json.loads(os.environ[ORDERS])
    # The output of imports goes to a log instead of the user's terminal.
    handle = os.open(orders["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    # The server outlives a killed launcher by a moment and removes the folder. Ranks never run this.
    atexit.register(shutil.rmtree, Path(orders["log"]).parent, ignore_errors=True)
    sys.path[:] = orders["path"]
    # Ranks treat the caller's main module as loaded, and need nothing of it, because entries are given by name.
    # Otherwise every rank would run the caller's script, or import pytest, again.
    main = sys.modules["__main__"]
    if orders["main_path"] is not None:
        main.__file__ = orders["main_path"]
    if orders["main_name"] is not None:
        main.__spec__ = ModuleSpec(orders["main_name"], None)
    with _ending_with_owner(orders["owner"], Path(orders["log"]).parent):
        seconds, failed = _import_all(orders["modules"])
        registry.names("engine")  # looks at all installed packages, as every rank would to read its trial
    sys.stdout.flush()
    sys.stderr.flush()
    # Objects that exist now never become garbage: keep the ranks' collector from visiting and copying them.
    gc.collect()
    gc.freeze()
    return {"pid": os.getpid(), "seconds": seconds, "failed": failed}


REPORT = _work() if ORDERS in os.environ else {}  # without orders a tool reads the module, and no server is made
