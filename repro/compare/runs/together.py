"""Several independent records of one suite together: the mean ratio over a population of runs, without a verdict.

No verdict word, because the choice of records was not declared beforehand. Runs that share a master seed,
reproductions among them, have trained the same models: only the first of them counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from repro.compare import Metric, compare
from repro.compare.figures import Comparison
from repro.compare.runs.merge import names_of
from repro.compare.runs.run_warnings import alterations, run_warnings
from repro.compare.runs.runs import check_metric
from repro.compare.runs.two_runs import differing
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.record.environment.differences import changed_data
from repro.record.folder.store import Record, read_plan, read_record
from repro.stats.interval import from_log
from repro.stats.random_effects import RandomEffects, random_effects
from repro.suite.metrics import METRICS

LEAST_PAIRS = 5
"""Fewest pairs of a record whose spread says how far its ratio may be off."""


class Part(Frozen):
    """The estimate of one record."""

    name: str
    master_seed: int
    pairs: int
    ratio: float | None
    log_mean: float
    """Mean of the log ratios of its pairs; 0.0 if it does not count."""
    variance: float
    """Of that mean, from the spread of the pairs."""
    left_out: str
    """Reason why it does not count; "" if it does."""

    @classmethod
    def of(cls, name: str, record: Record, item: Comparison | None) -> Self:
        """Return the estimate of a record; None: it has not both cells."""
        logs = np.log(item.judged_ratios) if item is not None and item.ratio is not None else np.zeros(0)
        reason = alterations(record) or _unfit(item, logs)
        return cls(
            name=name, master_seed=record.plan.master_seed, pairs=item.n if item else 0,
            ratio=item.ratio if item else None,
            log_mean=0.0 if reason else float(logs.mean()),
            variance=0.0 if reason else float(logs.var(ddof=1)) / len(logs), left_out=reason)


def over_records(parts: Sequence[Part]) -> tuple[tuple[Part, ...], RandomEffects | None]:
    """Return the estimates, of those that share a master seed the first alone counting, and the mean over the records
    that count; None: fewer than two."""
    seeds: dict[int, str] = {}
    found = []
    for part in parts:
        mate = part.name if part.left_out else seeds.setdefault(part.master_seed, part.name)
        found.append(part if mate == part.name else part.model_copy(
            update={"left_out": f"it has the master seed of {mate}, so both are one record"}))
    counted = [part for part in found if not part.left_out]
    return tuple(found), random_effects([part.log_mean for part in counted], [part.variance for part in counted]) \
        if len(counted) > 1 else None


@dataclass(frozen=True, slots=True)
class Contrast:
    """One contrast over all records."""

    label: str
    metric: str
    parts: tuple[Part, ...]
    effects: RandomEffects | None
    """Of log ratios; None: fewer than two records count."""

    def as_json(self) -> dict[str, Any]:
        found = self.effects
        return {
            "contrast": self.label, "metric": self.metric,
            "records": [{"name": item.name, "pairs": item.pairs, "ratio": item.ratio, "left_out": item.left_out}
                        for item in self.parts],
            "together": None if found is None else {
                "count": found.count, "ratio": from_log(found.mean), "level": found.interval.level,
                "low": from_log(found.interval.low), "high": from_log(found.interval.high),
                "heterogeneity": found.heterogeneity, "heterogeneity_p": found.heterogeneity_p,
                "between": found.between, "inconsistent": found.inconsistent,
                "prediction": None if found.prediction is None else
                [from_log(found.prediction.low), from_log(found.prediction.high)]}}

    def lines(self) -> list[str]:
        """Return the contrast as text: the mean first, then each record."""
        found, each = self.effects, [
            f"  {item.name}: " + (f"not counted: {item.left_out}" if item.left_out or item.ratio is None else
                                  f"{item.ratio:.4f} ({item.pairs} pairs)") for item in self.parts]
        if found is None:
            return [f"{self.label}: fewer than two records count", *each]
        low, high = from_log(found.interval.low), from_log(found.interval.high)
        first = (f"{self.label}: {from_log(found.mean):.4f} x {METRICS[self.metric].times} on average over "
                 f"{found.count} independent records (95 % interval {low:.4f} to {high:.4f})")
        spread = (f"  between records: standard deviation {100 * found.between:.2g} %, I2 "
                  f"{100 * found.inconsistent:.0f} % (Q = {found.heterogeneity:.3g}, p = {found.heterogeneity_p:.2g})")
        if found.prediction is not None:
            spread += (f"; another record: {from_log(found.prediction.low):.4f} to "
                       f"{from_log(found.prediction.high):.4f}")
        return [first, spread, *each]


@dataclass(frozen=True, slots=True)
class Together:
    """All contrasts of several records."""

    suite: str
    digest: str
    contrasts: tuple[Contrast, ...]
    warnings: tuple[str, ...] = ()
    """In which machines, libraries or code the records differ, and how they were made."""
    note: str = ("no verdict: the choice of records was not declared before they ran, and it can decide the answer")

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, "suite": self.suite, "suite_digest": self.digest, "note": self.note,
                "warnings": list(self.warnings), "contrasts": [item.as_json() for item in self.contrasts]}

    def text(self) -> str:
        return "\n".join([f"{self.suite}, digest {self.digest[:16]}: random effects over records (DerSimonian-Laird, "
                          "Hartung-Knapp)", *(line for item in self.contrasts for line in item.lines()),
                          *(f"warning: {text}" for text in self.warnings), self.note])


def independent(roots: Sequence[Path]) -> bool:
    """Return whether these are three records or more, none of them one of several searches of a tuning."""
    return len(roots) > 2 and all(read_plan(root / "plan.json").searches <= 1 for root in roots)


def together(roots: Sequence[Path], metric: Metric | None = None) -> Together:
    """Combine the records of one suite, each contrast by itself.

    Raises:
        UsageError: they are not independent records of one suite and method, have no contrast, or cannot have the
            metric.
        OutputError: one cannot be read.
    """
    records = [read_record(root) for root in roots]
    first, names = records[0], names_of([root.resolve() for root in roots])
    for name, record in zip(names, records, strict=True):
        if (record.plan.digest, record.plan.method) != (first.plan.digest, first.plan.method):
            raise UsageError(f"{name}: is of another suite or method than {names[0]} (digest {record.plan.digest[:16]} "
                             f"against {first.plan.digest[:16]}); only records of one suite are combined")
        if changed := changed_data(first.environment, record.environment):
            raise UsageError(f"{name}: is of other data than {names[0]} ({'; '.join(changed)}); only records of the "
                             "same data are combined")
    if len({record.plan.master_seed for record in records}) < 2:
        raise UsageError(f"all {len(records)} runs have the master seed {first.plan.master_seed}, so they are one "
                         "record; records are independent if each has its own seeds. Several runs of each side: "
                         "--against")
    if metric is not None:
        check_metric(metric, records)
    found = [compare(record.plan, record.results, metric, execution=record.execution) for record in records]
    keys = {(item.candidate, item.baseline): item for each in reversed(found) for item in reversed(each)}
    if not keys:
        raise UsageError(f"{names[0]}: no cell of this suite has a baseline, so there is nothing to combine")
    contrasts = []
    for key, shown in reversed(keys.items()):
        parts, effects = over_records([
            Part.of(name, record, next((item for item in each if (item.candidate, item.baseline) == key), None))
            for name, record, each in zip(names, records, found, strict=True)])
        contrasts.append(Contrast(f"{shown.candidate_label} against {shown.baseline_label}", shown.metric, parts,
                                  effects))
    told = [text for record in records[1:] for text in differing(first.environment, record.environment)]
    told += [f"{item.line} [{name}]" for name, record in zip(names, records, strict=True)
             for item in run_warnings(record) if not item.is_note]
    return Together(first.plan.suite.suite, first.plan.digest, tuple(contrasts), tuple(dict.fromkeys(told)))


def _unfit(item: Comparison | None, logs: np.ndarray) -> str:
    """Return why a record's contrast cannot be combined with others; "" if it can."""
    if item is None:
        return "it has not both cells"
    if item.refused or item.ratio is None:
        return item.because
    if item.failures is not None:
        return "trials missed their target, so that its ratio is one of those that did not"
    if item.look is not None:
        return "it ended at a look, so that its ratio is biased"
    if not item.paired or len(logs) < LEAST_PAIRS:
        return f"{len(logs)} pairs do not tell how far its ratio may be off"
    return "" if math.isfinite(float(logs.sum())) and float(logs.var()) > 0 else "its pairs have no spread"
