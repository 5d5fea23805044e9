"""Everything before `run_start` that a trial and the parity gate share: seeds, job, session."""

from __future__ import annotations

import copy
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.core import devices
from repro.core.errors import one_line
from repro.core.events import EventLog
from repro.core.machine import rank_threads
from repro.core.random_streams import Streams
from repro.record.folder.stored_code import allow_code_of_trial
from repro.record.log.schema import Bar, Checking, Compilation
from repro.seams.training import (
    Comm,
    Engine,
    Job,
    Optimizer,
    Precision,
    Preconditioner,
    Session,
    TrainingParts,
    WholeSet,
    Workload,
)
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.worker.clock import RankClock
from repro.worker.ledger.training import TrainingLedger

if TYPE_CHECKING:
    import torch


DISTURBANCE = 1e-7
"""Relative size of the disturbance that measures how much rounding matters: about one last place of float32."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The position of a rank among all ranks and on its machine."""

    rank: int
    world: int
    local_rank: int


def read_trial(payload: Mapping[str, Any]) -> tuple[Trial, RankPlace]:
    """Return the trial of a launch, and the place of this process in it."""
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    allow_code_of_trial(payload)
    trial = Trial.model_validate(payload["trial"])
    return trial, RankPlace(rank, trial.training.processes, local_rank)


def make_job(choices: TrainingConfig, place: RankPlace, cache: str | None = None) -> Job:
    """Return the job of one rank in the terms of an engine.

    Args:
        cache: folder of the run for what is compiled.
    """
    assert choices.micro_batch * choices.batch.accumulation * place.world == choices.batch.global_, "global batch"
    return Job(
        rank=place.rank, world=place.world, device=devices.of_rank(choices.device, place.local_rank),
        micro_batch=choices.micro_batch, accumulation=choices.batch.accumulation, gradient_clip=choices.gradient_clip,
        precision=choices.precision.get(Precision), optimizer=choices.optimizer.get(Optimizer),
        comm=choices.comm.get(Comm), timeout_seconds=choices.timeout_seconds,
        compression=choices.compression, compression_rank=choices.compression_rank, overlap=choices.overlap,
        model=choices.model_options, label=choices.cell_id, cache=Path(cache) if cache else None,
        eval_batch=choices.eval_batch_size, preconditioner=choices.preconditioner.get(Preconditioner),
    )


@dataclass(frozen=True, slots=True)
class Started:
    """A session and the workload that it trains; both without a model for an engine that needs none."""

    session: Session
    parts: TrainingParts | None
    functions: TrainingParts | None
    """The workload's functions as they were before the engine started: the harness evaluates with them itself."""
    twin: torch.nn.Module | str | None = None
    """Copy of the model without memory, made before the engine started, or the reason why there is none; on rank 0."""
    ledger: TrainingLedger | None = None
    """Watches the training; in the gate that of one rank's micro-batches only."""


def start_session(
    trial: Trial, job: Job, disturbance: int = 0, prepare: Callable[[TrainingParts], None] | None = None,
    watched: bool = False,
) -> Started:
    """Build workload and engine from the trial's seed streams.

    Args:
        disturbance: number of a seeded disturbance of the initial weights; 0: none. Only the parity gate uses it, to
            measure how much rounding matters.
        prepare: changes the workload before the engine starts; only in the parity gate.
        watched: a ledger watches the training.
    """
    engine, streams = trial.training.engine.get(Engine), Streams(trial.master_seed, trial.repeat)
    parts = build_parts(trial, job, disturbance, prepare)
    functions = replace(parts) if parts is not None else None
    twin = meta_twin(parts.model) if parts is not None and job.rank == 0 else None
    ledger = TrainingLedger(parts, job, streams) if parts is not None and watched else None
    session = engine.start(parts, job, streams)
    if ledger is not None:
        ledger.watch(session)
    return Started(session, parts, functions, twin, ledger)


def meta_twin(model: torch.nn.Module) -> torch.nn.Module | str:
    """Return a copy of the model on the meta device, before an engine changes it; or why there is none."""
    import torch

    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {
        id(item): torch.nn.Parameter(torch.empty_like(item, device="meta"), item.requires_grad)
        if isinstance(item, torch.nn.Parameter) else torch.empty_like(item, device="meta") for item in tensors}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # a model may hold anything; a figure for readers must not end a trial
        return f"the model cannot be copied: {one_line(str(error))}"


def build_parts(
    trial: Trial, job: Job, disturbance: int, prepare: Callable[[TrainingParts], None] | None
) -> TrainingParts | None:
    """Build the workload from the trial's seed streams; None for an engine that needs none."""
    engine, workload = trial.training.engine.get(Engine), trial.training.workload.get(Workload)
    streams = Streams(trial.master_seed, trial.repeat)
    seed_libraries(streams, trial.training.determinism, engine.needs_parts, job.device, job.rank)
    if not engine.needs_parts:
        return None
    devices.use(job.device)
    parts = workload.build(streams, job.device)
    if disturbance:
        disturb(parts, streams, disturbance)
    if prepare is not None:
        prepare(parts)
    return parts


