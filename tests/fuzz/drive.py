"""`make fuzz`: damaged inputs into everything that reads files of strangers, in processes whose time and memory count.

    python -m tests.fuzz.drive --seconds 600 --engine hypothesis,atheris --only bundle

Each target runs in a separate process, with each engine in turn. Printed per target: inputs tried, seconds, peak
resident memory of the process, the slowest input (processor seconds), findings. A finding is anything but a
result or an error of one line, an input that takes more than 5 s of the processor, or a peak above 500 MB; its input
is kept under --out. The exit code is 1 where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import psutil

LONGEST_SECONDS = 5.0
"""Processor seconds for one input: on a shared machine the wall clock would count others' work."""
SILENT_SECONDS = 30.0
"""Processor seconds without a finished input: then a process is killed as hung (in C, where no signal reaches)."""
PEAK_MB = 500.0
ROOT = Path(__file__).resolve().parents[2]


class TooLong(BaseException):
    """An input took its time; not an Exception, so that nothing on the way takes it for an error of the input."""


def peak_mb() -> float:
    """Peak resident memory of this process, 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Feeder:
    """Feeds one target, and keeps count."""

    def __init__(self, name: str, out: Path) -> None:
        from tests.fuzz.targets import targets

        self.target = next(item for item in targets() if item.name == name)
        self.out = out
        self.inputs = self.refused = 0
        self.slowest = 0.0
        self.peak = 0.0
        self.findings: dict[str, str] = {}
        self._told = 0.0
        signal.signal(signal.SIGVTALRM, self._late)
        began = time.process_time()
        for data in dict.fromkeys(self.target.valid):
            assert self.target.feed(data) == "", "a valid input is refused"
            if time.process_time() - began > 3:
                break  # pages: one and the next take the same way
        self.base = peak_mb()

    def _late(self, *_: object) -> None:
        raise TooLong

    def feed(self, data: bytes) -> None:
        """One input; what it brings to light is written down and the next one may come."""
        began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SECONDS)
        try:
            self.refused += self.target.feed(data) != ""
        except TooLong as error:
            self._found(data, error, "too long")
        except Exception as error:
            self._found(data, error, type(error).__name__)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self.inputs += 1
        took = time.process_time() - began
        if took > self.slowest:
            self.slowest = took
            (self.out / "slowest").write_bytes(data)
        if (peak := peak_mb()) > self.peak:
            if peak > PEAK_MB >= self.peak:
                self._found(data, MemoryError(f"peak {peak:.0f} MB"), "memory")
            self.peak = peak
        if time.monotonic() - self._told > 1:
            self.tell()

    def _found(self, data: bytes, error: BaseException, kind: str) -> None:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "/repro/" in frame.filename or "/reporters/" in frame.filename
        ]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else "outside"
        key = f"{kind} at {place}"
        if key not in self.findings:
            self.findings[key] = f"{kind}: {str(error)[:200]}"
            path = self.out / f"finding-{len(self.findings)}"
            path.write_bytes(data)
            path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)), errors="backslashreplace")
            self.tell()

    def tell(self) -> None:
        """Progress, for the waiting process."""
        self._told = time.monotonic()
        aside = self.out / "state.tmp"
        aside.write_text(
            json.dumps(
                {
                    "inputs": self.inputs,
                    "refused": self.refused,
                    "slowest": self.slowest,
                    "peak_mb": self.peak,
                    "base_mb": self.base,
                    "findings": self.findings,
                }
            )
        )
        aside.replace(self.out / "state.json")


def by_hypothesis(feeder: Feeder, seconds: float, seed: int) -> None:
    """Hypothesis draws the edits; rounds of 500 inputs with seeds one after the other."""
    import hypothesis
    from hypothesis import strategies as st

    end = time.monotonic() + seconds
    calm = hypothesis.settings(
        max_examples=500,
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def once(data: bytes, rng: random.Random) -> None:
        damaged = feeder.target.mutate(data, rng)  # drawn also when the time is over: draws must not depend on a clock
        if time.monotonic() < end:
            feeder.feed(damaged)

    while time.monotonic() < end:
        given = hypothesis.given(st.sampled_from(feeder.target.valid), st.randoms(use_true_random=False))
        hypothesis.seed(seed)(calm(given(once)))()
        seed += 1


def by_atheris(feeder: Feeder, seconds: float, seed: int) -> None:
    """atheris goes where the coverage of our parsers grows; it ends the process when the time is over."""
    import atheris

    corpus = feeder.out / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(dict.fromkeys(feeder.target.valid)):
        (corpus / f"valid-{number}").write_bytes(data)

    def mutate(data: bytes, limit: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.25:
            return bytes(atheris.Mutate(data, min(limit, max(2 * len(data), 64))))
        return feeder.target.mutate(data, rng)[:limit]

    def one(data: bytes) -> None:
        feeder.feed(data)

    longest = max(map(len, feeder.target.valid)) * 2 + 8192
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={max(1, round(seconds))}",
            "-rss_limit_mb=2000",
            "-timeout=60",
            f"-seed={seed}",
            f"-max_len={longest}",
            "-print_final_stats=0",
            "-verbosity=0",
            f"-artifact_prefix={feeder.out}/",
            str(corpus),
        ],
        one,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def work(name: str, engine: str, seconds: float, seed: int, out: Path) -> None:
    """One target with one engine, in this process."""
    import atexit

    # A warning of numpy's is two lines in front of a user: as good as a traceback.
    warnings.simplefilter("error")
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["repro", "yaml", "zipfile", "json"], enable_loader_override=False):
            import repro.cli.workflows.run  # noqa: F401
            import tests.fuzz.targets  # noqa: F401
    feeder = Feeder(name, out)
    atexit.register(feeder.tell)
    atexit.register(feeder.target.close)
    {"hypothesis": by_hypothesis, "atheris": by_atheris}[engine](feeder, seconds, seed)
    feeder.tell()


def supervise(name: str, engine: str, seconds: float, seed: int, out: Path) -> dict[str, Any]:
    """Start `work`, check its progress, read its result."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.drive",
        "--work",
        name,
        "--engine",
        engine,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
        "--out",
        str(out),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "HOME": str(out),
        "XDG_DATA_HOME": str(out),
    }
    with (out / "output").open("wb") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
        state = out / "state.json"
        hung = _watch(child, state)
    found: dict[str, Any] = (
        json.loads(state.read_text())
        if state.exists()
        else {"inputs": 0, "refused": 0, "slowest": 0.0, "peak_mb": 0.0, "base_mb": 0.0, "findings": {}}
    )
    if hung:
        found["findings"]["hung"] = f"killed after {SILENT_SECONDS:.0f} s without an input finished"
    elif child.returncode not in (0, None):
        found["findings"][f"exit {child.returncode}"] = " ".join(
            (out / "output").read_text(errors="replace").split()[-40:]
        )
    return {"target": name, "engine": engine, "seconds": time.monotonic() - began, **found}


