"""Preflight checks: data, machine and code before a run starts or is resumed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from repro.core import control_group
from repro.core.devices import on_gpu
from repro.core.errors import GuardError, UsageError
from repro.core.files import read_model
from repro.core.frozen import canonical
from repro.core.machine import BUSY, Machine, load_now, rank_threads
from repro.core.random_streams import Streams
from repro.program.file_readers import NO_TENSORBOARD
from repro.record.environment import environment
from repro.record.environment.device_facts import DeviceFacts, measure, proven_gpus
from repro.record.environment.differences import Difference, differences
from repro.record.environment.environment import DataSet, Environment
from repro.record.environment.plugin_code import plugin_code
from repro.record.folder import resume
from repro.record.folder.checkpoint import KEPT
from repro.record.folder.store import RunFolder
from repro.runner.context import Options
from repro.runner.machine_watch import others_on_gpus
from repro.seams.launching import Launcher
from repro.seams.training import Engine, Workload
from repro.suite.kinds.program import PLACEHOLDER, ProgramConfig
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

DISK_BYTES = 256 << 20
"""Free space that a run folder needs, plus `TRIAL_BYTES` per trial."""
TRIAL_BYTES = 1 << 20
WEIGHT_BYTES = 16
"""Bytes of a checkpoint per weight: the weight, two moments and a master copy, in float32."""
SHARED_BYTES = 64 << 20
"""Shared memory that NCCL and loaders of a rank may need on a GPU machine; a sixteenth of it elsewhere."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """The findings of the checks before a start."""

    environment: Environment
    differences: tuple[Difference, ...]
    """Differences of machine and code from those the run began with."""
    warnings: tuple[str, ...]
    """Conditions of the machine that may spoil figures."""


def check(plan: Plan, machine: Machine, folder: RunFolder, options: Options) -> Preflight:
    """Check data, machine and code before a run starts or is resumed; writes nothing.

    Raises:
        TrialError: the data are not what the workload declares.
        UsageError: a plug-in or a program's command is not installed, or a service, room or a folder of all nodes is
            missing; torch cannot compute on the GPUs of the plan, or compile for them; or the run began on another
            machine or with other code, and `options.force` is False.
        GuardError: `options.strict`, and a condition may spoil figures.
    """
    if absent := plan.absent_plugins():
        raise UsageError("; ".join(absent))
    if unstarted := missing_commands(plan, folder):
        raise UsageError("; ".join(unstarted))
    if silent := absent_services(plan):
        raise UsageError("; ".join(silent))
    if plan.suite.keeps_checkpoints and (apart := _apart(plan)):
        raise UsageError(f"launcher {apart}: the parts of a checkpoint would lie on different nodes; if all of them "
                         f"see {folder.root.resolve()}, set launcher.shared=true; if not, use another on_failure")
    if unusable := unusable_gpus(plan) or missing_compiler(plan):
        raise UsageError(unusable)
    launchers = [cell.choices.launcher.get(Launcher) for cell in plan.cells]
    several = any(item.origin == "measured" and (item.node_count or 1) > 1 for item in launchers)
    now = environment.take(machine, tuple(data_sets(plan)), plugin_code(plan, folder.root), several)
    now = now.model_copy(update={"settings": {**now.settings, **found_commands(plan)}})
    if plan.uses_gpus and not folder.environment.is_file():
        now = now.model_copy(update={"tried": measure()})
    load = max(now.high_load or 0.0, load_now(0.5)) if options.strict else None
    warnings = [*before(plan, machine, folder.root, load), *changed_copies(now.tried)]
    if options.strict and warnings:
        raise GuardError(f"--strict: this machine is not fit for the run: {'; '.join(warnings)}")
    found: list[Difference] = []
    if folder.environment.is_file():
        found = differences(read_model(folder.environment, Environment), now)
        resume.require_same(folder.root, found, options.force)
    return Preflight(now, tuple(found), tuple(warnings))


def changed_copies(tried: DeviceFacts | None) -> Iterator[str]:
    """Yield a sentence for every path on which a GPU's data arrived changed."""
    for copy in tried.copies if tried else ():
        if not copy.intact:
            yield (f"a copy from {copy.sender} to {copy.receiver} arrived changed: trust no result that this machine "
                   "makes with both (`repro doctor --device`)")


