"""Run folders made by formula instead of by training: exact figures for tests of what reads a record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core.events import EventLog
from repro.core.files import write_json, write_model, write_text
from repro.core.machine import Machine
from repro.record.derive.derive import derive
from repro.record.environment.environment import DataSet, Environment
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.log import schema
from repro.record.log.reading import read_log
from repro.record.result.parts import Formula
from repro.seams.launching import LaunchResult, RankEnd
from repro.seams.training import Workload
from repro.suite.file import read_suite
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan, make_plan

SUITE = """\
suite: sample
title: A sample for tests
seeds: 6
trial:
  workload: digits
  engine: ddp
  processes: 1
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1, momentum: 0.9}
  stop: {metric: top1, target: 0.9, max_epochs: 8}
  evaluate_every: 1437
  device: cpu
matrix:
  engine: [ddp, {kind: deepspeed, stage: 1}]
  processes: [1, 2]
baseline: {engine: ddp}
primary:
  candidate: {engine: deepspeed, processes: 2}
  baseline: {engine: ddp, processes: 2}
"""


@dataclass(frozen=True)
class Course:
    """The course of one made-up trial."""

    step_seconds: float = 0.01
    hits_at: int | None = 4
    """Evaluation (from 1) that reaches the target; None: never."""
    evals: int = 8
    crash: bool = False
    drawn: str = ""
    """Marks the hashes of what the seed drew: trials of two master seeds have two marks."""
    traffic: Moved | None = None
    """None: nothing counts, as with the backend's own collectives."""
    network_rate: float | None = None
    """Bits per second of every link; None: a launcher without an emulated network."""
    ranks_per_node: int = 1
    """Of that network."""


@dataclass(frozen=True)
class Moved:
    """The communication of one step of a trial."""

    sent: int
    formula: int
    exposed_seconds: float
    overlapped_seconds: float = 0.0
    rounds: int = 2
    path_bytes: int = 1000
    left: int = 0
    """Payload of an operation that the backend does, uncounted."""


SCALING = """\
suite: scaling
title: Two algorithms on one to four processes, two batches
seeds: 6
trial:
  workload: digits-mlp
  engine: ddp
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1, momentum: 0.9}
  stop: {metric: top1, target: 0.9, max_epochs: 8}
  evaluate_every: 1437
  device: cpu
matrix:
  comm: [{kind: tree, shape: binomial, chunk_kib: null}, ring]
  processes: [1, 2, 4]
  batch.global: [64, 256]
baseline: {processes: 1}
"""
WEIGHTS = 1 << 20
"""Bytes of the made-up gradient."""


def scaling_course(trial: Trial) -> Course:
    """10 ms of computing; a tree's 2 log2(p) and a ring's 2(p-1)/p times the weights over 100 Mbit/s, all exposed."""
    processes = trial.choices.processes
    share = 2 * math.log2(processes) if trial.choices.comm.kind == "tree" else 2 * (processes - 1) / processes
    path = round(share * WEIGHTS)
    # A binomial tree's root sends once to each of log2(p) children.
    sent = path // 2 if trial.choices.comm.kind == "tree" else path
    seconds = path * 8 / 1e8
    moved = Moved(sent, sent, seconds, 0.001, 2 * (processes - 1), path) if processes > 1 else None
    return Course(0.01 + seconds, hits_at=4, traffic=moved, network_rate=1e8)


def default_course(trial: Trial) -> Course:
    """DeepSpeed 20 % slower than DDP, two processes 1.6 times as fast, a little spread by seed."""
    slow = 1.2 if trial.choices.engine.kind == "deepspeed" else 1.0
    quick = 1.6 if trial.choices.processes > 1 else 1.0
    return Course(step_seconds=0.01 * slow * (1 + 0.02 * (trial.repeat % 3)) / quick)


def make_record(
    root: Path, suite_text: str = SUITE, course: Callable[[Trial], Course] = default_course, only: int | None = None,
    started_ms: int = 1_600_000_000_000,
) -> Record:
    """A complete run folder under `root`; `only`: just the first so many trials have run."""
    root.mkdir(parents=True, exist_ok=True)
    suite_path = root.parent / f"{root.name}-suite.yaml"
    suite_path.write_text(suite_text)
    return write_record(root, make_plan(read_suite(str(suite_path)).suite, Machine("cpu", 0, 2)), suite_text, course,
                        only, started_ms)


