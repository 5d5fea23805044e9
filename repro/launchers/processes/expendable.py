"""A rank that a launch can do without: it runs in a child, whose death by a signal ends nothing else."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from repro.launchers.processes import hang


def run_in_child(entry: Callable[[], None], report: Path) -> None:
    """Run `entry` in a forked process and wait for it; this process must have one thread.

    Torch elastic ends all ranks as soon as one of its own processes dies. This one stays, and returns as if the rank
    had ended well if the child is killed by a signal, which goes into `report`.

    Raises:
        SystemExit: the entry failed by itself.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            entry()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    # Whoever asks this process for its stacks wants those of the rank.
    signal.signal(hang.ASK, lambda number, _frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        report.write_text(json.dumps({"signal": -code}), encoding="utf-8")
    elif code:
        raise SystemExit(code)
