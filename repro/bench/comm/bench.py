"""Communication algorithms against each other and the backend's all-reduce: sizes x world sizes, on loopback or a
fabric.

One launch per world size. Its ranks keep one process group per algorithm and run repetitions of all algorithms in turn,
so that other work on the machine affects all alike; ratios are paired by repetition.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repro.bench.comm import mpi as comm_mpi
from repro.bench.comm.comm_options import CommOptions, size_text
from repro.bench.comm.follow import Following
from repro.bench.comm.result import CommOutcome, MpiResult, WorldResult
from repro.bench.comm.world import world_result
from repro.core.errors import TrialError, UsageError
from repro.core.machine import detect
from repro.seams.launching import Launcher, LaunchRequest
from repro.seams.plugin import Setting
from repro.seams.training import Comm
from repro.suite.choice import Choice

ENTRY = "repro.bench.comm.rank:measure_rank"
PRELOAD = ("torch", "torch.distributed", "repro.comm.runtime.group", "repro.bench.comm.rank")
FOUND = "comm.jsonl"
LONGEST_SECONDS = 6 * 3600.0
Show = Callable[[str], None]


def measure(options: CommOptions, show: Show) -> CommOutcome:
    """Run the benchmark; `show` receives each finding as text while it runs.

    Raises:
        UsageError: the launcher cannot start a world size.
        TrialError: a rank failed, or a sum was wrong.
    """
    launcher = options.launcher.get(Launcher)
    cores, before = detect().cores, os.getloadavg()[0]
    for world in options.worlds:
        if reason := launcher.unsupported(_setting(options, options.algorithms[0], world)):
            raise UsageError(f"{world} ranks: {reason}")
    launcher.open([*PRELOAD, *launcher.preload], "cpu")
    worlds: list[WorldResult] = []
    mpi: list[MpiResult] = []
    try:
        for world in options.worlds:
            launcher.prepare(world)
            worlds.append(_world(launcher, options, world, show))
            if options.mpi:
                mpi.append(comm_mpi.measure(launcher, world, options.sizes, options.repetitions, options.seconds, show))
    finally:
        launcher.close()
    return CommOutcome(
        origin=launcher.origin, place=launcher.title, cores=cores, load=(before, os.getloadavg()[0]),
        launcher=options.launcher.model_dump(mode="json"), repetitions=options.repetitions, seconds=options.seconds,
        seed=options.seed, worlds=tuple(worlds), mpi=tuple(mpi),
    )


def _setting(options: CommOptions, comm: Choice, world: int) -> Setting:
    return Setting(
        workload="", engine="", comm=comm.kind, own_algorithm=comm.get(Comm).own_algorithm,
        precision="fp32", optimizer="", launcher=options.launcher.kind, processes=world, accumulation=1,
        device="cpu", device_count=0,
    )


def _world(launcher: Launcher, options: CommOptions, world: int, show: Show) -> WorldResult:
    reasons = {
        item.label: item.plugin.unsupported(_setting(options, item, world)) for item in options.algorithms
    }
    chosen = [item for item in options.algorithms if not reasons[item.label]]
    payload = {
        "contenders": [_contender(item) for item in chosen], "sizes": options.sizes, "seed": options.seed,
        "repetitions": options.repetitions, "seconds": options.seconds, "timeout": 300.0,
    }
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as scratch:
        found = Path(scratch, FOUND)
        with Following(found, lambda line: show(_describe(world, line))):
            outcome = launcher.launch(LaunchRequest(
                entry=ENTRY, payload=payload, processes=world, device="cpu", folder=Path(scratch),
                timeout_seconds=LONGEST_SECONDS,
            ))
        if not outcome.ok:
            raise TrialError(f"{world} ranks: {outcome.failure_text()}")
        lines = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    skipped = [{"algorithm": name, "size": None, "reason": reason} for name, reason in reasons.items() if reason]
    return world_result(world, lines, skipped, outcome.network)


def _contender(item: Choice) -> dict[str, Any]:
    cls = type(item.plugin)
    return {"label": item.label, "target": f"{cls.__module__}:{cls.__qualname__}",
            "options": item.plugin.model_dump(mode="json")}


def _describe(world: int, line: Mapping[str, Any]) -> str:
    if line["kind"] == "effective":
        return f"{world} ranks, {line['algorithm']}: {line['text']}"
    if line["kind"] == "links":
        model = line["model"]
        rate = f"{8e-6 / model['beta']:.4g} Mbit/s" if model["beta"] else "no limit"
        return f"{world} ranks: links measured: {1e6 * model['alpha']:.3g} us a round, {rate}"
    size = size_text(line["size"])
    if line["kind"] == "skipped":
        return f"{world} ranks, {size}, {line['algorithm']}: skipped: {line['reason']}"
    best = sorted(line["seconds"])[len(line["seconds"]) // 2]
    return f"{world} ranks, {size}, {line['algorithm']}: {1e3 * best:.4g} ms ({len(line['seconds'])} repetitions)"