def write_record(
    root: Path, plan: Plan, suite_text: str = "", course: Callable[[Trial], Course] = default_course,
    only: int | None = None, started_ms: int = 1_600_000_000_000,
) -> Record:
    """The run folder of a plan; `only`: just the first so many trials have run."""
    folder = RunFolder.create(root)
    write_text(folder.suite, suite_text)
    write_model(folder.plan, plan)
    write_model(folder.environment, sample_environment(started_ms))
    write_json(folder.parity_verdict, {"needed": False, "why": "figures made by formula"})
    for trial in list(plan.trials())[:only]:
        _run(folder, trial, course(trial))
    return read_record(root)


def _run(folder: RunFolder, trial: Trial, course: Course) -> None:
    directory = folder.trial(trial.trial_id)
    directory.mkdir()
    write_model(folder.trial_file(trial.trial_id), trial)
    write_log(folder.log(trial.trial_id, 1), trial, course)
    (directory / "rank0.log").write_text("made up\n")
    end = RankEnd(0, 1, "RuntimeError: made to fail") if course.crash else RankEnd(0, 0)
    network = sample_network(trial.choices.processes, course.network_rate, course.ranks_per_node) \
        if course.network_rate else None
    outcome = LaunchResult((end,), 1.0, network=network)
    result = derive(trial, 1, read_log(folder.log(trial.trial_id, 1)), outcome)
    write_model(folder.result(trial.trial_id), result)
    folder.append_attempt(Attempt(
        trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=1, started_ms=1.6e12,
        seconds=max(1.0, round((result.run_seconds or 0.0) + 0.6, 3)), status=result.status, reasons=result.reasons,
    ))


