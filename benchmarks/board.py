"""Time to build a board of many bundles: copies of a few real ones that differ in when they ran, in a separate
process.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.command import CommandCost, timed
from repro.bundle.contents import write_bundle
from repro.bundle.source import is_bundle, open_record
from repro.core.errors import UsageError
from repro.core.files import write_bytes
from repro.core.frozen import Frozen
from repro.core.machine import count_cores
from repro.record.folder import index

BUNDLES, SECONDS = 500, 60.0
"""Limit promised by the project for a board that reads every bundle, on two cores."""
DAY_MS = 86_400_000
TIMES = re.compile(rb'("(?:time_ms|started_ms|at_ms)": ?)([0-9]{12,})')
"""Times of day in the files of a record: whole milliseconds since 1970. Decimals stay, so no duration changes."""


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
    build: CommandCost
    site_megabytes: float
    load: tuple[float, float]
    """Average of one minute before and after the build; the latter includes it."""

    def text(self) -> str:
        """Format the result for the terminal."""
        lines = [f"{self.bundles:,} bundles, {self.megabytes:,.0f} MB, {self.trials:,} logs; copies of {self.sources}, "
                 "each with another start"]
        lines += [f"  the build    {self.build.seconds:>7.2f} s  {self.build.cpu_seconds:>7.2f} CPU s  "
                  f"{self.build.peak_mebibytes:>6.0f} MiB at most",
                  f"  the site     {self.site_megabytes:>7.0f} MB",
                  f"promised: {BUNDLES} bundles within {SECONDS:g} s on two cores"]
        lines += [f"not held: the build took {self.build.seconds:.1f} s"] if self.broken else []
        return "\n".join([*lines, f"measured on this machine, now: {self.cores} cores, load {self.load[0]:.1f} before "
                          f"and {self.load[1]:.1f} after"])

    @property
    def broken(self) -> bool:
        """Return True if as many bundles as promised, or fewer, took longer than promised."""
        return self.bundles <= BUNDLES and self.build.seconds > SECONDS


def measure(folder: Path, bundles: int = BUNDLES) -> BoardScale:
    """Make `bundles` bundles from those in `folder`, and build a board of them.

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
        verified = f" {bundles} record{'s' if bundles != 1 else ''}, {bundles} verified"
        build = timed("board", ["board", str(root / "records"), "--out", str(root / "site")], verified)
        return BoardScale(
            bundles=bundles, sources=min(len(sources), bundles), trials=trials, megabytes=_megabytes(root / "records"),
            cores=count_cores(), build=build, site_megabytes=_megabytes(root / "site"),
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


def _megabytes(root: Path) -> float:
    return math.fsum(path.stat().st_size for path in root.rglob("*") if path.is_file()) / 1e6
