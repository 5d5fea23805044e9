"""A/A calibration: how often a comparison of a cell with itself reports a difference, although there is none.

A null is one comparison, by the same code as any other, of a cell with its twin: the same cell, run again with the same
seeds, interleaved. Every reported difference on a null is wrong; their share, with Wilson's interval, is the harness's
false-positive rate on a machine. A calibration fails if they are too many, or if the twins differ over all pairs
(`repro.compare.design.twins`). Repeats of one cell dealt to two sides at random would hold their level on any machine,
and so are no null.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from repro import stats
from repro.compare import Comparison, Pair, Verdict, contrast
from repro.compare.design.twins import ASSUMED, BIAS_LEVEL, Bias, bias, fewest_wrong, smallest_found
from repro.compare.evidence.evidence import NO_SPREAD
from repro.compare.figures import Bounds
from repro.core.errors import ReproError, UsageError
from repro.core.files import read_model, write_model
from repro.core.frozen import FORMAT, Formatted, Frozen
from repro.core.machine import user_folder
from repro.record.environment.environment import Environment
from repro.record.folder.store import Record
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan, planned_order

DIFFERENT: tuple[Verdict, ...] = ("faster", "slower", "higher", "lower")
LEAST_PAIRS = 6
"""Fewer pairs can never be significant: as nulls they would only make the rate look low."""
FILE = "calibration.json"
POOLED = ", in a pool"


class Null(Frozen):
    """One comparison of a cell with itself."""

    source: str
    """The run, and the part of it, that the null is from: no source counts twice."""
    cell_id: str
    label: str
    metric: Metric
    how: Literal["twins"] = "twins"
    n: int
    """Trials per side."""
    ratio: float | None
    p: float | None
    verdict: Verdict
    pairs: tuple[Pair, ...] = ()

    @property
    def run(self) -> str:
        """The run of its source."""
        return self.source.partition("#")[0]

    @property
    def false_positive(self) -> bool:
        return self.verdict in DIFFERENT


class Calibration(Formatted):
    """The nulls of one suite on one machine, and their false-positive rate."""

    suite: str
    suite_digest: str
    method: str
    machine: str
    nulls: tuple[Null, ...] = Field(min_length=1)
    false_positives: int
    n: int
    rate: Bounds
    """Wilson interval of the false-positive rate."""

    @cached_property
    def bias(self) -> Bias | None:
        """The second twins against the first; None: no pairs, or no spread."""
        return bias([pair for item in self.nulls for pair in item.pairs])

    @property
    def failures(self) -> tuple[str, ...]:
        """Faults of the harness on this machine; a harness without one has an entry in at most 5 % of calibrations."""
        fewest, found = fewest_wrong(self.n), []
        if fewest is not None and self.false_positives >= fewest:
            found.append("more wrong verdicts than the promised 5 % give (exact binomial)")
        if self.bias is not None and self.bias.p <= BIAS_LEVEL:
            found.append("one of two equal cells is favoured")
        return tuple(found)

    @property
    def word(self) -> str:
        """`calibrated`, or that the calibration failed."""
        return "calibration failed" if self.failures else "calibrated"

    @property
    def unfound(self) -> str:
        """Say what these nulls could have found; less than that, they could not."""
        pairs = sum(len(item.pairs) for item in self.nulls)
        return (f"{smallest_found(self.n, pairs, self.bias.spread if self.bias else ASSUMED)} are found with 80 % "
                "probability; less than that, or what acts on both twins alike, this could not have found")

    def sentence(self) -> str:
        """`1 of 24 comparisons of a cell with itself gave a difference: 4.2 % (95 % interval 0.7 % to 20.2 %)`."""
        low, high, share = (f"{value:.1%}".replace("%", " %")
                            for value in (self.rate.low, self.rate.high, self.false_positives / self.n))
        rate = (f"{self.false_positives} of {self.n} comparisons of a cell with itself gave a difference: {share} "
                f"({self.rate.level:.0%} interval {low} to {high})").replace("95% i", "95 % i")
        twins = () if self.bias is None else (
            f"second twin / first: {self.bias.ratio:.4f} ({100 * self.bias.interval.level:.0f} % interval "
            f"{self.bias.interval.low:.4f} to {self.bias.interval.high:.4f}, p = {self.bias.p:.2g})",)
        return "; ".join((rate, *twins, *self.failures))


def machine_of(environment: Environment) -> str:
    """Return the name of the machine that a false-positive rate is valid for."""
    devices = ", ".join(dict.fromkeys(str(device) for device in environment.devices))
    return f"{environment.cpu}, {environment.cores} cores, {environment.device}{f' ({devices})' if devices else ''}"


def conditions_of(record: Record) -> str:
    """Return what a false-positive rate is valid for: the machine, and whether all lanes of a pool ran at once."""
    return machine_of(record.environment) + (POOLED if _pooled(record) else "")


def _pooled(record: Record) -> bool:
    return any(item.shard for item in record.attempts)


def calibration(suite: str, digest: str, method: str, machine: str, nulls: Iterable[Null]) -> Calibration:
    """Count the nulls.

    Raises:
        UsageError: there is none.
    """
    kept = tuple(sorted(nulls, key=lambda item: (item.source, item.cell_id)))
    if not kept:
        raise UsageError("no comparison of a cell with itself, so there is no rate")
    wrong = sum(item.false_positive for item in kept)
    rate = stats.wilson(wrong, len(kept))
    return Calibration(
        format=FORMAT, suite=suite, suite_digest=digest, method=method, machine=machine, nulls=kept,
        false_positives=wrong, n=len(kept), rate=Bounds(low=rate.low, high=rate.high, level=rate.level),
    )


def twin_plan(plan: Plan, cells: Sequence[Cell], pairs: int, nulls: int) -> Plan:
    """Return a plan of every cell twice with the same seeds, interleaved: `nulls` groups of `pairs` seeds each.

    The two cells differ in their side only, which is part of the twin's name. The digest stays the suite's, because
    these nulls are about its verdicts.

    Raises:
        UsageError: fewer pairs than can be significant, or more seeds than a suite may have.
    """
    if pairs < LEAST_PAIRS:
        raise UsageError(f"--pairs {pairs}: fewer than {LEAST_PAIRS} pairs can never be significant, so they calibrate "
                         "nothing")
    if pairs * nulls > 1000:
        raise UsageError(f"{nulls} x {pairs} pairs are {pairs * nulls} seeds; a suite has 1000 at most")
    suite = plan.suite.model_copy(update={
        "title": f"A/A: cells of {plan.suite.suite} against themselves", "seeds": pairs * nulls, "matrix": {},
        "exclude": [], "baseline": {}, "primary": None, "sequential": None,
    })
    twins = plan.model_copy(update={
        "suite": suite, "cells": tuple(item for cell in cells for item in cell.twins()), "skipped": (),
        "smoke_note": "", "kind": "calibration",
        "notes": ("A/A calibration: the two cells of a pair have the same choices and the same seeds",),
    })
    return twins.model_copy(update={"order": tuple(planned_order(twins))})


def nulls_of(record: Record, cells: Sequence[Cell], metric: Metric, pairs: int) -> tuple[list[Null], list[str]]:
    """Return (the nulls of a record, why some cells gave none): twins are compared in groups of `pairs` seeds."""
    found: list[Null] = []
    problems: list[str] = []
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.twin_of or cell.cell_id, []).append(cell)
    source = f"{record.plan.digest[:16]}@{record.environment.started_ms:.0f}"
    for group in groups.values():
        made = _twins(record, group[0], group[1], metric, pairs, source) if len(group) > 1 else \
            ["it was run without a twin; `repro calibrate SUITE` runs both"]
        found += [item for item in made if isinstance(item, Null)]
        problems += [f"{group[0].label}: {item}" for item in made if isinstance(item, str)]
    return found, problems


def _twins(record: Record, one: Cell, other: Cell, metric: Metric, pairs: int, source: str) -> list[Null | str]:
    ours = {item.repeat: item for item in record.of_cell(one.cell_id)}
    theirs = {item.repeat: item for item in record.of_cell(other.cell_id)}
    shared = sorted(ours.keys() & theirs.keys())
    groups = [shared[start:start + pairs] for start in range(0, len(shared) - pairs + 1, pairs)]
    if not groups or pairs < LEAST_PAIRS:
        return [f"{len(shared)} seeds ran on both sides; a null requires {max(pairs, LEAST_PAIRS)}"]
    return [
        _null(one, contrast(other, one, [theirs[repeat] for repeat in group], [ours[repeat] for repeat in group],
                            metric, primary=True), f"{source}#{group[0]}-{group[-1]}")
        for group in groups
    ]


def _null(cell: Cell, found: Comparison, source: str) -> Null | str:
    if found.p is None:
        return f"no verdict was possible: {found.because}"
    if found.pairs and all(math.isclose(pair.candidate, pair.baseline, rel_tol=NO_SPREAD) for pair in found.pairs):
        return (f"both sides have exactly the same {METRICS[found.metric].noun} in all {found.n} pairs: figures "
                "without chance cannot show how often chance looks like a difference")
    return Null(source=source, cell_id=cell.cell_id, label=cell.plain_label, metric=found.metric, n=found.n,
                ratio=found.ratio, p=found.p, verdict=found.verdict, pairs=found.pairs)


def place_for(digest: str, pooled: bool = False) -> Path:
    """Return the file of a user's calibrations of a suite, those in a pool apart.

    Raises:
        UsageError: the user has no home folder.
    """
    name = f"{digest}-pool.json" if pooled else f"{digest}.json"
    return user_folder("XDG_DATA_HOME", ".local/share") / "repro" / "calibration" / name


def add(path: Path, found: Calibration) -> Calibration:
    """Add nulls to those in a file; nulls of the same run and cell are replaced, however its pairs were grouped.

    Raises:
        UsageError: the file holds nulls of another suite or machine.
        OutputError: it cannot be read or written.
    """
    if path.is_file():
        there = read_model(path, Calibration)
        for what, old, new in (("suite digest", there.suite_digest, found.suite_digest),
                               ("machine", there.machine, found.machine)):
            if old != new:
                raise UsageError(f"{path}: holds nulls of another {what} ({old}, not {new}); --to names another file")
        again = {(item.run, item.cell_id) for item in found.nulls}
        kept = [item for item in there.nulls if (item.run, item.cell_id) not in again]
        found = calibration(found.suite, found.suite_digest, found.method, found.machine, [*kept, *found.nulls])
    write_model(path, found)
    return found


def calibration_of(record: Record) -> Calibration | None:
    """Return the calibration in the run folder, else the user's own for its suite; None: not calibrated.

    One of another suite or machine says nothing about this record and is ignored.

    Raises:
        OutputError: a file is damaged.
    """
    if (kept := read_kept_calibration(record)) is not None:
        return kept
    try:
        own = place_for(record.plan.digest, _pooled(record))
    except UsageError:  # who has no home folder has no calibration there
        return None
    return _fitting(own, record)


def read_kept_calibration(record: Record) -> Calibration | None:
    """Return the calibration in the run folder; a report reads no other, so that it depends on the record alone."""
    return _fitting(record.folder.root / FILE, record)


def keep_calibration(record: Record) -> str:
    """Copy the user's own calibration into the run folder, if it fits and the folder has none yet.

    Returns:
        Why it could not be copied, else "". A run that has ended never fails because of it.
    """
    target = record.folder.root / FILE
    try:
        found = None if os.path.lexists(target) else _fitting(place_for(record.plan.digest, _pooled(record)), record)
        if found is not None:
            write_model(target, found)
    except (ReproError, OSError) as error:
        return f"the calibration of this suite was not copied into the run folder: {error}"
    return ""


def _fitting(path: Path, record: Record) -> Calibration | None:
    if not path.is_file():
        return None
    found = read_model(path, Calibration)
    if found.suite_digest != record.plan.digest or found.machine != conditions_of(record):
        return None
    return calibration(found.suite, found.suite_digest, found.method, found.machine, found.nulls)