def unusable_gpus(plan: Plan) -> str:
    """Return why torch cannot compute on the GPUs that the plan needs here; "" if it can."""
    if not plan.uses_gpus:
        return ""
    needed = max(_here(cell) for cell in plan.cells if on_gpu(cell.choices.device))
    count, problem = proven_gpus()
    if count >= needed:
        return ""
    return (f"the plan needs {needed} GPU(s), and torch computes on {count} here{f': {problem}' if problem else ''}; "
            "`repro doctor` says more; use -o device=cpu to run on the processor")


def missing_compiler(plan: Plan) -> str:
    """Return which program is missing to compile models for GPUs, as the plan asks; "" if none is."""
    asked = any(choices.compile and on_gpu(choices.device) for choices in plan.trainings())
    if not asked or os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"):
        return ""
    return ("compile on a GPU needs a C compiler, by which Triton builds what launches its kernels: install gcc, or "
            "name one in the variable CC")


def missing_commands(plan: Plan, folder: RunFolder) -> list[str]:
    """Return a sentence for every command of a program, and package of its reader, that cannot be found; of a commit
    only the commands on PATH are looked for.
    """
    found = []
    for cell in plan.cells:
        if isinstance(cell.choices, ProgramConfig) and plan.base:
            engine, here = cell.choices.engine, folder.root / plan.base / cell.choices.engine.folder
            name, path = engine.run[0], engine.environment.get("PATH", os.environ.get("PATH"))
            known = engine.commit or (here / name).exists() if "/" in name else shutil.which(name, path=path)
            if not known and not PLACEHOLDER.search(name):
                found.append(f"engine.run: command not found: {name!r}; is it on PATH?")
            if cell.choices.evaluation.reader == "tensorboard" and find_spec("tensorboard") is None:
                found.append(f"evaluation.reader: {NO_TENSORBOARD}")
    return list(dict.fromkeys(found))


def found_commands(plan: Plan) -> dict[str, str]:
    """Return `command NAME` -> hash of its path, for each command of a program that is looked for on PATH: another PATH
    may find another `python`, with other packages.
    """
    programs = [cell.choices.engine for cell in plan.cells if isinstance(cell.choices, ProgramConfig)]
    found = {(item.run[0], path) for item in programs if "/" not in item.run[0] and (
        path := shutil.which(item.run[0], path=item.environment.get("PATH", os.environ.get("PATH"))))}
    return {f"command {name}": environment.hashed(" ".join(sorted(path for other, path in found if other == name)))
            for name, _ in found}


def data_sets(plan: Plan) -> Iterator[DataSet]:
    """Yield the identity of every data set in the plan; its content is checked.

    Raises:
        TrialError: the content is not what the workload declares.
    """
    seen: set[str] = set()
    for choices in plan.trainings():
        choice = choices.workload
        workload = choice.get(Workload)
        if canonical(choice) in seen:
            continue
        seen.add(canonical(choice))
        identity = workload.identity()
        yield DataSet(
            workload=choice.label, name=identity.name, version=identity.version, sha256=identity.sha256,
            train_samples=identity.train_samples, eval_samples=identity.eval_samples, licence=identity.licence,
            source=identity.source, synthetic=workload.synthetic, test_views=workload.test_views,
        )


def before(plan: Plan, machine: Machine, folder: Path, load: float | None) -> list[str]:
    """List the conditions of this machine that may spoil figures of `plan`, one sentence each.

    Args:
        load: processes that ran or waited, mean of the last minute; None: not known.
    """
    found = (_busy(load, machine), _gpus(plan), _cores(plan, machine), _disk(plan, folder), _shared(plan))
    return [text for text in found if text]


