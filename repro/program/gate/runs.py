"""One traced start of a program: as a trial starts it, until all ranks have taken the traced steps."""

from __future__ import annotations

import json
import select
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.core.errors import ParityError, visible
from repro.program.failures import Failures
from repro.program.gate.trace import UNTRACED, read_folder
from repro.program.observation import Line, LineSplitter
from repro.program.process import Process, changed_files, make_command, working_folder
from repro.suite.kinds.program import ProgramConfig
from repro.suite.model import Trial
from repro.watch import TRACE

LOOK_SECONDS = 0.1


def trace_program(
    trial: Trial, base: Path | None, code: Path, steps: Sequence[int], inherited: Mapping[str, str], ulp: float = 0.0
) -> dict[str, bytes]:
    """Start a program, trace the steps, end it; return the files that its ranks wrote.

    Args:
        base, code: as for `working_folder`.
        steps: optimizer steps, from 1.
        inherited: environment of this process.
        ulp: relative size of a disturbance of the initial weights; 0: none.

    Raises:
        ParityError: it ended, or its time did, before all steps were traced; its files are not those of the plan.
        TrialError: it cannot be started.
    """
    choices = trial.choices
    assert isinstance(choices, ProgramConfig)
    with tempfile.TemporaryDirectory(prefix="repro-program-") as place:
        scratch = Path(place)
        folders = [scratch / name for name in ("code", "program", "trace")]
        for folder in folders:
            folder.mkdir()
        where = working_folder(choices, base, code, folders[0])
        if changed := changed_files(choices, where):
            raise ParityError(changed)
        command = make_command(trial, choices, where, folders[1], inherited)
        wanted = json.dumps({"folder": str(folders[2]), "steps": [*steps], "ulp": ulp})
        command = replace(command, environment={**command.environment, TRACE: wanted})
        with Process(command, choices.engine.terminal) as process:
            said = _follow(process, folders[2], steps, time.monotonic() + choices.timeout_seconds)
        found = read_folder(folders[2])
        if not _complete(found, steps):
            raise ParityError(_why(found, process.exit_code, said, steps))
        return found


def _follow(process: Process, folder: Path, steps: Sequence[int], deadline: float) -> str:
    """Wait until every rank has traced all steps, the program has ended, or its time has; return its exception, or its
    last line."""
    splitter, failures, last, is_open = LineSplitter(1 << 12), Failures(), "", True

    def take(lines: Iterable[Line]) -> None:
        nonlocal last
        for line in lines:
            failures.take(line.text)
            last = visible(line.text.strip())[:300] or last

    while time.monotonic() < deadline and (is_open or process.exit_code is None):
        if not is_open:
            time.sleep(LOOK_SECONDS)
        elif select.select([process], [], [], LOOK_SECONDS)[0]:
            chunk = process.read()
            is_open = chunk is not None
            take(splitter.feed(chunk or b"", 0))
            continue
        if process.exit_code is not None or _complete(read_folder(folder), steps):
            break
    take(splitter.end(0))
    return failures.cause or last


def _complete(found: Mapping[str, bytes], steps: Sequence[int]) -> bool:
    """Return True if all ranks have written all steps, or that they cannot."""
    ranks = [content for content in found.values() if b"\n" in content]
    headers: list[dict[str, Any]] = [json.loads(content.split(b"\n", 1)[0]) for content in ranks]
    if not headers or len(ranks) < max(header["world"] for header in headers):
        return False
    return all(header["problem"] or content.count(b"\n") > len(steps)
               for header, content in zip(headers, ranks, strict=True))


def _why(found: Mapping[str, bytes], code: int | None, printed: str, steps: Sequence[int]) -> str:
    said = f"; its output ends: {printed}" if printed else ""
    if code:
        return f"the program ended with exit code {code}{said}"
    if not found:
        return UNTRACED if code == 0 else f"no step was traced within timeout_seconds{said}"
    done = min(content.count(b"\n") - 1 for content in found.values())
    ended = "ended" if code == 0 else "took its whole time"
    return f"the program {ended} after {done} of {len(steps)} traced steps in {len(found)} ranks{said}"
