"""Runs small suites again and again, lets planned faults happen to them, resumes them, and checks what must hold.

    python -m tests.chaos.drive --faults 200 --seed 1 [--lanes 3] [--world local] [--keep DIR]

Each trial counted once; nothing that had ended lost or changed; what was damaged refused, and run again, it alone;
resumed trials equal to an undisturbed run's, bit for bit; no process, no namespace, no lock, no half-written file
left; `repro verify` finds every record sound, the tracking server every point once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from repro.core import registry
from repro.core.errors import ReproError
from tests.chaos import faults
from tests.chaos.disturbed import PLUGINS, Drive
from tests.chaos.faults import Fault
from tests.chaos.server import Server
from tests.chaos.tally import Tally
from tests.chaos.worlds import WORLDS, World, place

A_PLAN = 10
"""Faults that one folder after another has to bear, before the next plan begins."""


def know_the_engine() -> None:
    """Make the engine `slow` known to this process too: it reads the records."""
    sys.path.insert(0, str(PLUGINS))
    registry._third_party.cache_clear()


@dataclass
class Lanes:
    """Plans of faults, several at a time."""

    folder: Path
    keep: Path | None = None
    until: float = math.inf
    """The same as a drive's; plans that have not started by then are excluded."""
    control: bool = True
    """One run of each suite is undisturbed, and all others must have the same results."""
    say: bool = False
    tally: Tally = field(default_factory=Tally)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _controls: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """The results of each suite, by its text."""

    def run(self, plans: Sequence[tuple[World, list[Fault]]], lanes: int) -> Tally:
        """Let all of it happen; what was broken is in the tally, the other plans go on."""
        worlds = {world.suite(): world for world, _ in plans}
        with ThreadPoolExecutor(lanes) as pool:
            if self.control:
                self._controls = dict(zip(worlds, pool.map(self._control, worlds.values()), strict=True))
            list(pool.map(self._plan, range(len(plans)), plans))
        return self.tally

    def _control(self, world: World) -> dict[str, dict[str, Any]]:
        folder = self.folder / f"control-{world.name}"
        folder.mkdir()
        drive = Drive(folder, world)
        try:
            return drive.undisturbed()
        finally:
            self.tally.starts += drive.tally.starts

    def _plan(self, number: int, plan: tuple[World, list[Fault]]) -> None:
        world, planned = plan
        begin = time.monotonic()
        if begin > self.until:
            return
        with ExitStack() as stack:
            folder = stack.enter_context(place(world, self.folder / f"plan{number}"))
            server = None
            if world.tracked:
                server = Server(self.folder / f"server{number}")
                stack.callback(server.close)
                server.start()
                server.wait()
            control = self._controls.get(world.suite(), {})
            drive = Drive(folder, world, control=control, server=server, until=self.until)
            try:
                drive.go(planned)
            except (AssertionError, ReproError, OSError, ValueError, subprocess.SubprocessError) as error:
                drive.tally.broken.append(f"plan {number}: {type(error).__name__}: {error}")
                if self.keep:
                    shutil.copytree(folder, self.keep / f"plan{number}", dirs_exist_ok=True)
        with self._lock:
            self.tally.add(drive.tally)
            if self.say:
                print(f"plan {number}, {world.name}: {sum(drive.tally.faults.values())} faults, "
                      f"{len(drive.tally.broken)} broken, {time.monotonic() - begin:.0f} s",
                      *drive.tally.broken, sep="\n  ", flush=True)


def plans(seed: int, count: int, worlds: Sequence[World]) -> list[tuple[World, list[Fault]]]:
    """`count` faults dealt to the worlds by their shares, in plans of A_PLAN; long ones first."""
    total = sum(world.share for world in worlds)
    found: list[tuple[World, list[Fault]]] = []
    given = 0
    for index, world in enumerate(worlds):
        mine = count - given if index == len(worlds) - 1 else round(count * world.share / total)
        given += mine
        all_ = faults.plan(seed * 1000 + index, mine, 2, world.kinds)
        found += [(world, all_[begin:begin + A_PLAN]) for begin in range(0, mine, A_PLAN)]
    return sorted(found, key=lambda item: not item[0].tracked)


def _give_up(*_: object) -> None:
    """End on request: no process that was started here may continue."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os.write(2, b"ended before all faults had happened\n")
    os._exit(1)


def main() -> None:
    know_the_engine()
    signal.signal(signal.SIGTERM, _give_up)
    signal.signal(signal.SIGINT, _give_up)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=3, help="plans at a time")
    parser.add_argument("--world", action="append", choices=[world.name for world in WORLDS])
    parser.add_argument("--on-failure", help="what all suites say, instead of what their worlds do")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no more faults after this time; what was "
                        "injected until then is checked, and the exit code is 1")
    parser.add_argument("--keep", type=Path, help="where to leave the folders of plans in which something broke")
    asked = parser.parse_args()
    worlds = [world for world in WORLDS if not asked.world or world.name in asked.world]
    for world in [world for world in worlds if world.why_not()]:
        print(f"excluded: {world.name}: {world.why_not()}")
        worlds.remove(world)
    if asked.on_failure:
        worlds = [dataclasses.replace(world, on_failure=asked.on_failure) for world in worlds]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repro-chaos-") as folder:
        lanes = Lanes(Path(folder), asked.keep, begin + 60 * asked.minutes, say=True)
        tally = lanes.run(plans(asked.seed, asked.faults, worlds), asked.lanes)
    print(tally.text(time.monotonic() - begin))
    sys.exit(bool(tally.broken) or sum(tally.faults.values()) != asked.faults)


if __name__ == "__main__":
    main()
