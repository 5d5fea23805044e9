"""One rank of one trial: build, train, emit events. Independent of suites, MLflow and reports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repro.core.errors import TrialError
from repro.core.events import EventLog
from repro.core.machine import torch_build
from repro.core.random_streams import Streams
from repro.record.environment.environment import settings
from repro.record.log import schema
from repro.record.log.schema import Bar
from repro.seams.training import Engine, Job, RankLoop, Session, Workload
from repro.suite.model import Trial
from repro.worker.checkpoints import from_payload
from repro.worker.clock import make_clock
from repro.worker.loop import Loop
from repro.worker.memory import naming_out_of_memory
from repro.worker.serve import serve
from repro.worker.setup import RankPlace, Started, TrialContext, make_job, read_trial, start_session, warm_up
from repro.worker.weights import weights_sha256

VIRTUAL_ANCHOR_MS = 1_577_836_800_000.0
"""2020-01-01, the wall clock of a log on an engine's own clock: exact figures stay exact."""


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Train the trial in `payload`: the entry point of every rank; rank 0 writes the log."""
    trial, place = read_trial(payload)
    with naming_out_of_memory(trial.training):
        if place.rank >= place.world:
            serve(trial, place)
            return
        loop = build(trial, place, Path(folder) / payload["log"], payload)
        try:
            loop.run()
        except BaseException:
            # This process ends now. A session that closes first cuts the connections of the other ranks, which would
            # report that before this rank has said why it failed.
            (loop.log if place.world > 1 else loop).close()
            raise
        loop.close()


def build(trial: Trial, place: RankPlace, log_path: Path, payload: Mapping[str, Any]) -> RankLoop:
    """Return the loop of one rank, ready to run; all of this happens before `run_start`."""
    job = make_job(trial.training, place, payload.get("cache"))
    engine = trial.training.engine.get(Engine)
    virtual = engine.clock(job, Streams(trial.master_seed, trial.repeat))
    if virtual is not None and engine.needs_parts:
        raise TrialError(f"engine {trial.training.engine.kind} replaces the machine's clock although it trains a "
                         "model: its times would not be measured; only an engine without a model may have its own")
    writer, resumed = from_payload(payload, log_path.parent, trial.trial_id, place.rank, place.world)
    if place.rank and not engine.needs_parts:
        writer = None  # rank 0 writes for all: no barrier keeps the other ranks in step with it
    bar = Bar.model_validate(payload["bar"]) if payload.get("bar") else None
    shift_ns = resumed.shift_ns if resumed else 0
    now = (lambda: time.monotonic_ns() + shift_ns) if shift_ns else time.monotonic_ns
    # The log up to a checkpoint, initialisation included, is copied from the earlier attempt.
    before = resumed.log() if resumed and place.rank == 0 else b""
    log = EventLog(log_path if place.rank == 0 else None, place.rank, virtual or now,
                   anchor_ms=VIRTUAL_ANCHOR_MS if virtual else None, before=before)
    with _close_on_failure(log):
        if resumed is None:
            log.write(schema.CacheClear(value=True))
            log.write(schema.Launched(value=virtual() if virtual else payload["launched_ns"]))
            log.write(schema.InitStart())
            _describe(log, trial, engine)
        else:
            log.flush()
        started = start_session(trial, job, watched=True)
        with _close_on_failure(started.session):
            if resumed is None:
                _initialise(trial, job, started, log, bar)
            elif started.parts is not None:
                # Even if the trial has no warm-up: in the first steps DDP rearranges its buckets and optimizers create
                # their state, which the earlier attempt had done by its checkpoint.
                warm_up(started.session, started.parts, job, trial.training)
            context = TrialContext(trial, job, started, log, make_clock(job.device, virtual, now), bar)
            if resumed is None:
                return engine.rank_loop(context) or Loop(context, writer)
            _state_bar(log, bar)
            return Loop(context, writer, resumed)


def _initialise(trial: Trial, job: Job, started: Started, log: EventLog, bar: Bar | None) -> None:
    """Warm up a trial that starts from its initial weights; initialisation is an interval of its log."""
    session = started.session
    log.write(schema.Hashes(value={"init_weights": weights_sha256(session.weights())}))
    log.write(schema.Settings(value=settings(os.environ)))
    _state_bar(log, bar)
    if planned := session.gradient_plan():
        log.write(schema.GradientPlan(value=planned))
    if trial.training.engine.get(Engine).needs_parts:
        log.write(schema.Build(value=torch_build()))
    if started.parts is not None and trial.training.warmup_steps:
        compiled = warm_up(session, started.parts, job, trial.training)
        if compiled is not None:
            log.write(compiled)
    log.write(schema.InitStop())
    log.flush()


@contextmanager
def _close_on_failure(opened: EventLog | Session) -> Iterator[None]:
    """Close `opened` if the block fails; afterwards the loop closes it.

    With launcher inline the next trial runs in this process, and it could not start while this one's process group
    exists.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first failure is the one to report
            opened.close()
        raise


def _state_bar(log: EventLog, bar: Bar | None) -> None:
    """Log the bar of a tuning trial that may be abandoned."""
    if bar is not None:
        log.write(schema.HopelessBar(value=bar))


def _describe(log: EventLog, trial: Trial, engine: Engine) -> None:
    """Log the requested configuration, in MLPerf's keys and ours."""
    choices = trial.training
    optimizer = choices.optimizer.plugin.model_dump(mode="json")
    workload, stop = choices.workload.get(Workload), choices.stop
    log.write(schema.SubmissionBenchmark(value=choices.workload.kind))
    for key, text in {
        "submission_division": "open", "submission_org": "repro-harness", "submission_platform": choices.device,
        "submission_status": "research",
    }.items():
        log.write(schema.requested(key, text))
    log.write(schema.Seed(value=trial.repeat, master_seed=trial.master_seed))
    declared: dict[str, Any] = {
        "global_batch_size": choices.batch.global_, "gradient_accumulation_steps": choices.batch.accumulation,
        "train_samples": workload.train_samples, "eval_samples": workload.eval_samples,
        "opt_name": choices.optimizer.kind, "opt_base_learning_rate": choices.rate,
        "opt_learning_rate_warmup_epochs": choices.schedule.warmup_epochs,
    } | {f"opt_{name}": optimizer[name] for name in ("weight_decay", "momentum") if name in optimizer}
    for key, value in declared.items():
        log.write(schema.requested(key, value))
    log.write(schema.TrialStated(value=trial.model_dump(mode="json", by_alias=True)))
    log.write(schema.EngineStated(value=choices.engine.kind, library=engine.library()))
    if stop.has_target:
        log.write(schema.Target(value=stop.target, metric=stop.metric, direction=stop.direction))
