"""What of this project works on the GPUs of this machine: five minutes, no network. `make gpu-smoke` runs it.

    python3 -m tests.gpu.smoke --out smoke.json          # in a checkout, by the Python that has torch

It needs Linux, Python 3.10 or newer, torch 2.10 or newer built for the GPUs, and these packages, of which most machines
with torch have all but a few; it names at its start what is missing: click, google-re2, jinja2, numpy, psutil, pydantic
(with pydantic-core, annotated-types, typing-inspection), pytest, PyYAML, rich, scikit-learn (with joblib), scipy.
DeepSpeed (with hjson, msgpack, py-cpuinfo, einops, ninja) may be missing: its checks then say so. Nothing of the
project is installed.

Every check is a process of its own with a limit, so that a crash or a hang costs one line. A line is printed as each
ends, the most important first, and the JSON file is written again: who is cut off loses nothing. This file needs
Python alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
"""Exit code of a check that cannot be made here; its last line says why."""
NEEDED = {"click": "click", "re2": "google-re2", "jinja2": "jinja2", "numpy": "numpy", "psutil": "psutil",
          "pydantic": "pydantic", "pytest": "pytest", "yaml": "PyYAML", "rich": "rich", "sklearn": "scikit-learn",
          "scipy": "scipy"}
"""Module -> package, besides torch."""
VERSIONS = ("torch", "deepspeed", "triton", *NEEDED.values())
FACTS = """
import json, torch
found = {"torch_cuda": torch.version.cuda, "torch_hip": torch.version.hip, "devices": [], "reason": ""}
try:
    if not torch.accelerator.is_available():
        raise RuntimeError("torch finds no accelerator" + ("" if torch.version.cuda or torch.version.hip else
                           ": this build of it is for processors alone"))
    kind = torch.accelerator.current_accelerator().type
    part = torch.get_device_module(kind)
    for index in range(torch.accelerator.device_count()):
        about = part.get_device_properties(index)
        found["devices"].append({"name": about.name, "memory_bytes": about.total_memory,
                                 "capability": list(part.get_device_capability(index))})
    found["cudnn"], found["nccl"] = torch.backends.cudnn.version(), None
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    found["reason"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""
TAIL = 40
"""Lines of the output of a check that failed, which the file keeps."""


@dataclass(frozen=True)
class Check:
    """One check: a process that ends with 0, with SKIPPED, or otherwise if what it tries does not work."""

    name: str
    command: tuple[str, ...]
    limit_seconds: float
    gpus: int = 1
    """As many are needed at least."""
    deepspeed: bool = False
    alone: bool = False
    """Nothing else may run meanwhile: it compares clocks or measures."""


@dataclass(frozen=True)
class Outcome:
    """How a check ended."""

    name: str
    status: str
    """ok, failed, timeout or skipped."""
    seconds: float
    said: str
    """The last line that it printed: what was found, or the error."""
    tail: tuple[str, ...] = ()
    """The last lines of one that failed."""
    found: Any = None
    """What it printed, if that is JSON."""


ENGINES = ("ddp", "fsdp", "zero-0", "zero-1", "zero-2", "zero-3")


def every_check() -> list[Check]:
    """Return all checks, the most important first."""
    def check(name: str, *call: str, limit: float = 90, **more: Any) -> Check:
        command = (sys.executable, "-m", "tests.gpu.smoke_checks", *(call or (name,)))
        more.setdefault("deepspeed", any("zero" in part for part in call))
        return Check(name, command, limit, **more)

    def trained(precision: str) -> list[Check]:
        return [check(f"{engine} {optimizer} {precision}", "train", engine, optimizer, precision)
                for engine in ENGINES for optimizer in ("sgd", "adamw")]

    def pairs(*names: tuple[str, ...]) -> list[Check]:
        return [check(f"{' '.join(name)} on two", "train", name[0], "sgd", "fp32", "2", *name[1:], gpus=2)
                for name in names]

    return [
        check("kernel", alone=True), check("device count", "count", alone=True), check("clock", alone=True),
        check("group of one rank", "group"),
        check("plain sgd fp32", "train", "single", "sgd", "fp32"),
        check("quickstart", limit=240, deepspeed=True, alone=True),
        *trained("fp32"),
        *pairs(("ddp",), ("zero-2",), ("fsdp",), ("ddp", "ring"), ("ddp", "hybrid")),
        check("server on two", "server", gpus=2, limit=150),
        check("devices and their limits", "doctor", limit=90, alone=True),
        check("input workers", "workers", limit=150),
        *(check(f"killed and resumed: {engine}", "killed", engine, limit=200) for engine in ("ddp", "fsdp", "zero-1")),
        check("kfac ddp", "train", "ddp", "sgd", "fp32", "1", "kfac"),
        check("kfac zero-0", "train", "zero-0", "sgd", "fp32", "1", "kfac"),
        *trained("bf16-autocast"), *(item for item in trained("fp16-master") if "zero-0" not in item.name),  # refused
        check("quickstart with -o device=cpu", "quickstart_cpu", limit=300, deepspeed=True),
        *(check(f"offload {engine}", "offload", engine, limit=240) for engine in ("zero-2", "zero-3")),
    ]


def run(checks: Sequence[Check], out: Path, facts: dict[str, Any], gpus: int, deepspeed: bool, jobs: int) -> int:
    """Make every check, print a line for each and write `out` after each; return how many did not work.

    A signal that ends the process ends all that runs and prints the summary before.

    Args:
        gpus: how many are here.
        deepspeed: it is installed.
        jobs: checks that run at once, those apart that must be alone.
    """
    outcomes: list[Outcome] = []
    lock, mark, stopped = Lock(), uuid.uuid4().hex, [False]

    def write(finished: bool) -> None:
        record = {**facts, "finished": finished, "summary": summary(outcomes, len(checks)),
                  "checks": [asdict(item) for item in outcomes]}
        new = out.with_name(f"{out.name}.new")
        new.write_text(json.dumps(record, indent=1) + "\n")
        new.replace(out)

    def one(check: Check) -> None:
        if stopped[0]:
            return
        reason = ("DeepSpeed is not installed" if check.deepspeed and not deepspeed else
                  f"needs {check.gpus} GPUs, there is one" if check.gpus > gpus else "")
        try:
            found = (Outcome(check.name, "skipped", 0.0, reason) if reason else
                     made(check, f"{mark}-{uuid.uuid4().hex}"))
        except OSError as error:  # no room, or no process
            found = Outcome(check.name, "failed", 0.0, f"could not be started: {error}")
        with lock:
            if stopped[0]:
                return
            outcomes.append(found)
            print(f"{found.status:<8}{found.seconds:6.1f} s  {found.name}{': ' if found.said else ''}{found.said}",
                  flush=True)
            write(False)

    def stop(number: int, _: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    write(False)
    pool = ThreadPoolExecutor(jobs)
    made_now: list[Future[None]] = []
    try:
        for check in checks:
            if check.alone:
                wait(made_now)
            made_now.append(pool.submit(one, check))
            if check.alone:
                wait(made_now)
        wait(made_now)
        write(True)
    except KeyboardInterrupt as error:
        stopped[0] = True
        print(f"cut off ({error or 'SIGINT'}); what follows is what ended before", flush=True)
    finally:
        stopped[0] = True
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(item.done() for item in made_now):  # a process may have been started meanwhile
            end_marked(mark)
            time.sleep(0.05)
    print("\n".join(as_lines(outcomes, len(checks), out)), flush=True)
    return sum(item.status in ("failed", "timeout") for item in outcomes)


MARK = "REPRO_SMOKE_MARK"


def made(check: Check, mark: str) -> Outcome:
    """Make one check in its own process and empty folder; all its processes have ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="smoke-", ignore_cleanup_errors=True) as folder:
        printed = Path(folder) / "printed"
        environment = {
            **os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": os.devnull,  # these runs are no questions of the user
            "REPRO_TIMING_LOCK": "off", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        began = time.monotonic()
        with printed.open("w") as handle:
            process = subprocess.Popen(check.command, cwd=folder, stdin=subprocess.DEVNULL, stdout=handle,
                                       stderr=subprocess.STDOUT, env=environment, start_new_session=True)
            try:
                code: int | None = process.wait(check.limit_seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_marked(mark)
                process.wait()
        seconds = round(time.monotonic() - began, 1)
        text = printed.read_text(errors="replace")
    lines = [line for line in _nameless(text).splitlines() if line.strip()]
    status = {0: "ok", SKIPPED: "skipped", None: "timeout"}.get(code, "failed")
    last = _telling(lines) if status in ("failed", "timeout") else lines[-1].strip() if lines else ""
    if code is None:
        last = f"no end within {check.limit_seconds:g} s; it said last: {last or 'nothing'}"
    elif code < 0:
        last = f"ended by {signal.Signals(-code).name}; it said last: {last or 'nothing'}"
    found = None
    if status == "ok":
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            last = f"{len(found)} facts, in the file"
    return Outcome(check.name, status, seconds, last[:300], tuple(lines[-TAIL:]) if status in ("failed", "timeout")
                   else (), found)


def _telling(lines: Sequence[str]) -> str:
    """Return the last line of an error: that of the traceback, if there is one, else the last line."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Traceback ")]
    after = [line for line in lines[starts[-1] + 1:] if not line.startswith(" ")] if starts else []
    return (after or list(lines[-1:]) or [""])[0].strip()


