"""One rank of one trial of kind measurement: prepare, warm up, time the operations, check the answers, log."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from repro.core import devices, machine
from repro.core.errors import OutOfMemory, TrialError
from repro.core.events import EventLog
from repro.core.machine import is_out_of_memory, torch_build
from repro.core.random_streams import Streams
from repro.papers.measurement.config import MeasurementConfig
from repro.record.environment.environment import settings
from repro.record.folder.stored_code import allow_code_of_trial
from repro.record.log import schema
from repro.record.result.parts import Checked, Figured
from repro.seams.measurement import Counted, FigureKind, Findings, Measurement, Measuring, Post
from repro.seams.training import Comm
from repro.suite.model import Trial
from repro.worker.setup import seed_libraries
from repro.worker.steps import TrafficLog, write_operations

ALIVE_SECONDS = 1.0
"""Time between two events that say that operations go on."""


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Measure the trial in `payload`: the entry point of every rank; rank 0 writes the log."""
    rank, world, local_rank = (int(os.environ.get(name, default)) for name, default in
                               (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))
    allow_code_of_trial(payload)
    trial = Trial.model_validate(payload["trial"])
    choices = trial.choices
    assert isinstance(choices, MeasurementConfig)
    log = EventLog(Path(folder) / payload["log"] if rank == 0 else None, rank)
    streams = Streams(trial.master_seed, trial.repeat)
    post = Post(rank, world, devices.of_rank(choices.device, local_rank), streams,
                choices.comm.get(Comm), choices.timeout_seconds)
    log.write(schema.CacheClear(value=False))
    log.write(schema.Launched(value=payload["launched_ns"]))
    try:
        _Run(trial, choices, post, log).run()
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"out of memory: {str(error).splitlines()[0]}") from error
        raise
    finally:
        log.close()
    if world > 1:  # after a failure the process ends with its group: a group that is closed first blames other ranks
        dist.destroy_process_group()


