"""Communication algorithms against each other and the backend's all-reduce: sizes x world sizes, on loopback or a
fabric.

One launch per world size. Its ranks keep one process group per algorithm and run repetitions of all algorithms in turn,
so that other work on the machine affects all alike; ratios are paired by repetition.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repro.bench.comm import mpi as comm_mpi
from repro.bench.comm.comm_options import CommOptions, size_text
from repro.bench.comm.result import CommOutcome, MpiResult, WorldResult, world_result
from repro.core.errors import OutputError, TrialError, UsageError
from repro.core.machine import detect
from repro.seams.launching import Launcher, LaunchRequest, entry_point
from repro.seams.plugin import Setting
from repro.seams.training import Comm
from repro.suite.choice import Choice

PRELOAD = ("torch", "torch.distributed", "repro.comm.runtime.group", "repro.bench.comm.rank")
LONGEST_SECONDS = 6 * 3600.0
Show = Callable[[str], None]


class Following:
    """Passes every JSON line appended to a file to `tell` while the block runs."""

    def __init__(self, path: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        self._path, self._tell, self._read = path, tell, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="repro-bench-follow", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _follow(self) -> None:
        while not self._done.wait(0.5):
            self._look()

    def _look(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                self._tell(json.loads(line))


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
    from repro.bench.comm import rank as comm_rank  # imports torch

    reasons = {item.label: item.plugin.unsupported(_setting(options, item, world)) for item in options.algorithms}
    chosen = [item for item in options.algorithms if not reasons[item.label]]
    payload = {
        "contenders": [_contender(item) for item in chosen], "sizes": options.sizes, "seed": options.seed,
        "repetitions": options.repetitions, "seconds": options.seconds, "timeout": 300.0,
    }
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as scratch:
        found = Path(scratch, comm_rank.FOUND)
        with Following(found, lambda line: show(_describe(world, line))):
            outcome = launcher.launch(LaunchRequest(
                entry=entry_point(comm_rank.measure_rank), payload=payload, processes=world, device="cpu",
                folder=Path(scratch), timeout_seconds=LONGEST_SECONDS,
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


def measure_and_write(options: CommOptions, html: Path | None, mlflow: bool) -> CommOutcome:
    """Measure, write the requested outputs, and print their places on stderr.

    Raises:
        OutputError: the page cannot be written; checked before anything is measured.
        TrackingError: the tracking store rejected the runs.
    """
    if html:
        try:
            html.open("a", encoding="utf-8").close()
        except OSError as error:
            raise OutputError(f"{html}: {error.strerror or error}") from error
    outcome = measure(options, _show)
    if html:
        # Reporters are plug-ins, so they are imported by name.
        page = importlib.import_module("repro.reporters.page.comm_bench").render(outcome)
        html.write_text(page, encoding="utf-8")
        _show(f"page: {html}")
    if mlflow:
        for place in importlib.import_module("repro.reporters.tracking.comm_bench").track(outcome):
            _show(f"mlflow: {place}")
    return outcome


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
