"""Worlds of faults: a suite, its file system and tracking server, and the possible faults."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.launchers.netns.probe import ability

SUITE = """\
suite: chaos
seeds: {seeds}
master_seed: 20151102
on_failure: {on_failure}
{checkpoint_every}attempts: 10
trial:
  workload: {workload}
  processes: 2
  launcher: {launcher}
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.05}}
  stop: {stop}
  evaluate_every: {every}
  determinism: {determinism}
  device: cpu
  timeout_seconds: 900
  stall_seconds: {stall}
matrix:
  engine: {engines}
"""
SLOW = "[{kind: slow, samples_scale: 500}, {kind: slow, samples_scale: 500, step_seconds: 0.02}]"
TO_TARGET = "{{metric: top1, target: {target}, max_epochs: 6}}"
TO_THE_END = "{{metric: top1, target: {target}, max_epochs: 12, design: fixed_budget}}"
"""Trials that last: most faults are to come after a first checkpoint."""
SMALL_DISK = "48m"


@dataclass(frozen=True)
class World:
    """One of them."""

    name: str
    kinds: tuple[str, ...]
    share: int
    """Number of faults of ten that happen here."""
    launcher: str = "local"
    real: bool = False
    """Trains; else the figures are invented and exact, and only time is real."""
    tracked: bool = False
    small: bool = False
    """On a separate file system, which may be filled."""
    seeds: int = 4
    on_failure: str = "rerun"
    """The suite as text."""
    stall_seconds: float = 30
    """On a machine with other work a rank that is well may say nothing for some seconds."""

    @property
    def resumes(self) -> bool:
        """Trials keep checkpoints and go on from them."""
        return self.on_failure == "resume_from_checkpoint"

    def suite(self, seeds: int | None = None) -> str:
        """The text of its suite file."""
        lasts = self.resumes and self.real
        return SUITE.format(
            seeds=seeds or self.seeds, on_failure=self.on_failure, launcher=self.launcher,
            checkpoint_every="checkpoint_every: 1\n" if self.resumes else "",
            workload=("{kind: digits-mlp, hidden: 256}" if lasts else "digits-mlp") if self.real else "digits",
            stop=(TO_THE_END if lasts else TO_TARGET).format(target=0.85 if self.real else 0.9),
            every=360 if lasts else 720 if self.real else 256, determinism="bitwise" if self.real else "seeded",
            stall=self.stall_seconds, engines="[ddp]" if self.real else SLOW,
        )

    def why_not(self) -> str:
        """The requirement that this machine lacks; "" if there is none."""
        if self.launcher != "local":
            return ability().problem
        return "a small file system can be mounted by root only" if self.small and os.geteuid() else ""


OFTEN = ("kill rank",) * 4
"""The commonest fault is the one that a run survives; those that end it take seconds to come back from."""
TRAINING = (*OFTEN, "kill parent", "stop rank", "terminate", "cut log", "cut result", "kill any time")
WORLDS = (
    World("local", (*OFTEN, "stop rank", "kill server", "kill parent", "interrupt", "interrupt twice", "terminate",
                    "hang up", "truncate log", "truncate log", "cut result", "cut log", "kill any time",
                    "kill any time", "terminate any time"), share=4),
    World("emulated", (*OFTEN, "kill keeper", "kill keeper", "kill server", "kill parent", "terminate", "stop rank"),
          share=2, launcher="{kind: fabric, rate: 1gbit}"),
    World("bitwise", TRAINING, share=1, real=True),
    World("resumed", TRAINING, share=1, real=True, on_failure="resume_from_checkpoint", stall_seconds=15),
    World("tracked", ("kill tracking server", "kill tracker", "kill rank", "kill parent", "interrupt", "kill any time"),
          share=1, tracked=True),
    World("small disk", ("full disk", "kill rank", "kill parent"), share=1, small=True),
)


@contextmanager
def place(world: World, folder: Path) -> Iterator[Path]:
    """A folder for runs of this world; a separate file system if it requires one."""
    folder.mkdir()
    if not world.small:
        yield folder
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
