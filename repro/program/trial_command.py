"""The command of one trial: its arguments, its environment, its working folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repro.core import orphans
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
    r"|PYTHONPATH|PYTHONHOME|XDG_CACHE_HOME|CUDA_HOME|CUDA_PATH|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|OMP_NUM_THREADS"
    r"|MKL_NUM_THREADS|NVIDIA_\w+|NCCL_\w+|GLOO_\w+|TORCH_\w+|PYTORCH_\w+|HF_HOME|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE"
    r"|DO_NOT_TRACK|DS_ACCELERATOR)$")
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
    run_dir: Path
    """Folder of this trial alone, empty at its start, for what the program writes."""


def seed_of(trial: Trial) -> int:
    """Return the seed that the program gets: of one repeat it is the same in all cells."""
    return int(Streams(trial.master_seed, trial.repeat).generator("program", 0).integers(SEEDS_BELOW))


def make_command(
    trial: Trial, choices: ProgramConfig, folder: Path, run_dir: Path, inherited: Mapping[str, str], mark: str
) -> Command:
    """Return the command of a trial.

    Args:
        folder: the program's working folder.
        inherited: environment of this process.
        mark: unlike that of any other start.
    """
    given = {SEED: str(seed_of(trial)), RUN_DIR: str(run_dir)}
    environment = {name: value for name, value in inherited.items()
                   if ALWAYS.match(name) or name in choices.engine.passes}
    environment["PYTHONUNBUFFERED"] = "1"
    environment |= {name: choices.filled(text, given) for name, text in choices.engine.environment.items()}
    environment |= {MARK: mark, OWNER: orphans.identity(os.getpid())}
    return Command(tuple(choices.filled(part, given) for part in choices.engine.run), environment, folder, run_dir)


def logs_of(trial: Trial, choices: ProgramConfig, command: Command) -> Path:
    """Return the file or folder that `evaluation.logs` names."""
    given = {SEED: str(seed_of(trial)), RUN_DIR: str(command.run_dir)}
    return command.folder / choices.filled(choices.evaluation.logs, given)


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