class _Run:
    """The phases of one rank."""

    def __init__(self, trial: Trial, choices: MeasurementConfig, post: Post, log: EventLog) -> None:
        self.trial, self.choices, self.post, self.log = trial, choices, post, log
        self.plugin = choices.measurement.get(Measurement)
        self.traffic, self.seconds = TrafficLog(), list[float]()
        self.init_peak = self.operations_peak = 0
        """Largest memory of this rank in two phases, bytes."""

    def run(self) -> None:
        """Run all phases; the process group stays open."""
        log = self.log
        self._describe()
        log.write(schema.InitStart())
        devices.use(self.post.device)
        seed_libraries(self.post.streams, "seeded", True, self.post.device, self.post.rank)
        if self.post.world > 1:
            self.post.comm.start(self.post.rank, self.post.world, self.post.device, self.post.timeout_seconds)
        measuring = self.plugin.start(self.post)
        try:
            for _ in range(self.choices.stop.warmup):
                measuring.prepare()
                self._start_together()
                measuring.operate()
            self._start_together()
            log.write(schema.InitStop())
            self.init_peak = machine.peak_bytes(self.post.device)
            machine.reset_peak(self.post.device)
            log.write(schema.RunStart())
            log.flush()
            self._operate(measuring)
            log.write(schema.RunStop(status="success", outcome="success", reason="", samples_count=len(self.seconds)))
            self.operations_peak = machine.peak_bytes(self.post.device)
            self._report(measuring)
        finally:
            measuring.close()

    def _describe(self) -> None:
        log = self.log
        log.write(schema.SubmissionBenchmark(value=self.choices.task))
        log.write(schema.Seed(value=self.trial.repeat, master_seed=self.trial.master_seed))
        log.write(schema.TrialStated(value=self.trial.model_dump(mode="json", by_alias=True)))
        log.write(schema.MeasurementStated(items=self.plugin.items, items_each=self.choices.items_per_operation))
        log.write(schema.Settings(value=settings(os.environ)))
        log.write(schema.Build(value=torch_build()))
        log.flush()

    # ---- operations

    def _operate(self, measuring: Measuring) -> None:
        alive = time.monotonic()
        for number in range(self.choices.stop.repeats):
            measuring.prepare()
            self._start_together()
            start = time.perf_counter()
            measuring.operate()
            devices.wait(self.post.device)
            self.seconds.append(time.perf_counter() - start)
            self.traffic.add(self.post.comm.traffic(), training=True)
            if time.monotonic() - alive > ALIVE_SECONDS:
                self.log.write(schema.Operated(value=number + 1))
                self.log.flush()
                alive = time.monotonic()

    def _start_together(self) -> None:
        """Wait for all ranks; what this sends is no traffic of an operation."""
        devices.wait(self.post.device)
        if self.post.world > 1:
            dist.barrier(device_ids=devices.gpus_of(self.post.device) or None)
            self.post.comm.traffic()

    # ---- report

    def _report(self, measuring: Measuring) -> None:
        """Check the answers, gather everything on all ranks and log it."""
        total = self.traffic.total()
        found = measuring.finish(Counted(len(self.seconds), tuple(total.get("lines", ()))))
        comm = self.post.comm
        effective = measuring.effective() | {"threads": str(torch.get_num_threads())}
        if self.post.world > 1:
            ran = comm.ran()
            effective |= {"comm": comm.effective(), **(ran.as_effective() if ran else {})}
        ranks = self._gather([self.seconds, total, self.init_peak, self.operations_peak, findings_data(found)])
        log = self.log
        write_operations(log, [rank[0] for rank in ranks])
        if any(rank[1] for rank in ranks):
            log.write(schema.TrafficCounted(value=[rank[1] or None for rank in ranks]))
        log.write(schema.MemoryPeaks(kind="allocated" if devices.on_gpu(self.post.device) else "resident",
                                     init=[rank[2] for rank in ranks], training=[rank[3] for rank in ranks]))
        log.write(combine([rank[4] for rank in ranks], self.plugin.figures))
        log.write(schema.EffectiveSettings(value=effective))
        log.flush()

    def _gather(self, value: Any) -> list[Any]:
        if self.post.world == 1:
            return [value]
        found: list[Any] = [None] * self.post.world
        dist.all_gather_object(found, value)
        return found


def findings_data(found: Findings) -> dict[str, Any]:
    """Return what one rank found, JSON-like."""
    return {"checks": [asdict(item) for item in found.checks], "figures": dict(found.figures)}


def combine(ranks: Sequence[Mapping[str, Any]], kinds: Mapping[str, FigureKind]) -> schema.MeasurementFindings:
    """Return the findings of all ranks as one, figures in the order of `kinds`.

    Raises:
        TrialError: ranks checked different things, or gave a figure that the measurement does not declare.
    """
    names = [[item["name"] for item in rank["checks"]] for rank in ranks]
    if any(other != names[0] for other in names):
        raise TrialError("the ranks of the measurement made different checks")
    given = [set(rank["figures"]) for rank in ranks]
    if any(other != given[0] for other in given) or given[0] - set(kinds):
        raise TrialError("the measurement gave figures that it does not declare, or other ones on other ranks")
    checks = [
        Checked(name=name, limit=min(rank["checks"][place]["limit"] for rank in ranks),
                error=_finite(_worst([rank["checks"][place]["error"] for rank in ranks])))
        for place, name in enumerate(names[0])]
    figures = [
        Figured(name=name, title=kind.title, unit=kind.unit, direction=kind.direction, label=kind.label,
                value=_finite(_OVER_RANKS[kind.over_ranks]([float(rank["figures"][name]) for rank in ranks])))
        for name, kind in kinds.items() if name in given[0]]
    return schema.MeasurementFindings(checks=checks, figures=figures)


def _worst(values: Sequence[float]) -> float:
    """Return the largest absolute error; NaN if any is."""
    return math.nan if any(map(math.isnan, values)) else max(map(abs, values))


_OVER_RANKS: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max, "mean": lambda values: sum(values) / len(values), "sum": sum}


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
