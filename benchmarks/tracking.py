"""Step time with a dead and with a slow tracking server over that without one: one training, arms in turn.

Everything runs as in a run: ranks write their events, the parent samples the machine, a tracking process at idle
priority reads the folder and replays. All arms use the same processes, one block of steps each in a shuffled order, and
the tracking process of an arm is stopped (SIGSTOP) outside its turn; so drift of the machine affects all arms alike.
The arm `none` is there twice: the difference between the two is the error of the method. An arm requests replays as
often as a run does, by its own working time. A dead server is asked every time, whereas a run waits longer after every
failure: here the load is higher than in a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from rich.console import Console
from rich.progress import Progress

from repro.bench.trial import BenchOutcome, bench_trial, outcome, preload, run_trial
from repro.core import orphans, registry
from repro.core.errors import TrialError
from repro.core.files import write_model, write_text
from repro.core.frozen import Frozen
from repro.core.machine import detect
from repro.record.environment import environment as record_environment
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import RunFolder
from repro.runner.attempt import Monitor
from repro.runner.tracking import PERIOD_SECONDS, Tracker
from repro.runner.tracking_process import give_way
from repro.suite.file import read_suite
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan, make_plan
from repro.worker.loop import Loop
from repro.worker.main import build
from repro.worker.setup import RankPlace

REQUEST = re.compile(rb"(?:GET|POST|PUT|PATCH|DELETE) /")
START_SECONDS = 180.0
TICK_SECONDS = 0.05


def free_port() -> int:
    """Return a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Be the slow server of a folder."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    give_way()
    orphans.signal_at_parent_exit(signal.SIGCONT)  # it may be stopped at that moment
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", "--backend-store-uri",
               f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    with (folder / "log").open("wb") as log:
        subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                         env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    try:
        _await(port)
        asyncio.run(_serve(folder, port, seconds))
    finally:
        os.killpg(0, signal.SIGKILL)


def _await(port: int) -> None:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)


async def _serve(folder: Path, port: int, seconds: float) -> None:
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        back = asyncio.create_task(_copy(there, writer))
        waiting: list[asyncio.Task[None]] = []
        with suppress(OSError):  # the client has closed the connection
            while data := await reader.read(1 << 16):
                if REQUEST.match(data):
                    count += 1
                    (folder / "requests").write_text(str(count))
                waiting.append(asyncio.create_task(_later(seconds, onward, data)))  # pieces keep their order
        await asyncio.gather(*waiting)
        onward.close()
        await back

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _later(seconds: float, onward: asyncio.StreamWriter, data: bytes) -> None:
    """Write after `seconds` of this process's running time: while it is stopped, at most one tick passes."""
    for _ in range(round(seconds / TICK_SECONDS)):
        await asyncio.sleep(TICK_SECONDS)
    onward.write(data)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


ARMS = ("none", "none again", "dead", "slow")
MARGIN = 0.01
"""Promised by the project: the ratio is within 1 +- MARGIN."""
WARMUP = 2
"""Rounds that are not counted."""
SEED = 20151102
LONGEST_SECONDS = 24 * 3600.0


class TrackingOutcome(Frozen):
    """Three ratios over `none`, and the work of the tracking processes."""

    control: BenchOutcome
    dead: BenchOutcome
    slow: BenchOutcome
    margin: float = MARGIN
    rounds: int
    steps: int
    seconds: float
    """Sum over all blocks."""
    replays: dict[str, int]
    """Arm -> replays that ended, successful or failed."""
    requests: int
    """Requests sent to the slow server."""
    cpu_seconds: dict[str, float]
    """Arm -> processor time of its tracking process while blocks were timed."""

    def text(self) -> str:
        lines = [self.control.what]
        for name, item in (("none again", self.control), ("dead", self.dead), ("slow", self.slow)):
            lines.append(f"  {name:10} / none: {item.ratio:.4f} ({item.level:.0%} interval {item.low:.4f} to "
                         f"{item.high:.4f}), median of rounds {item.median_ratio:.4f}: {self.verdict(item)}")
        lines += [f"  promised: within 1 +- {self.margin:g}; {self.rounds} rounds of blocks of {self.steps} steps, "
                  f"{self.seconds:.0f} s",
                  *(f"  {name}: {self.replays[name]} replays ended, {self.cpu_seconds[name]:.1f} s of CPU"
                    for name in ("dead", "slow")),
                  f"  {self.requests} requests were sent to the slow server",
                  "  measured on this machine, now"]
        return "\n".join(lines)

    def verdict(self, item: BenchOutcome) -> str:
        """Compare the whole interval with the promise."""
        if 1 - self.margin <= item.low and item.high <= 1 + self.margin:
            return "holds"
        if item.high < 1 - self.margin or item.low > 1 + self.margin:
            return "does not hold"
        return "inconclusive, the interval is too wide"


