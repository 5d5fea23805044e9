"""Where faults happen: a suite, its file system and tracking server, and what can go wrong there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.launchers.fabric_probe import ability

SUITE = """\
suite: chaos
seeds: {seeds}
on_failure: {on_failure}
attempts: 10
trial:
  workload: {workload}
  processes: 2
  launcher: {launcher}
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.05}}
  stop: {{metric: top1, target: {target}, max_epochs: 6}}
  evaluate_every: {every}
  determinism: {determinism}
  device: cpu
  timeout_seconds: 90
  stall_seconds: {stall}
matrix:
  engine: {engines}
"""
SLOW = "[{kind: slow, samples_scale: 500}, {kind: slow, samples_scale: 500, step_seconds: 0.02}]"
SMALL_DISK = "48m"


@dataclass(frozen=True)
class World:
    """One of them."""

    name: str
    kinds: tuple[str, ...]
    share: int
    """How many of ten faults happen here."""
    launcher: str = "local"
    real: bool = False
    """Trains; else the figures are invented and exact, and only time is real."""
    tracked: bool = False
    small: bool = False
    """On a file system of its own, which may be filled."""
    seeds: int = 4
    stall_seconds: float = 30
    """On a machine with other work a rank that is well may say nothing for some seconds."""

    def suite(self, on_failure: str, seeds: int | None = None) -> str:
        return SUITE.format(
            seeds=seeds or self.seeds, on_failure=on_failure, launcher=self.launcher,
            workload="digits-mlp" if self.real else "digits", target=0.85 if self.real else 0.9,
            every=720 if self.real else 256, determinism="bitwise" if self.real else "seeded",
            stall=self.stall_seconds, engines="[ddp]" if self.real else SLOW,
        )

    def why_not(self) -> str:
        """What it lacks on this machine; "" where it can be."""
        if self.launcher != "local":
            return ability().problem
        return "a small file system can be mounted by root only" if self.small and os.geteuid() else ""


OFTEN = ("kill rank",) * 4
"""The commonest fault is the one that a run survives; those that end it take seconds to come back from."""
WORLDS = (
    World("local", (*OFTEN, "stop rank", "kill server", "kill parent", "interrupt", "interrupt twice", "terminate",
                    "hang up", "truncate log", "truncate log", "cut result", "cut log"), share=4),
    World("emulated", (*OFTEN, "kill keeper", "kill keeper", "kill server", "kill parent", "terminate", "stop rank"),
          share=2, launcher="{kind: fabric, rate: 1gbit}"),
    World("bitwise", (*OFTEN, "kill parent", "stop rank", "terminate", "cut log", "cut result"), share=2, real=True),
    World("tracked", ("kill tracking server", "kill tracker", "kill rank", "kill parent", "interrupt"), share=1,
          tracked=True),
    World("small disk", ("full disk", "kill rank", "kill parent"), share=1, small=True),
)


@contextmanager
def place(world: World, folder: Path) -> Iterator[Path]:
    """A folder for runs of this world; a file system of its own where it wants one."""
    folder.mkdir()
    if not world.small:
        yield folder
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
