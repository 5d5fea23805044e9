"""A parameter server in shards: synchronous, asynchronous, in synchronous groups, or with bounded staleness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from repro.core.random_streams import Streams
from repro.engines.torch_engines import started_group
from repro.papers.server.rules import Rules
from repro.seams.plugin import Setting
from repro.seams.training import Engine, Job, Optimizer, RankLoop, ServerWork, Session, TrainingParts


class AsyncServer(Engine):
    """Workers push gradients to the shards that hold the weights, and pull the weights (docs/async.md).

    async: Downpour SGD (Dean et al., 2012). ssp: stale synchronous parallel (Ho et al., 2013). `divide_by_staleness`:
    staleness-aware rates (Zhang, Gupta, Lian and Liu, 2016).
    """

    title: ClassVar[str] = "Parameter server"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "repro.papers.server.session")
    always_shown: ClassVar[tuple[str, ...]] = ("mode",)

    mode: Literal["sync", "async", "mixed", "ssp"] = Field(
        "async", description="which workers wait: sync: all, for every update; async: none; mixed: those of one group, "
                             "for each other; ssp: those too many clocks ahead, for the slowest")
    group: int | None = Field(None, ge=1, description="workers of one synchronous group; mode mixed only")
    staleness: int | None = Field(None, ge=0, description="clocks that a worker may be ahead of the slowest; mode ssp "
                                                          "only; 0: gradients are averaged before they are applied")
    shards: int = Field(1, ge=1, description="parts of the weights")
    servers: Literal["beside", "own"] = Field(
        "beside", description="where shards are: beside: each in the process of one of the first workers; own: each in "
                              "a process of its own, which trains nothing and on an emulated cluster has a node")
    divide_by_staleness: bool = Field(False, description="divide the learning rate of an update by its version lag")

    @model_validator(mode="after")
    def _consistent(self) -> AsyncServer:
        for name, mode in (("group", "mixed"), ("staleness", "ssp")):
            given = getattr(self, name) is not None
            if given != (self.mode == mode):
                raise ValueError(f"{name} {'belongs to' if given else 'is missing for'} mode {mode}"
                                 f"{f', not {self.mode}: leave it out' if given else ''}")
        return self

    def rules(self, processes: int) -> Rules:
        """Return the rules on that many workers."""
        together = self.mode == "sync" or (self.mode == "ssp" and self.staleness == 0)
        group = processes if together else self.group or 1
        return Rules(self.mode, processes, group, self.staleness or 0)

    def lockstep(self, processes: int) -> bool:
        return self.rules(processes).lockstep

    def rank_loop(self, context: Any) -> RankLoop | None:
        if self.lockstep(context.job.world):
            return None
        from repro.papers.server.async_loop import AsyncLoop

        return AsyncLoop(context)

    def expendable(self, processes: int) -> tuple[int, ...]:
        """Single asynchronous workers whose process holds no shard; rank 0 also evaluates and logs."""
        alone = self.mode == "async" and not self.lockstep(processes)
        first = 1 if self.servers == "own" else self.shards
        return tuple(range(first, processes)) if alone else ()

    def server_processes(self, processes: int) -> int:
        return self.shards if self.servers == "own" else 0

    def homes(self, processes: int) -> tuple[int, ...]:
        """Return the rank of each shard."""
        first = processes if self.servers == "own" else 0
        return tuple(range(first, first + self.shards))

    def role(self, rank: int, processes: int) -> str:
        homes = self.homes(processes)
        return f"it held server shard {homes.index(rank)}" if rank in homes else f"worker {rank}"

    def note(self, setting: Setting) -> str | None:
        if not setting.servers:
            return None
        return (f"{setting.processes} worker{'s' * (setting.processes > 1)} (ranks 0 to {setting.processes - 1}) and "
                f"{setting.servers} server{'s' * (setting.servers > 1)} (from rank {setting.processes}) run: "
                f"{setting.launched} processes; figures for each worker leave the servers out")

    def ungated(self, processes: int, optimizer: Optimizer) -> str:
        if self.lockstep(processes):
            return ""
        return (f"mode {self.mode} on {processes} processes applies gradients of older weights, so its mathematics is "
                "not that of one process")

    def unsupported(self, setting: Setting) -> str | None:
        processes = setting.processes
        if self.group is not None and (self.group > processes or processes % self.group):
            fits = ", ".join(str(size) for size in range(1, processes + 1) if processes % size == 0)
            return f"group {self.group} does not divide {processes} processes into equal groups; use one of {fits}"
        if self.servers == "beside" and self.shards > processes:
            return (f"shards {self.shards} are more than {processes} processes, each of which holds one at most; use "
                    f"at most {processes}, or servers: own")
        if setting.tensors is not None and self.shards > setting.tensors:
            return (f"shards {self.shards} are more than the {setting.tensors} tensors of workload {setting.workload}, "
                    f"which stay whole; use at most {setting.tensors}")
        if self.divide_by_staleness and self.lockstep(processes):
            return "divide_by_staleness has no effect: every update has staleness 0"
        if why := self._not_carried_out(setting):
            return why
        if setting.determinism == "bitwise" and not self.lockstep(processes):
            return (f"mode {self.mode} on {processes} processes applies updates in the order in which they arrive, so "
                    "no two runs are bitwise equal")
        return None

    def _not_carried_out(self, setting: Setting) -> str | None:
        if setting.own_algorithm:
            return f"engine async-server sends to its servers, so comm {setting.comm!r} would have no effect"
        if setting.compression != "none" or setting.overlap is not None:
            return "engine async-server carries out neither compression nor overlap"
        if setting.weights != "float32" or setting.autocast == "float16":
            return f"engine async-server holds float32 weights and scales no loss, so not precision {setting.precision}"
        if setting.averages:
            return f"optimizer {setting.optimizer} evaluates other weights than the servers hold"
        if setting.clips:
            return "engine async-server does not clip gradients: no shard sees the norm of all of them"
        if setting.reads_ahead and not self.lockstep(setting.processes):
            return "input workers and streams read in a fixed order, but work goes to the worker that is free"
        return None

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.papers.server.session import ServerSession

        assert parts is not None
        with started_group(job):
            return ServerSession(parts, job, self.rules(job.world), self.homes(job.world), self.divide_by_staleness)

    def serve(self, parts: TrainingParts, job: Job, work_of: Callable[[int], ServerWork] | None) -> None:
        from repro.papers.server.session import serve_apart

        serve_apart(parts, job, self.rules(job.world), self.homes(job.world), self.divide_by_staleness, work_of)