def measure(
    rounds: int = 800, steps: int = 100, processes: int = 2, delay: float = 2.0, every: float | None = None
) -> TrackingOutcome:
    """Run `rounds` of one block in each arm, in an order drawn for each round; fewer if Ctrl-C ends it.

    Args:
        steps: steps per block.
        delay: seconds per request of the slow server.
        every: seconds of an arm's work between two replay requests; None: as in a run.

    Raises:
        TrialError: ranks or the slow server failed.
    """
    dice = random.Random(SEED)
    order = [arm for _ in range(rounds + WARMUP) for arm in dice.sample(ARMS, len(ARMS))]
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(console=Console(stderr=True), refresh_per_second=2, transient=True))
        task = bar.add_task("blocks", total=len(order))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = _plan(scratch, processes, len(order) * steps, steps)
        trial = next(iter(plan.trials()))
        folders = _folders(scratch, plan, trial)
        proxy, port = stack.enter_context(_slow_server(scratch / "server", delay))
        uris = {"dead": f"http://127.0.0.1:{free_port()}", "slow": f"http://127.0.0.1:{port}"}
        trackers = {arm: Tracker(folders[arm].root, uri, retry_seconds=0.0) for arm, uri in uris.items()}
        for tracker in trackers.values():
            stack.callback(tracker.finish, 0.0)
            tracker.sync(wait_seconds=START_SECONDS)  # slow the first time, as before the first trial of a run
        launcher = registry.load("launcher", "local")()
        launcher.open([*preload(), "benchmarks.tracking"], "cpu")
        stack.callback(launcher.close)
        conductor = _Conductor(order, trackers, proxy, PERIOD_SECONDS if every is None else every,
                               lambda: bar.advance(task))
        stack.callback(conductor.resume_all)  # a stopped process cannot end
        seconds = _train(scratch, folders["slow"], trial, conductor, launcher, steps)
        replays = {arm: tracker.answers for arm, tracker in trackers.items()}
        cpu_seconds = conductor.cpu_seconds()
        requests = int((scratch / "server/requests").read_text())
    return _outcome(order, seconds, steps, processes, delay, replays, requests, cpu_seconds)


def _plan(scratch: Path, processes: int, total: int, steps: int) -> Plan:
    choices = bench_trial(processes, total, steps).choices.model_dump(mode="json", by_alias=True)
    kept = ("workload", "engine", "processes", "batch", "device", "warmup_steps", "optimizer", "stop", "evaluate_every")
    suite = {"suite": "bench-tracking", "seeds": 1, "trial": {name: choices[name] for name in kept}}
    path = scratch / "suite.yaml"
    path.write_text(json.dumps(suite))  # JSON is YAML
    return make_plan(read_suite(str(path)).suite, detect())


def _folders(scratch: Path, plan: Plan, trial: Trial) -> dict[str, RunFolder]:
    """Create a run folder for each arm that replays; they share the trial and nothing else."""
    folders = {arm: RunFolder.create(scratch / arm) for arm in ("slow", "dead")}
    environment = record_environment.take(detect(), ())
    for arm, folder in folders.items():
        write_text(folder.suite, (scratch / "suite.yaml").read_text())
        write_model(folder.plan, plan)
        write_model(folder.environment, environment)
        if arm != "slow":
            folder.trials.rmdir()
            folder.trials.symlink_to(folders["slow"].trials)
    place = folders["slow"].trial(trial.trial_id)
    place.mkdir(parents=True)
    write_model(folders["slow"].trial_file(trial.trial_id), trial)
    for folder in folders.values():
        folder.append_attempt(Attempt(
            trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=1,
            started_ms=round(time.time() * 1e3), seconds=0.0, status="started",
        ))
    return folders


@contextmanager
def _slow_server(folder: Path, delay: float) -> Iterator[tuple[int, int]]:
    """Start a tracking server that takes `delay` seconds for every request; yield the pid of its proxy, which leads
    its processes, and its port.
    """
    folder.mkdir()
    (folder / "requests").write_text("0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MLFLOW_DISABLE_TELEMETRY": "true"}
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.tracking", str(folder), str(delay)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                             start_new_session=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline().strip()
        if not line.isdigit():
            raise TrialError("the slow tracking server does not start")
        yield child.pid, int(line)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@dataclass(slots=True)