def write_log(path: Path, trial: Trial, course: Course) -> None:
    """Rank 0's events, on a clock that only the formula moves."""
    clock = {"ns": 1_000_000_000}

    def wait(seconds: float) -> None:
        clock["ns"] += round(seconds * 1e9)

    log = EventLog(path, 0, lambda: clock["ns"], anchor_ms=1_600_000_000_000.0)
    stop, batch = trial.choices.stop, trial.choices.batch.global_
    steps = -(-trial.choices.evaluate_every // batch)
    log.write(schema.CacheClear(value=True))
    log.write(schema.Launched(value=clock["ns"]))
    log.write(schema.InitStart())
    log.write(schema.TrialStated(value=trial.model_dump(mode="json", by_alias=True)))
    log.write(schema.Hashes(value={"init_weights": f"w{course.drawn}{trial.repeat}",
                            "data_order": f"o{course.drawn}{trial.repeat}"}))
    wait(0.5)
    log.write(schema.InitStop())
    log.write(schema.RunStart())
    log.write(schema.Hashes(value={"data": "d"}))
    phases = {"train": 0.0, "eval": 0.0, "logging": 0.0, "other": 0.0}
    for number in range(1, course.evals + 1):
        if course.crash and number == 2:
            log.close()
            return
        log.write(schema.BlockStart(first_step=(number - 1) * steps, steps=steps))
        wait(steps * course.step_seconds)
        log.write(schema.BlockStop(samples_count=number * steps * batch))
        phases["train"] += steps * course.step_seconds
        input_seconds = course.step_seconds * 0.1
        log.write(schema.StepBlock(first=(number - 1) * steps, seconds=[course.step_seconds - input_seconds] * steps,
                                   input_seconds=[input_seconds] * steps, loss=[2.0 / number] * steps))
        hit = course.hits_at is not None and number >= course.hits_at
        part, lower = number / (course.evals + 1), stop.direction == "lower"
        missed = stop.target * (2 - part if lower else part)
        value = stop.target + (-0.01 if lower else 0.01) if hit else missed
        samples = number * steps * batch
        epochs = samples / trial.choices.workload.get(Workload).train_samples
        log.write(schema.EvalStart(epoch_num=epochs, samples_count=samples))
        wait(0.02)
        phases["eval"] += 0.02
        at = log.write(schema.EvalStop(epoch_num=epochs, samples_count=samples))
        event = schema.EvalError if lower else schema.EvalAccuracy
        log.write(event(value=value, samples_count=samples, epoch_num=epochs, phases=dict(phases), eval_stop_ns=at,
                        metric=stop.metric, train_loss=2.0 / number))
        if hit:
            break
    log.write(schema.RunStop(status="success" if course.hits_at else "aborted",
                      outcome="success" if course.hits_at else "missed", samples_count=samples,
                      reason="" if course.hits_at else f"top1 after {stop.max_epochs:g} epochs"))
    log.write(schema.Phases.model_validate(phases))
    taken = number * steps
    log.write(schema.RankSteps(slowest_seconds=[course.step_seconds] * taken,
                               fastest_seconds=[course.step_seconds * 0.9] * taken, whole_seconds=[]))
    if course.traffic:
        _log_traffic(log, trial, course.traffic, taken)
    log.write(schema.MemoryPeaks(kind="resident", init=[200_000_000] * trial.choices.processes,
                                 training=[None] * trial.choices.processes))
    log.write(schema.Hashes(value={"final_weights": "f"}))
    log.write(schema.EffectiveSettings(value={"autocast": "float32"}))
    log.close()


def _log_traffic(log: EventLog, trial: Trial, moved: Moved, steps: int) -> None:
    """Rank 0 sends what the course says, every other rank a byte a step less."""
    passing = {"operation": "barrier (gloo)", "dtype": "none", "collectives": 2, "payload_bytes": steps * moved.left,
               "sent_bytes": None, "received_bytes": None}
    ranks = []
    for rank in range(trial.choices.processes):
        sent = steps * (moved.sent - (rank > 0))
        line = {"operation": "all_reduce", "dtype": "float32", "collectives": steps,
                "payload_bytes": steps * moved.sent, "sent_bytes": sent, "received_bytes": sent}
        spent = {"exposed_seconds": steps * moved.exposed_seconds,
                 "busy_seconds": steps * (moved.exposed_seconds + moved.overlapped_seconds),
                 "overlapped_seconds": steps * moved.overlapped_seconds}
        ranks.append({"lines": [line, passing], **spent, "training": spent})
    log.write(schema.TrafficCounted(value=ranks))
    log.write(schema.FormulaTraffic(value=Formula(
        sent_bytes=steps * moved.formula, received_bytes=steps * moved.formula, rounds=steps * moved.rounds,
        path_bytes=steps * moved.path_bytes, reduced_bytes=0, assumed=("all_reduce float64",),
    )))


def sample_network(processes: int, rate: float, ranks_per_node: int = 1) -> dict[str, Any]:
    """Links of the launcher `fabric`, measured 1 % below their rate."""
    nodes = -(-processes // ranks_per_node)
    links = [{"sender": node, "receiver": (node + 1) % nodes, "stated_bits_per_second": rate,
              "measured_bits_per_second": 0.99 * rate} for node in range(nodes)] if nodes > 1 else []
    return {
        "origin": "emulated", "frame_bytes": 9000,
        "node_of_rank": [rank // ranks_per_node for rank in range(processes)],
        "stated_bits_per_second": [rate] * nodes, "sent_bytes": [1] * nodes, "received_bytes": [1] * nodes,
        "links": links,
    }


def sample_environment(started_ms: int = 1_600_000_000_000) -> Environment:
    """An invented machine."""
    return Environment(
        repro_version="0", python="CPython 3.11", system="Linux", cpu="Sample CPU", cores=2, memory_bytes=8 << 30,
        device="cpu", devices=(), interconnect="loopback of one machine", libraries={"torch": "2.13.0"},
        packages=("torch==2.13.0",), settings={"OMP_NUM_THREADS": "1"}, commit=None, dirty=None, load_1min=0.1,
        started_ms=started_ms,
        data=(DataSet(workload="digits", name="sample digits", version="1", sha256="0" * 64, train_samples=1437,
                      eval_samples=360, licence="CC BY 4.0", source="made up", synthetic=False),),
    )