def _watch(child: subprocess.Popen[bytes], state: Path) -> bool:
    """Wait for the end; True where the process had to be killed because it worked on one input for too long."""
    process, told, used = psutil.Process(child.pid), 0.0, 0.0
    while child.poll() is None:
        time.sleep(0.2)
        with contextlib.suppress(psutil.Error):
            now = sum(process.cpu_times()[:2])
            if state.exists() and state.stat().st_mtime != told:
                told, used = state.stat().st_mtime, now
            if now - used > SILENT_SECONDS + (0 if told else 60):
                child.kill()
                child.wait()
                return True
    return False


def row(item: dict[str, Any]) -> str:
    memory = f"{item['peak_mb']:.0f} MB ({item['base_mb']:.0f} at rest)"
    return (
        f"{item['target'][:44]:<44} {item['engine']:<10} {item['inputs']:>8} {item['refused']:>8} "
        f"{item['seconds']:>7.0f} s {memory:>23} {item['slowest']:>7.3f} s {len(item['findings']):>8}"
    )


def main() -> int:
    from tests.fuzz.names import NAMES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="over all targets and engines together")
    parser.add_argument("--engine", default="hypothesis,atheris")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--commands", type=int, default=300, help="inputs through the command line, in separate processes"
    )
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.work, asked.engine, asked.seconds, asked.seed, asked.out)
        return 0
    engines = [engine for engine in asked.engine.split(",") if engine]
    if "atheris" in engines and importlib.util.find_spec("atheris") is None:
        engines.remove("atheris")
        print("atheris is not installed (pip install -e '.[fuzz]'; Linux, Python 3.11 or newer): Hypothesis alone")
    jobs = [(name, engine) for name in NAMES if asked.only in name for engine in engines]
    columns = f"{'inputs':>8} {'refused':>8} {'time':>9} {'peak memory':>23} {'slowest':>9} findings"
    print(f"{'target':<44} {'engine':<10} {columns}")
    found = []
    for number, (name, engine) in enumerate(jobs):
        place = asked.out.resolve() / f"{name.replace(' ', '-').replace(':', '').replace(',', '')}-{engine}"
        found.append(supervise(name, engine, asked.seconds / len(jobs), asked.seed + 1000 * number, place))
        print(row(found[-1]), flush=True)
        for what, told in found[-1]["findings"].items():
            print(f"    {what}: {told}", flush=True)
    if asked.commands:
        from tests.fuzz.commands import drive

        found.append(drive(asked.commands, asked.seed, asked.out.resolve() / "commands", asked.only))
        print(row(found[-1]), flush=True)
        for what, told in found[-1]["findings"].items():
            print(f"    {what}: {told}", flush=True)
    bad = sum(len(item["findings"]) for item in found)
    print(
        f"{sum(item['inputs'] for item in found):,} inputs in {sum(item['seconds'] for item in found):,.0f} s, "
        f"peak {max(item['peak_mb'] for item in found):.0f} MB, slowest "
        f"{max(item['slowest'] for item in found):.2f} s, {bad} findings"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
