"""Time to build a board of many bundles: copies of a few real ones that differ in when they ran, and each build in a
separate process.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from repro.bundle.contents import write_bundle
from repro.bundle.source import is_bundle, open_record
from repro.core.errors import ReproError, UsageError
from repro.core.files import write_bytes
from repro.core.frozen import Frozen
from repro.core.machine import count_cores
from repro.record.folder import index

BUNDLES, SECONDS = 500, 60.0
"""Limit promised by the project for a board that reads every bundle, on two cores."""
DAY_MS = 86_400_000
TIMES = re.compile(rb'("(?:time_ms|started_ms|at_ms)": ?)([0-9]{12,})')
"""Times of day in the files of a record: whole milliseconds since 1970. Decimals stay, so no duration changes."""


class BuildCost(Frozen):
    """Time and memory of one build."""

    seconds: float
    cpu_seconds: float
    """Processor time of all its processes, in their own code and in the kernel's."""
    peak_mebibytes: float
    """Memory of its largest process."""


class BoardScale(Frozen):
    """Size of a folder of bundles, and the cost of building its board."""

    bundles: int
    sources: int
    """Bundles that the others are copies of."""
    trials: int
    """Logs of all bundles, each of which a build derives its result from again."""
    megabytes: float
    """Size of all bundles, 10^6 bytes."""
    cores: int
    first: BuildCost
    again: BuildCost
    """The same command once more, which finds the pages of the first."""
    site_megabytes: float
    load: tuple[float, float]
    """Average of one minute before the first build and after the second; that includes the builds."""

    def text(self) -> str:
        """Format the result for the terminal."""
        lines = [f"{self.bundles:,} bundles, {self.megabytes:,.0f} MB, {self.trials:,} logs; copies of {self.sources}, "
                 "each with another start"]
        lines += [f"  {name:<12} {item.seconds:>7.2f} s  {item.cpu_seconds:>7.2f} CPU s  "
                  f"{item.peak_mebibytes:>6.0f} MiB at most"
                  for name, item in (("first build", self.first), ("second", self.again))]
        lines += [f"  the site     {self.site_megabytes:>7.0f} MB",
                  f"promised: {BUNDLES} bundles within {SECONDS:g} s on two cores"]
        lines += [f"not held: the first build took {self.first.seconds:.1f} s"] if self.broken else []
        return "\n".join([*lines, f"measured on this machine, now: {self.cores} cores, load {self.load[0]:.1f} before "
                          f"and {self.load[1]:.1f} after"])

    @property
    def broken(self) -> bool:
        """Return True if as many bundles as promised, or fewer, took longer than promised."""
        return self.bundles <= BUNDLES and self.first.seconds > SECONDS


def measure(folder: Path, bundles: int = BUNDLES) -> BoardScale:
    """Make `bundles` bundles from those in `folder`, and build a board of them twice.

    Raises:
        UsageError: there is no bundle in `folder`.
        ReproError: a bundle cannot be read, or a build does not verify all of them.
    """
    sources = sorted(path for path in folder.glob("*.zip") if is_bundle(path))
    if not sources:
        raise UsageError(f"{folder}: holds no bundle (.zip)")
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as name:
        root = Path(name)
        trials = sum(make_bundles(sources, root / "records", bundles))
        before = os.getloadavg()[0]
        first, again = (_built(root / "records", root / "site", bundles) for _ in range(2))
        return BoardScale(
            bundles=bundles, sources=min(len(sources), bundles), trials=trials, megabytes=_megabytes(root / "records"),
            cores=count_cores(), first=first, again=again, site_megabytes=_megabytes(root / "site"),
            load=(before, os.getloadavg()[0]))


def make_bundles(sources: Sequence[Path], out: Path, count: int) -> list[int]:
    """Write `count` bundles made from `sources` in turn; return the number of logs of each.

    Each round of copies started a day before the last one: in its environment, its ledger and every line of its logs.
    They are packed as `repro bundle` packs: each is a record that `repro verify` accepts and that no other one equals.
    """
    work = partial(_make, sources=list(sources), out=out)
    with ProcessPoolExecutor(max_workers=count_cores()) as pool:
        return list(pool.map(work, range(count), chunksize=8))


def _make(number: int, sources: Sequence[Path], out: Path) -> int:
    """Write one of the bundles; return the number of its logs."""
    earlier, which = divmod(number, len(sources))
    source = sources[which]
    with open_record(source) as folder:
        members = [item for item in index.members(folder) if not item.refusal]
        for item in members:
            before = item.path.read_bytes()
            after = TIMES.sub(lambda found: b"%s%d" % (found[1], int(found[2]) - earlier * DAY_MS), before)
            if after != before:
                write_bytes(item.path, after)
        write_bundle(folder, out / f"{source.stem}-{earlier:03d}.zip")
        return sum(item.path.match("trials/*/result_*.txt") for item in members)


def _built(records: Path, site: Path, bundles: int) -> BuildCost:
    """Build the board in a separate process.

    Raises:
        ReproError: it failed, or did not verify every bundle.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "repro", "board", str(records), "--out", str(site)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)  # already waited for
        said.seek(0)
        wanted = f" {bundles} record{'s' if bundles != 1 else ''}, {bundles} verified"
        if process.returncode or wanted not in said.read().decode():
            raise ReproError(f"repro board ended with {process.returncode} and did not verify all {bundles} bundles")
    return BuildCost(seconds=seconds, cpu_seconds=usage.ru_utime + usage.ru_stime,
                     peak_mebibytes=usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10))


def _megabytes(root: Path) -> float:
    return math.fsum(path.stat().st_size for path in root.rglob("*") if path.is_file()) / 1e6
