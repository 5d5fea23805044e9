"""A program's processes: started, read while they run, ended with all that they started."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from repro.core import orphans
from repro.core.devices import SELECTORS
from repro.core.errors import TrialError
from repro.core.orphans import OWNER
from repro.core.random_streams import Streams
from repro.core.source_code import stored_source
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds import program_files
from repro.suite.kinds.program import RUN_DIR, SEED, ProgramConfig
from repro.suite.model import Trial

ALWAYS = re.compile(
    r"^(PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|TMP|TEMP|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|VIRTUAL_ENV|CONDA_\w+"
    r"|PYTHONPATH|PYTHONHOME|XDG_CACHE_HOME|CUDA_HOME|CUDA_PATH|ROCM_PATH|OMP_NUM_THREADS"
    r"|MKL_NUM_THREADS|NVIDIA_\w+|NCCL_\w+|GLOO_\w+|TORCH_\w+|PYTORCH_\w+|HF_HOME|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE"
    rf"|DO_NOT_TRACK|DS_ACCELERATOR|{'|'.join(SELECTORS)})$")
"""Variables that a program may need to find its interpreter, libraries, devices and caches. No other is passed on but
those that the suite names: a run must not depend on what its record does not say."""
SEEDS_BELOW = 1 << 31
"""Programs put seeds into 32 bits, many with a sign."""
MARK = "REPRO_TRIAL"
"""Variable by which the processes of one start are found again."""


@dataclass(frozen=True, slots=True)
class Command:
    """Process to start for one trial: arguments, environment and folder."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    logs: Path
    """The file or folder that `evaluation.logs` names."""


def seed_of(trial: Trial) -> int:
    """Return the seed that the program gets: of one repeat it is the same in all cells."""
    return int(Streams(trial.master_seed, trial.repeat).generator("program", 0).integers(SEEDS_BELOW))


def make_command(
    trial: Trial, choices: ProgramConfig, folder: Path, run_dir: Path, inherited: Mapping[str, str]
) -> Command:
    """Return the command of a trial.

    Args:
        folder: the program's working folder.
        run_dir: folder of this trial alone, empty at its start, for what the program writes.
        inherited: environment of this process.
    """
    given = {SEED: str(seed_of(trial)), RUN_DIR: str(run_dir)}
    environment = {name: value for name, value in inherited.items()
                   if ALWAYS.match(name) or name in choices.engine.passes}
    if not choices.engine.terminal:  # to one, Python writes each line as a whole, and never so if it is unbuffered
        environment["PYTHONUNBUFFERED"] = "1"
    environment |= {name: choices.filled(text, given) for name, text in choices.engine.environment.items()}
    environment |= {MARK: secrets.token_hex(16), OWNER: orphans.identity(os.getpid())}
    return Command(tuple(choices.filled(part, given) for part in choices.engine.run), environment, folder,
                   folder / choices.filled(choices.evaluation.logs, given))


def working_folder(choices: ProgramConfig, base: Path | None, code: Path, scratch: Path) -> Path:
    """Return the folder in which the program runs; of a commit, one with its files as they were then.

    Args:
        base: folder of the suite's file; None: the files that a record brings run in a folder of their own.
        code: where the run keeps the source of its programs.
        scratch: for the files of a commit or a record.

    Raises:
        TrialError: it is not there, or the commit cannot be brought.
        OutputError: the record does not bring the files that it names.
    """
    if base is None:
        for name, content in stored_source(code, choices.engine.sha256).files.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content)
        return scratch
    folder = base / choices.engine.folder
    if not choices.engine.commit:
        return folder
    try:
        program_files.export(folder, choices.engine.commit, scratch)
    except FieldProblem as error:
        raise TrialError(f"engine.commit: {error}") from error
    return scratch


def changed_files(choices: ProgramConfig, folder: Path) -> str:
    """Return what is wrong with the program's files; "" if they are those that the plan was made with."""
    try:
        found = program_files.read(folder, choices.engine.files, "").sha256
    except FieldProblem as error:
        return f"the program's files cannot be read any more: {error}"
    if found == choices.engine.sha256:
        return ""
    return (f"the program's files are not those of the plan: their hash is {found[:12]}, the plan has "
            f"{choices.engine.sha256[:12]}")


