"""Communication algorithms against each other and the backend's all-reduce: sizes x world sizes, on loopback or a
fabric; the options on the command line.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repro.bench.comm.result import BASELINE, CommOutcome, WorldResult, tunes, world_result
from repro.bench.comm.table import size_text
from repro.core import registry
from repro.core.errors import OutputError, TrialError, UsageError
from repro.core.frozen import Frozen
from repro.core.machine import detect
from repro.seams.launching import Launcher, LaunchRequest, entry_point
from repro.seams.plugin import Setting
from repro.seams.training import Comm
from repro.suite.choice import Choice, parse_choice
from repro.suite.field_problem import FieldProblem

PRELOAD = ("torch", "torch.distributed", "repro.comm.runtime.group", "repro.bench.comm.rank")
LONGEST_SECONDS = 6 * 3600.0
Show = Callable[[str], None]
UNITS = {"": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}


class CommOptions(Frozen):
    """Algorithms, sizes, world sizes and limits of one benchmark."""

    algorithms: tuple[Choice, ...]
    """Always includes the backend's all-reduce, the baseline of the others."""
    sizes: tuple[int, ...]
    """Size of every rank's buffer in bytes; multiples of 4."""
    worlds: tuple[int, ...]
    launcher: Choice
    repetitions: int = 10
    seconds: float = 20.0
    """Most time of one algorithm at one size and world size."""
    seed: int = 20151102


def read_options(
    algorithms: tuple[str, ...], sizes: str, world: str | None, fabric: str | None, repetitions: int, seconds: float,
    seed: int,
) -> CommOptions:
    """Parse the text of the command line.

    Raises:
        UsageError: a value cannot be parsed or measured.
    """
    launcher = read_launcher(fabric)
    return CommOptions(
        algorithms=read_algorithms(algorithms), sizes=read_sizes(sizes), worlds=read_worlds(world, launcher),
        launcher=launcher, repetitions=repetitions, seconds=seconds, seed=seed,
    )


def read_algorithms(texts: Sequence[str]) -> tuple[Choice, ...]:
    """Parse `ring` or `{kind: tree, arity: 4}` each; an empty list means all without options. The backend comes first.

    Raises:
        UsageError: an unknown algorithm or option, or an algorithm given twice.
    """
    wanted = list(texts) or registry.names("comm")
    chosen = [_choice("comm", text) for text in dict.fromkeys([BASELINE, *wanted])]
    labels = [item.label for item in chosen]
    if twice := next((name for name in labels if labels.count(name) > 1), None):
        raise UsageError(f"{twice} is given twice")
    if len(tuning := [item.label for item in chosen if tunes(item.plugin)]) > 1:
        raise UsageError(f"{' and '.join(tuning)} each measure the links at their start; give only one of them per run")
    return tuple(chosen)


def read_launcher(fabric: str | None) -> Choice:
    """Parse `nodes=8,rate=200mbit` into the emulated cluster; None: this machine's loopback.

    Raises:
        UsageError: an unknown option, or an invalid value.
    """
    if fabric is None:
        return _choice("launcher", "local")
    options = [part.strip() for part in fabric.split(",") if part.strip()]
    if wrong := next((part for part in options if "=" not in part), None):
        raise UsageError(f"--fabric: {wrong!r} is not an option; write for example nodes=8,rate=200mbit")
    written = [part.replace("=", ": ", 1) for part in options]
    return _choice("launcher", "{" + ", ".join(["kind: fabric", *written]) + "}")


def read_worlds(text: str | None, launcher: Choice) -> tuple[int, ...]:
    """Parse world sizes; by default as many ranks as the fabric has nodes, else 2 and 4.

    Raises:
        UsageError: not a number, or fewer than two ranks.
    """
    nodes = launcher.get(Launcher).node_count
    if text is None:
        return (nodes,) if nodes else (2, 4)
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--world: {text!r} is not a list of numbers; write for example 2,4,8") from None
    if min(found) < 2:
        raise UsageError(f"--world: an all-reduce needs at least 2 ranks, not {min(found)}")
    return found


def read_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes: `1k:64m` is every fourfold size in between, `4k,1m` are those two.

    Raises:
        UsageError: not a size, or not a multiple of 4 bytes.
    """
    if ":" not in text:
        return tuple(sorted({_size(part) for part in text.split(",")}))
    first, last = (_size(part) for part in text.split(":", 1))
    if first > last:
        raise UsageError(f"--sizes: {text}: the first is larger than the last")
    found = [first]
    while 4 * found[-1] <= last:
        found.append(4 * found[-1])
    return tuple(found)


def _size(text: str) -> int:
    plain = text.strip().lower()
    digits = plain.rstrip("kmgib")
    if not digits.isdecimal() or plain[len(digits):] not in UNITS:
        raise UsageError(f"--sizes: {text!r} is not a size; write for example 4k, 1m or 4096")
    size = int(digits) * UNITS[plain[len(digits):]]
    if size < 4 or size % 4:
        raise UsageError(f"--sizes: {text.strip()} is not a multiple of 4 bytes, the size of one number")
    return size


def _choice(seam: str, text: str) -> Choice:
    import yaml

    try:
        choice = parse_choice(seam, yaml.safe_load(text))
    except yaml.YAMLError:
        raise UsageError(f"{seam}: {text!r} cannot be read; write a name or {{kind: name, option: value}}") from None
    except FieldProblem as error:
        raise UsageError(f"{seam}: {'.'.join(map(str, error.path))}{': ' if error.path else ''}{error}") from None
    assert isinstance(choice, Choice)
    return choice


@contextmanager
def _following(path: Path, tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Pass every JSON line that is appended to a file to `tell` while the block runs."""
    over = threading.Event()

    def follow() -> None:
        read, last = 0, False
        while not last:
            last = over.wait(0.5)  # what is written last is looked for once more
            with suppress(FileNotFoundError), path.open("rb") as stream:
                stream.seek(read)
                for line in stream:
                    if line.endswith(b"\n"):
                        read += len(line)
                        tell(json.loads(line))

    thread = threading.Thread(target=follow, name="repro-bench-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
    try:
        for world in options.worlds:
            launcher.prepare(world)
            worlds.append(_world(launcher, options, world, show))
    finally:
        launcher.close()
    return CommOutcome(
        origin=launcher.origin, place=launcher.title, cores=cores, load=(before, os.getloadavg()[0]),
        launcher=options.launcher.model_dump(mode="json"), repetitions=options.repetitions, seconds=options.seconds,
        seed=options.seed, worlds=tuple(worlds),
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
        "contenders": [{"label": item.label, "options": item.plugin.model_dump(mode="json"),
                        "target": f"{type(item.plugin).__module__}:{type(item.plugin).__qualname__}"}
                       for item in chosen],
        "sizes": options.sizes, "seed": options.seed,
        "repetitions": options.repetitions, "seconds": options.seconds, "timeout": 300.0,
    }
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as scratch:
        found = Path(scratch, comm_rank.FOUND)
        with _following(found, lambda line: show(_describe(world, line))):
            outcome = launcher.launch(LaunchRequest(
                entry=entry_point(comm_rank.measure_rank), payload=payload, processes=world, device="cpu",
                folder=Path(scratch), timeout_seconds=LONGEST_SECONDS,
            ))
        if not outcome.ok:
            raise TrialError(f"{world} ranks: {outcome.failure_text()}")
        lines = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    skipped = [{"algorithm": name, "size": None, "reason": reason} for name, reason in reasons.items() if reason]
    return world_result(world, lines, skipped, outcome.network)


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