def _gpus(plan: Plan) -> str:
    others = others_on_gpus() if plan.uses_gpus else []
    if not others:
        return ""
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f"other processes compute on its GPUs: {', '.join(others[:3])}{more}"


def _busy(load: float | None, machine: Machine) -> str:
    if load is None or load <= BUSY * machine.cores:
        return ""
    return f"its load is {load:.3g} on {machine.cores} core(s): other work slows trials, and not all alike"


def _cores(plan: Plan, machine: Machine) -> str:
    """Warn if ranks on the CPU have to share cores: they would slow each other down."""
    each = rank_threads(os.environ)
    needed = max((_here(cell) * each for cell in plan.cells
                  if cell.choices.device == "cpu" and cell.choices.origin == "measured"), default=0)
    if needed > machine.cores:
        return (f"its {machine.cores} core(s) are too few for {needed} threads of ranks: they wait for each other's "
                "cores")
    if needed > (allowed := control_group.cores(control_group.limits())):
        return (f"its control group allows the time of {allowed:.3g} core(s) to {needed} threads of ranks: the kernel "
                "holds them back")
    return ""


def _apart(plan: Plan) -> str:
    """Return the kind of the first launcher whose ranks do not all see the run's folder; "" if there is none."""
    return next((cell.choices.launcher.kind for cell in plan.cells
                 if not cell.choices.launcher.get(Launcher).one_folder), "")


def _here(cell: Cell) -> int:
    """Return the ranks of a cell on this computer: all, unless its nodes are real ones."""
    launcher, ranks = cell.choices.launcher.get(Launcher), cell.choices.ranks
    return ranks // (launcher.nodes_of(ranks) if launcher.origin == "measured" else 1)


def _disk(plan: Plan, folder: Path) -> str:
    needed = DISK_BYTES + TRIAL_BYTES * len(plan.order) + checkpoint_bytes(plan)
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return ""
    return f"{free / 1e6:.0f} MB are free for the run folder, {needed / 1e6:.0f} MB may be needed"


def checkpoint_bytes(plan: Plan) -> int:
    """Estimate the size of the checkpoints of the largest model in `plan`: those kept, and one being written."""
    if not plan.suite.keeps_checkpoints:
        return 0
    chosen = {canonical(choices.workload): choices.workload.get(Workload) for choices in plan.trainings()
              if choices.engine.get(Engine).checkpoints}
    return max((_weights(workload) for workload in chosen.values()), default=0) * WEIGHT_BYTES * (KEPT + 1)


def _weights(workload: Workload) -> int:
    return sum(parameter.numel() for parameter in workload.build(Streams(0, 0), "cpu").model.parameters())


def _shared(plan: Plan) -> str:
    place = Path("/dev/shm")
    if not place.is_dir():
        return ""
    ranks = max(map(_here, plan.cells))
    needed = ranks * (SHARED_BYTES if plan.uses_gpus else SHARED_BYTES // 16)
    free = shutil.disk_usage(place).free
    if free >= needed:
        return ""
    return f"{free / 1e6:.0f} MB of shared memory are free, {ranks} ranks may need {needed / 1e6:.0f} MB"


def absent_data(plan: Plan) -> list[str]:
    """Return a line for each data set or service that is absent: what is missing and how to get it."""
    found = (choices.workload.get(Workload).absent() for choices in plan.trainings())
    return [*(text for text in dict.fromkeys(found) if text), *absent_services(plan)]


def absent_services(plan: Plan) -> list[str]:
    """Return a line for each service or room that a measurement needs and that is missing.

    Equal plug-ins are asked once: two looks at a disk may find different amounts of free space.
    """
    asked = {tuple(choice.model_dump_json() for choice in cell.choices.plugins()): cell.choices for cell in plan.cells}
    return [text for text in dict.fromkeys(choices.absent() for choices in asked.values()) if text]