def _nameless(text: str) -> str:
    """Return a text without the places of home, checkout and temporary folders, which say who ran it."""
    for path, name in ((str(ROOT), "."), (str(Path.home()), "~"), (platform.node(), "HOST")):
        text = text.replace(path, name) if len(path) > 2 else text
    return text


def end_marked(mark: str) -> None:
    """Kill all processes whose environment has a mark that begins so, detached ones too."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def summary(outcomes: Sequence[Outcome], planned: int) -> dict[str, int]:
    """Count the outcomes by status, and the checks that were not made."""
    counts = {status: sum(item.status == status for item in outcomes)
              for status in ("ok", "failed", "timeout", "skipped")}
    return {**counts, "not made": planned - len(outcomes)}


def as_lines(outcomes: Sequence[Outcome], planned: int, out: Path) -> list[str]:
    """Return the summary for the terminal: counts, what did not work, the file."""
    counts = ", ".join(f"{count} {status}" for status, count in summary(outcomes, planned).items() if count)
    return [counts, *(f"{item.status}: {item.name}: {item.said}" for item in outcomes
                      if item.status in ("failed", "timeout")), f"written to {out}"]


def asked(*command: str) -> str:
    """Return what a command prints; "" without it or if it refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def facts_here() -> dict[str, Any]:
    """Return versions, devices and driver of this machine, as torch and nvidia-smi tell them."""
    versions = {}
    for name in VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    try:
        done = subprocess.run([sys.executable, "-c", FACTS], capture_output=True, text=True, timeout=180, check=False)
        seen = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        reason = ("torch did not answer within 180 s" if isinstance(error, subprocess.TimeoutExpired)
                  else (done.stderr.strip().splitlines() or [f"torch ended with code {done.returncode}"])[-1])
        seen = {"devices": [], "reason": _nameless(reason)}
    fields = "name,driver_version,memory.total,compute_mode,power.limit"
    return {
        "format": 1, "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": asked("git", "rev-parse", "HEAD"), "changed": bool(asked("git", "status", "--porcelain", "-uno")),
        "python": platform.python_version(), "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)), "versions": versions, **seen,
        "nvidia_smi": asked("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines(),
        "emulated": any(item["name"].startswith("Emulated ") for item in seen["devices"]),
    }


def main() -> int:
    """Make the checks; return 0 if nothing failed, 1 if something did, 2 if there is no GPU to try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("smoke.json"), help="the JSON file to write")
    parser.add_argument("--jobs", type=int, help="checks at once; default: one for every 4 cores, at most 4")
    parser.add_argument("--only", default="", help="only checks with this word in their name")
    options = parser.parse_args()
    facts = facts_here()
    gpus, exclusive = len(facts["devices"]), any("Exclusive" in line for line in facts["nvidia_smi"])
    if not gpus:
        seen = f"; nvidia-smi lists {len(facts['nvidia_smi'])}" if facts["nvidia_smi"] else ""
        print(f"there is no GPU here that torch can use, so nothing was tried: {facts['reason']}{seen}")
        return 2
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    facts["missing"] = missing
    print(f"{gpus} x {facts['devices'][0]['name']}, torch {facts['versions'].get('torch')}, Python {facts['python']}, "
          f"DeepSpeed {facts['versions'].get('deepspeed', 'not installed')}", flush=True)
    if facts["emulated"]:
        print("these devices are emulated: this says nothing about any GPU", flush=True)
    if missing:
        print(f"missing packages, without which checks fail: {', '.join(missing)}", flush=True)
    checks = [check for check in every_check() if options.only in check.name]
    jobs = options.jobs or (1 if exclusive else max(1, min(4, facts["cores"] // 4)))
    return 1 if run(checks, options.out.resolve(), facts, gpus, find_spec("deepspeed") is not None, jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