def warm_up(session: Session, parts: TrainingParts, job: Job, choices: TrainingConfig) -> Compilation | None:
    """Warm the session up on one step's synthetic micro-batches, and on one evaluation batch of every size.

    What a first call of a shape costs (compilation, kernels that are loaded, plans that are made) falls into neither
    the first timed step nor the first timed evaluation. If a warm cache had to be filled, the session is warmed up
    again, from the cache.

    Returns:
        What was compiled, by rank; None for a trial that compiles nothing.
    """
    start = time.perf_counter()
    _warm_up_once(session, parts, job, choices)
    if not choices.compile:
        return None
    filling = 0.0
    if session.forget_compiled():
        filling = time.perf_counter() - start
        _warm_up_once(session, parts, job, choices)
    return Compilation(filling_seconds=filling, ranks=session.gather(session.compilation()))


def _warm_up_once(session: Session, parts: TrainingParts, job: Job, choices: TrainingConfig) -> None:
    session.warm_up([parts.synthetic_batch(job.micro_batch) for _ in range(job.accumulation)])
    if choices.stop.has_target:
        samples = len(range(job.rank, choices.workload.get(Workload).eval_samples, job.world))
        whole, rest = divmod(samples, job.eval_batch)
        sizes = [job.eval_batch] * (whole > 0) + [rest] * (rest > 0)
        score = parts.scores[choices.stop.metric]
        if isinstance(score, WholeSet):
            score.counts = False
        # CUDA graphs are recorded at the second call of a shape.
        for _ in range(2 if choices.compile and choices.compile.records_graphs else 1):
            session.evaluate([parts.synthetic_batch(size) for size in sizes], choices.stop.metric)
        if isinstance(score, WholeSet):
            score.counts = True
    session.synchronize()


def disturb(parts: TrainingParts, streams: Streams, number: int) -> None:
    """Multiply every initial weight by 1 + `DISTURBANCE` z, z standard normal from the stream `disturbance`."""
    import torch

    generator = streams.generator("disturbance", number)
    with torch.no_grad():
        for parameter in parts.model.parameters():
            noise = generator.standard_normal(tuple(parameter.shape)).astype(np.float32)
            parameter.mul_(1 + DISTURBANCE * torch.from_numpy(noise).to(parameter.device))


def seed_libraries(
    streams: Streams, determinism: str, with_torch: bool, device: str = "cpu", rank: int = 0
) -> None:
    """Seed the global generators (dropout and the like) and set the declared level of determinism."""
    random.seed(streams.seed("python"))
    np.random.seed(streams.seed("numpy") % (1 << 32))  # libraries draw from the global generator
    if not with_torch:
        return
    import torch

    if not devices.on_gpu(device):
        torch.set_num_threads(rank_threads(os.environ))
    if determinism == "free":
        torch.seed()  # torch starts every process from one seed, and ranks would draw the same masks
    else:
        torch.manual_seed(streams.seed("torch", rank))  # dropout masks differ by rank
    bitwise = determinism == "bitwise"
    if torch.are_deterministic_algorithms_enabled() != bitwise:  # by an earlier trial in this process, too
        torch.use_deterministic_algorithms(bitwise)
    if bitwise:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Before the first product of this process. Otherwise MKL's results depend on where a tensor lies in memory, and
        # gradients lie elsewhere in DDP's buckets after a warm-up (observed with AVX-512).
        os.environ.setdefault("MKL_CBWR", "AUTO")
        # Otherwise torch fills all fresh memory with NaN, in every step also DeepSpeed's bucket of 2 GB: measured 17
        # times the step time. The filling changes results only if a program reads memory that it has not written, and
        # then the hashes differ.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class TrialContext:
    """One rank of one trial: its configuration, its session, its data, its log and its clock."""

    trial: Trial
    job: Job
    started: Started
    log: EventLog
    clock: RankClock
    bar: Bar | None = None
    """Of a tuning trial that may be abandoned as hopeless."""

    @property
    def session(self) -> Session:
        return self.started.session

    @property
    def parts(self) -> TrainingParts | None:
        """None for an engine that needs no model (the fake)."""
        return self.started.parts

    @property
    def choices(self) -> TrainingConfig:
        return self.trial.training

    @property
    def workload(self) -> Workload:
        return self.choices.workload.get(Workload)

    @property
    def budget_steps(self) -> int:
        """Steps that the declared budget allows."""
        return self.choices.budget_steps

    def count_samples(self, step: int) -> int:
        """Samples of all ranks together after `step` optimizer steps."""
        return step * self.choices.batch.global_

    def begin_check(self, what: str) -> None:
        """Write that a check begins, off the clock: the log of a trial with `stall_seconds` must grow."""
        self.log.write(Checking(value=what))
        self.log.flush()


def block_steps(choices: TrainingConfig, step: int) -> int:
    """Return the steps of the block that begins after `step` steps.

    With a target they are those up to the next evaluation, CEIL(`evaluate_every` / global batch); without one, all
    warm-up steps, then all timed steps.
    """
    rest = choices.budget_steps - step
    if choices.evaluate_every is not None:
        return min(math.ceil(choices.evaluate_every / choices.batch.global_), rest)
    return choices.stop.warmup if step < choices.stop.warmup else rest