class _Conductor:
    """Runs one arm at a time, when rank 0 requests it."""

    order: Sequence[str]
    trackers: Mapping[str, Tracker]
    proxy: int
    """Pid of the process that delays the slow server's requests."""
    every: float
    after_block: Callable[[], object]
    """Called after every block."""
    _worked: dict[str, float] = field(default_factory=dict)
    """Seconds that an arm has worked since its last request."""
    _before: dict[str, float] = field(default_factory=dict)

    def conduct(self, line: socket.socket) -> None:
        """Answer each byte of rank 0 with one, when only the arm of the next block runs."""
        with line:
            for turn, arm in enumerate([*self.order, "none"]):
                if not line.recv(1):
                    return
                if turn == WARMUP * len(ARMS):
                    self._before = self._cpu()
                self.after_block()
                for other in self.trackers:
                    self._let(other, other == arm)
                if arm in self.trackers and self._worked.get(arm, self.every) >= self.every:
                    self._worked[arm] = 0.0
                    self.trackers[arm].sync()
                begin = time.monotonic()
                line.sendall(b".")
                select.select([line], [], [])
                self._worked[arm] = self._worked.get(arm, 0.0) + time.monotonic() - begin

    def _let(self, arm: str, work: bool) -> None:
        number = signal.SIGCONT if work else signal.SIGSTOP
        pid = self.trackers[arm].pid
        if pid is not None:
            os.kill(pid, number)
        if arm == "slow":  # the proxy only: the server represents another machine and is counted for no arm
            os.kill(self.proxy, number)

    def resume_all(self) -> None:
        for arm in self.trackers:
            with suppress(ProcessLookupError):
                self._let(arm, work=True)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time of each arm's tracking process since rounds are counted."""
        return {arm: seconds - self._before.get(arm, 0.0) for arm, seconds in self._cpu().items()}

    def _cpu(self) -> dict[str, float]:
        found = {}
        for arm, tracker in self.trackers.items():
            if tracker.pid is not None:
                times = psutil.Process(tracker.pid).cpu_times()
                found[arm] = times.user + times.system
        return found


def _train(
    scratch: Path, folder: RunFolder, trial: Trial, conductor: _Conductor, launcher: Any, steps: int
) -> list[float]:
    """Train; return the seconds of every block, in order. The parent works as during any trial."""
    place, log = folder.trial(trial.trial_id), folder.log(trial.trial_id, 1)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(scratch / "door"))
        door.listen(1)
        threading.Thread(target=lambda: conductor.conduct(door.accept()[0]), daemon=True).start()
        with Monitor(log, folder.system_log(trial.trial_id, 1), lambda *_: None, lambda: None), \
                suppress(KeyboardInterrupt):  # the rounds until then are used
            run_trial(launcher, trial, place, rank, LONGEST_SECONDS, log=log.name, door=str(scratch / "door"),
                      blocks=len(conductor.order), out=str(scratch / "seconds"))
    lines = (scratch / "seconds").read_text().split("\n")[:-1] if (scratch / "seconds").is_file() else []
    rounds = len(lines) // len(ARMS)
    if rounds < WARMUP + 2:
        raise TrialError(f"ended after {max(0, rounds - WARMUP)} counted rounds; at least 2 are needed")
    return [float(line) for line in lines[:rounds * len(ARMS)]]


def rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Run one rank: blocks under the harness, each after a request to the parent."""
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trial, place = Trial.model_validate(payload["trial"]), RankPlace(number, world, number)
    loop = build(trial, place, Path(folder) / payload["log"], payload)
    assert isinstance(loop, Loop)
    try:
        with ExitStack() as stack:
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            if number == 0:
                line.connect(payload["door"])
            loop.open_data()
            out = stack.enter_context(Path(payload["out"]).open("w")) if number == 0 else None
            for _ in range(payload["blocks"]):
                if number == 0:
                    line.sendall(b".")
                    line.recv(1)
                loop.session.synchronize()
                begin = time.perf_counter()
                loop.steps.log_block(loop.steps.train_block())
                seconds = time.perf_counter() - begin
                if out:
                    out.write(f"{seconds!r}\n")
                    out.flush()
            if number == 0:
                line.sendall(b".")
                line.recv(1)
    finally:
        loop.close()


def _outcome(
    order: Sequence[str], seconds: Sequence[float], steps: int, processes: int, delay: float,
    replays: dict[str, int], requests: int, cpu_seconds: dict[str, float],
) -> TrackingOutcome:
    first, order = WARMUP * len(ARMS), order[:len(seconds)]
    by_arm: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for arm, taken in zip(order[first:], seconds[first:], strict=True):
        by_arm[arm].append(1e3 * taken / steps)
    what = (f"tracking: DDP, {processes} processes, batch 64; step time with a dead and with a {delay:g}-s-per-request "
            "tracking server over none")
    control, dead, slow = (outcome(what, (arm, by_arm[arm]), ("none", by_arm["none"]), "ms per step", 1 + MARGIN)
                           for arm in ARMS[1:])
    return TrackingOutcome(
        control=control, dead=dead, slow=slow, rounds=len(by_arm["none"]), steps=steps, seconds=sum(seconds[first:]),
        replays=replays, requests=requests, cpu_seconds=cpu_seconds,
    )


if __name__ == "__main__":  # the slow server
    main()