MOST_LISTED = 2_000
"""Files of a working folder above which none is looked at: a listing takes time."""
NOT_THE_PROGRAMS = re.compile(r"\..*|__pycache__|mlruns|mlartifacts|mlflow\.db.*")
"""Names in a working folder that are not the program's to read."""


def listed(folder: Path, record: Path) -> dict[str, tuple[int, int]] | None:
    """Return the files below a working folder, by path: when each was changed (nanoseconds), and its size in bytes.

    What holds `record`, other records, hidden files and compiled code are left out; None if there are too many.
    """
    found: dict[str, tuple[int, int]] = {}
    folder, record = folder.resolve(), record.resolve()
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not NOT_THE_PROGRAMS.fullmatch(name)
                      and not record.is_relative_to(Path(root, name))
                      and not Path(root, name, "plan.json").exists()]
        for name in files:
            if NOT_THE_PROGRAMS.fullmatch(name):
                continue
            if len(found) >= MOST_LISTED:
                return None
            with contextlib.suppress(OSError):  # removed meanwhile
                at = Path(root, name)
                found[str(at.relative_to(folder))] = (at.stat().st_mtime_ns, at.stat().st_size)
    return found


CHUNK = 1 << 16
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
DRAIN_SECONDS = 1.0
"""Longest wait for output after the program itself has ended."""


class Process:
    """One start of a command in a session of its own; its output and its errors arrive as one stream of bytes."""

    def __init__(self, command: Command, terminal: bool) -> None:
        """Start it.

        Raises:
            TrialError: the command is not found, or cannot be started.
        """
        self.command = command
        self.started_ns = time.monotonic_ns()
        self._stream, child = pty.openpty() if terminal else os.pipe()
        try:
            self._process = subprocess.Popen(
                command.arguments, cwd=command.folder, env=dict(command.environment), stdin=subprocess.DEVNULL,
                stdout=child, stderr=child, start_new_session=True, close_fds=True)
        except (OSError, ValueError) as error:
            os.close(self._stream)
            raise TrialError(_not_started(command, error)) from error
        finally:
            os.close(child)
        os.set_blocking(self._stream, False)
        self._end_noted = threading.Thread(target=self._note_end, name="repro-program", daemon=True)
        self._end_noted.start()

    def fileno(self) -> int:
        """The stream, for `select`."""
        return self._stream

    def read(self) -> bytes | None:
        """Return what has arrived; b"" if nothing has, None at the end of the stream."""
        try:
            return os.read(self._stream, CHUNK) or None
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal whose last user has gone
                return None
            raise

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: killed by that signal."""
        return self._process.poll()

    @property
    def ended_ns(self) -> int:
        """Monotonic nanoseconds at which it ended, whatever it left running; waits for that."""
        self._end_noted.join()
        return self._ended_ns

    def _note_end(self) -> None:
        with contextlib.suppress(ChildProcessError):  # another thread has seen it
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._ended_ns = time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self) -> None:
        """End it and everything that it started: SIGTERM, then SIGKILL."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self.wait(GRACE_SECONDS)
        left = list(self._of_this_start())
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, timeout=GRACE_SECONDS)
        self._process.wait()

    def _of_this_start(self) -> Iterator[psutil.Process]:
        """Yield every process of this start that still runs: launchers put workers into sessions of their own."""
        mark = self.command.environment[MARK]
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if each.pid != os.getpid() and each.environ().get(MARK) == mark:
                    yield each

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            os.close(self._stream)


def _not_started(command: Command, error: OSError | ValueError) -> str:
    name = command.arguments[0]
    if not Path(command.folder).is_dir():
        return f"engine.folder: no such folder: {command.folder.name}"
    if isinstance(error, FileNotFoundError):
        return f"engine.run: command not found: {name!r}; is it on PATH?"
    if isinstance(error, PermissionError):
        return f"engine.run: {name!r} may not be executed; make it executable, or run it by its interpreter"
    return f"engine.run: {name!r} cannot be started: {error}"
