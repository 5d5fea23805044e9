"""One rank of one trial: build, train, emit events. Knows neither suites nor MLflow nor reports."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.core.events import EventLog
from repro.core.random_streams import Streams
from repro.core.torch_build import torch_build
from repro.record.checkpoint import Resumption, Saving, from_payload
from repro.record.environment import settings
from repro.seams.training import Comm, Engine, Job, Optimizer, Precision, Session, TrainingParts, Workload
from repro.suite.model import Trial
from repro.suite.training import TrainingConfig
from repro.worker.data_order import SampleOrder
from repro.worker.loop import Loop, weights_sha256


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry point of every rank: train the trial in `payload`; rank 0 writes the log."""
    rank, world, local_rank = (int(os.environ.get(name, default)) for name, default in
                               (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))
    trial = Trial.model_validate(payload["trial"])
    place = Place(rank, trial.choices.processes if payload.get("simulated") else world, local_rank)
    loop = build(trial, place, Path(folder) / payload["log"], payload)
    try:
        loop.run()
    finally:
        loop.close()


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the ranks this is."""

    rank: int
    world: int
    local_rank: int


def make_job(choices: TrainingConfig, place: Place) -> Job:
    """What this rank has to do, in an engine's words."""
    assert choices.micro_batch * choices.batch.accumulation * place.world == choices.batch.global_, "global batch"
    return Job(
        rank=place.rank, world=place.world, device=_device(choices, place), micro_batch=choices.micro_batch,
        accumulation=choices.batch.accumulation, gradient_clip=choices.gradient_clip,
        precision=choices.precision.get(Precision), optimizer=choices.optimizer.get(Optimizer),
        comm=choices.comm.get(Comm), timeout_seconds=choices.timeout_seconds,
        compression=choices.compression, compression_rank=choices.compression_rank, overlap=choices.overlap,
    )


def _device(choices: TrainingConfig, place: Place) -> str:
    return f"cuda:{place.local_rank}" if choices.device == "cuda" else "cpu"


def start_session(trial: Trial, job: Job, disturbance: float = 0.0) -> tuple[Session, TrainingParts | None]:
    """Build workload and engine from the trial's seed streams.

    Args:
        disturbance: relative size of a seeded disturbance of the initial weights; only the parity gate's test of how
            much rounding matters asks for one.
    """
    engine, workload = trial.choices.engine.get(Engine), trial.choices.workload.get(Workload)
    streams = Streams(trial.master_seed, trial.repeat)
    seed_libraries(streams, trial.choices.determinism, with_torch=engine.needs_parts, rank=job.rank)
    parts = workload.build(streams, job.device) if engine.needs_parts else None
    if parts is not None and disturbance:
        disturb(parts, streams, disturbance)
    return engine.start(parts, job, streams), parts


def disturb(parts: TrainingParts, streams: Streams, size: float) -> None:
    """Multiply every initial weight by 1 + `size` z, z standard normal from the stream `disturbance`."""
    import torch

    generator = streams.generator("disturbance")
    with torch.no_grad():
        for parameter in parts.model.parameters():
            noise = generator.standard_normal(tuple(parameter.shape)).astype(np.float32)
            parameter.mul_(1 + size * torch.from_numpy(noise).to(parameter.device))


def seed_libraries(streams: Streams, determinism: str, with_torch: bool, rank: int = 0) -> None:
    """Give the global generators (dropout and the like) their stream; set the declared level of determinism."""
    random.seed(streams.seed("python"))
    np.random.seed(streams.seed("numpy") % (1 << 32))  # libraries draw from the global generator
    if not with_torch:
        return
    import torch

    if not torch.cuda.is_available():
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if determinism != "free":
        torch.manual_seed(streams.seed("torch", rank))  # dropout masks differ by rank
    if determinism == "bitwise":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Else torch writes NaN over all fresh memory, DeepSpeed's bucket of 2 GB in every step: seen 17 x the time.
        # It changes no result of a program that reads only what it wrote; one that does not shows in the hashes.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def build(trial: Trial, place: Place, log_path: Path, payload: Mapping[str, Any]) -> Loop:
    """Everything before `run_start`: its own interval in the log.

    A trial that goes on from a checkpoint has that interval, with all up to the checkpoint, from its earlier attempt.
    """
    job = make_job(trial.choices, place)
    streams = Streams(trial.master_seed, trial.repeat)
    engine = trial.choices.engine.get(Engine)
    virtual = engine.clock(job, streams)
    saving, resumed = from_payload(payload, log_path.parent, trial.trial_id, place.rank, place.world)
    if place.rank and not engine.needs_parts:
        saving = None  # rank 0 speaks for all: nobody waits for the others, so they could not write in step with it
    if resumed is not None:
        return _build_again(trial, job, virtual, log_path, saving, resumed)
    log = _open_log(log_path, place.rank, virtual)
    with _closed_if_it_fails(log):
        log.emit("cache_clear", True)
        log.emit("x_launch_ns", virtual() if virtual else payload["launched_ns"])
        log.start("init_start")
        _describe(log, trial, engine)
        session, parts = start_session(trial, job)
        with _closed_if_it_fails(session):
            train_samples = trial.choices.workload.get(Workload).train_samples
            order = SampleOrder(streams, train_samples, trial.choices.batch.global_)
            log.emit("x_hashes", {"init_weights": weights_sha256(session.weights())})
            log.emit("x_settings", settings(os.environ))
            if engine.needs_parts:
                log.emit("x_build", torch_build())
            if parts is not None and trial.choices.warmup_steps:
                session.warm_up([parts.synthetic_batch(job.micro_batch) for _ in range(job.accumulation)])
            log.stop("init_stop")
            log.flush()
            return Loop(trial, job, session, parts, order, log, virtual, saving)


