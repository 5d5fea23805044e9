"""Damaged inputs through the real command, a process each: exit code, output, time and memory as a user has them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.drive import LONGEST_SECONDS, PEAK_MB, ROOT

CODES = {0, 1, 2, 3}
BAD = ("Traceback (most recent call last)", "internal error", "Warning:")


class Commands:
    """Places of inputs, and the command that reads each kind."""

    def __init__(self, place: Path) -> None:
        from tests.fuzz.targets import targets

        self.place = place
        self.targets = {item.name: item for item in targets()}
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.kinds: dict[str, Callable[[bytes], list[list[str]]]] = {
            "suite file": self._suite,
            "override": self._override,
            "MLPerf log": self._log,
            "DAWNBench curve": self._curve,
            "system description": self._system,
            "run folder: verify, compare, audit, resume": self._run,
            "bundle": self._bundle,
        }

    def made(self, kind: str, rng: random.Random) -> tuple[bytes, list[list[str]]]:
        """A damaged input, and the commands that read it in place."""
        target = self.targets[kind]
        data = target.mutate(rng.choice(target.valid), rng)
        commands = self.kinds[kind](data)
        return data, [rng.choice(commands)]

    def _suite(self, data: bytes) -> list[list[str]]:
        (self.place / "fuzz.yaml").write_bytes(data)
        return [["plan", "fuzz.yaml"], ["show", "fuzz.yaml"], ["plan", "fuzz.yaml", "--json"]]

    def _override(self, data: bytes) -> list[list[str]]:
        return [["plan", "quickstart", "-o", data.replace(b"\0", b"").decode("utf-8", "surrogateescape")]]

    def _log(self, data: bytes) -> list[list[str]]:
        folder = self.place / "training_v4.0/Acme/results/box/resnet"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result_0.txt").write_bytes(data)
        return [["import", "mlperf", "training_v4.0", "--out", "imported"], ["audit", "training_v4.0"]]

    def _system(self, data: bytes) -> list[list[str]]:
        folder = self.place / "training_v4.0/Acme/systems"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "box.json").write_bytes(data)
        return [["import", "mlperf", "training_v4.0", "--out", "imported", "--json"]]

    def _curve(self, data: bytes) -> list[list[str]]:
        folder = self.place / "ImageNet/train"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fast.tsv").write_bytes(data)
        return [["import", "dawnbench", "ImageNet", "--out", "imported"]]

    def _run(self, data: bytes) -> list[list[str]]:
        same = self.targets["run folder: verify, compare, audit, resume"].folder / "same"
        shutil.rmtree(self.place / "run", ignore_errors=True)
        shutil.copytree(same, self.place / "run")
        name, _, content = data.partition(b"\n")
        file = self.place / "run" / name.decode("utf-8", "replace")
        known = os.path.isfile(file)  # noqa: PTH113  # a name may be none, and is no error then
        (file if known else self.place / "run" / "plan.json").write_bytes(content)
        return [
            ["verify", "run"],
            ["compare", "run"],
            ["audit", "run"],
            ["report", "run", "--to", "markdown,csv,jsonl,mllog"],
            ["report", "run"],
            ["bundle", "run", "-o", "made.zip"],
            ["diff", "run", "run"],
            ["reproduce", "run", "--trials", "none"],
            ["verify", "run", "--json"],
        ]

    def _bundle(self, data: bytes) -> list[list[str]]:
        (self.place / "fuzz.zip").write_bytes(data)
        return [["verify", "fuzz.zip"], ["diff", "fuzz.zip", "fuzz.zip"], ["reproduce", "fuzz.zip", "--trials", "none"]]


def measured(arguments: list[str], place: Path) -> tuple[int, str, float, float]:
    """(exit code, standard error, processor seconds, peak resident MB) of one command."""
    shutil.rmtree(place / "imported", ignore_errors=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HOME": str(place),
        "PYTHONWARNINGS": "default",
    }
    with (place / "error").open("w+b") as error:
        child = subprocess.Popen(
            [sys.executable, "-m", "repro", *arguments],
            cwd=place,
            env=environment,
            stderr=error,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        error.seek(0)
        return (
            child.returncode,
            error.read().decode(errors="replace"),
            used.ru_utime + used.ru_stime,
            used.ru_maxrss * 1024 / 1e6,
        )


def drive(count: int, seed: int, place: Path, only: str = "") -> dict[str, Any]:
    """`count` inputs, kinds in turn; seconds are those beyond what `repro plan` takes on a suite of ours."""
    began, rng, commands = time.monotonic(), random.Random(seed), Commands(place)
    kinds = [kind for kind in commands.kinds if only in kind]
    rest = measured(["plan", "quickstart"], place)
    found: dict[str, Any] = {
        "target": "commands",
        "engine": "process",
        "inputs": 0,
        "refused": 0,
        "slowest": 0.0,
        "peak_mb": 0.0,
        "base_mb": rest[3],
        "findings": {},
    }
    for number in range(count if kinds else 0):
        kind = kinds[number % len(kinds)]
        data, (arguments,) = commands.made(kind, rng)
        code, error, seconds, peak = measured(arguments, place)
        found["inputs"] += 1
        found["refused"] += code == 2
        found["slowest"] = max(found["slowest"], seconds - rest[2])
        found["peak_mb"] = max(found["peak_mb"], peak)
        wrong = [*(f"exit code {code}" for _ in range(code not in CODES)), *(bad for bad in BAD if bad in error)]
        wrong += ["too long"] * (seconds - rest[2] > LONGEST_SECONDS) + ["memory"] * (peak > PEAK_MB)
        if (
            code == 2
            and len([line for line in error.splitlines() if line.startswith("error:")]) != 1
            and "Usage:" not in error
        ):
            wrong.append("not one line of error")
        for what in wrong:
            if what not in found["findings"]:
                found["findings"][what] = f"{json.dumps(arguments)}: {error[-300:]!r}, {seconds:.1f} s, {peak:.0f} MB"
                (place.parent / f"command-{len(found['findings'])}").write_bytes(data)
    for target in commands.targets.values():
        target.close()
    return {**found, "seconds": time.monotonic() - began}