def _build_again(
    trial: Trial, job: Job, virtual: Callable[[], int] | None, log_path: Path, saving: Saving | None,
    resumed: Resumption,
) -> Loop:
    """The same for an attempt that goes on: built as new, and filled by the loop."""
    now = virtual or _shifted(resumed.shift_ns)
    log = _open_log(log_path, job.rank, virtual, now, resumed.log() if job.rank == 0 else b"")
    with _closed_if_it_fails(log):
        log.flush()
        session, parts = start_session(trial, job)
        with _closed_if_it_fails(session):
            if parts is not None:
                # Also where the trial itself asks for none: DDP lays out its buckets anew and optimizers make their
                # state in the first steps, which the attempt that is gone had behind it.
                session.warm_up([parts.synthetic_batch(job.micro_batch) for _ in range(job.accumulation)])
            samples = trial.choices.workload.get(Workload).train_samples
            order = SampleOrder(Streams(trial.master_seed, trial.repeat), samples, trial.choices.batch.global_)
            return Loop(trial, job, session, parts, order, log, virtual, saving, resumed, now)


@contextmanager
def _closed_if_it_fails(opened: EventLog | Session) -> Iterator[None]:
    """Until there is a loop that closes it; with launcher inline the next trial runs in this process.

    What a session that is not closed leaves behind, its process group above all, that trial could not begin with.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first failure is the one to tell
            opened.close()
        raise


def _shifted(by_ns: int) -> Callable[[], int]:
    return (lambda: time.monotonic_ns() + by_ns) if by_ns else time.monotonic_ns


def _open_log(
    path: Path, rank: int, virtual: Callable[[], int] | None, now: Callable[[], int] = time.monotonic_ns,
    before: bytes = b"",
) -> EventLog:
    target = path if rank == 0 else None
    if virtual is None:
        return EventLog(target, rank, now, before=before)
    # 2020-01-01: exact figures stay exact
    return EventLog(target, rank, virtual, anchor_ms=1_577_836_800_000.0, before=before)


def _describe(log: EventLog, trial: Trial, engine: Engine) -> None:
    """What was asked for, in MLPerf's own keys and ours."""
    choices = trial.choices
    optimizer = choices.optimizer.plugin.model_dump(mode="json")
    workload = choices.workload.get(Workload)
    log.emit("submission_benchmark", choices.workload.kind)
    log.emit("submission_division", "open")
    log.emit("submission_org", "repro-harness")
    log.emit("submission_platform", choices.device)
    log.emit("submission_status", "research")
    log.emit("seed", trial.repeat, master_seed=trial.master_seed)
    log.emit("global_batch_size", choices.batch.global_)
    log.emit("gradient_accumulation_steps", choices.batch.accumulation)
    log.emit("train_samples", workload.train_samples)
    log.emit("eval_samples", workload.eval_samples)
    log.emit("opt_name", choices.optimizer.kind)
    log.emit("opt_base_learning_rate", choices.rate)
    log.emit("opt_learning_rate_warmup_epochs", choices.schedule.warmup_epochs)
    for ours, theirs in (("weight_decay", "opt_weight_decay"), ("momentum", "opt_momentum")):
        if ours in optimizer:
            log.emit(theirs, optimizer[ours])
    log.emit("x_trial", trial.model_dump(mode="json", by_alias=True))
    log.emit("x_engine", choices.engine.kind, library=engine.library())
    log.emit("x_target", choices.stop.target, metric=choices.stop.metric, direction=choices.stop.direction)
