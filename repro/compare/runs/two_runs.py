"""Comparison of the same cells of two runs: the conditions that allow it, and its cautions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from repro.compare.evidence.evidence import ComparisonRequest, Evidence, examine
from repro.compare.evidence.pairing import PAIRED_HASHES, cell_trials, mismatch
from repro.compare.figures import Comparison
from repro.compare.verdict.verdict import judged
from repro.core.errors import UsageError
from repro.record.environment.differences import changed_data, changed_plugins
from repro.record.environment.environment import Environment
from repro.record.result.results import Result
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.planning.plan import Plan

SEPARATE = "each run has its own state of the machine"
TWO_RUNS = ("two separate runs are not pairs: a machine 1 % slower in one of them looks like a difference; put both "
            "cells into one suite, whose trials take turns, or give five runs of each, made in turns, with --against")


@dataclass(frozen=True, slots=True)
class Named:
    """A cell with a name that includes its run."""

    cell_id: str
    label: str
    choices: Any


@dataclass(frozen=True, slots=True)
class Ran:
    """One run, as far as a comparison of two needs it."""

    name: str
    plan: Plan
    results: Sequence[Result]
    environment: Environment | None = None

    def results_of(self, cell_id: str) -> list[Result]:
        """Return the results of one cell."""
        return [item for item in self.results if item.cell_id == cell_id]


def versus(first: Ran, second: Ran, metric: Metric | None = None, force: bool = False) -> list[Comparison]:
    """Compare every cell of the second run with the same cell of the first: one family, with Holm's correction.

    A machine that is 1 or 2 % slower in one of two runs gives every pair the same shift, and no test within them can
    tell it from a difference of the cells. So a figure that a clock is in gets no verdict from two runs: its ratio is
    shown unpaired and labelled. Counts and qualities do not depend on the machine's speed: they are paired by seed if
    both runs have the same seeds and their hashes agree, else Welch on logs.

    Args:
        force: compare runs of different suites or methods too, with a caution on every comparison.

    Raises:
        UsageError: the suite digests or the methods differ without `force`, or the runs share no cell.
    """
    cautions = (*forced(first, second, force), *_cautions(first, second))
    chosen = metric or second.plan.suite.metric
    earlier = {cell.cell_id: cell for cell in first.plan.cells}
    shared = [cell for cell in second.plan.cells if cell.cell_id in earlier]
    if not shared:
        raise UsageError(f"{first.name} and {second.name} have no cell in common")
    before, after = _by_cell(first.results), _by_cell(second.results)
    return judged([
        _without_tests(examine(
            Named(cell.cell_id, f"{cell.label} [{second.name}]", cell.choices),
            Named(cell.cell_id, f"{earlier[cell.cell_id].label} [{first.name}]", earlier[cell.cell_id].choices),
            after.get(cell.cell_id, []), before.get(cell.cell_id, []),
            _request(first, second, after.get(cell.cell_id, []), before.get(cell.cell_id, []), chosen, cautions),
        ))
        for cell in shared
    ])


def _without_tests(item: Evidence) -> Evidence:
    """Return it without p where there is no verdict: the trials of one run are no sample of what runs differ by."""
    return item if item.asked.withhold else replace(item, p=None, floor=1.0, equivalence=None)


def _request(first: Ran, second: Ran, after: Sequence[Result], before: Sequence[Result], metric: Metric,
           cautions: tuple[str, ...]) -> ComparisonRequest:
    suite = second.plan.suite
    clocked = METRICS[metric].clocked
    unpaired = SEPARATE if clocked else why_unpaired(after, before, metric)
    instead = "its ratio and interval do not contain it" if clocked else "Welch on logs instead"
    said = (f"not paired: {unpaired}; {instead}",) if unpaired else ()
    missing = tuple(
        f"{len(found)} of {run.plan.design.common} planned trials of {run.name} have run; no verdict before all have"
        for run, found in ((first, before), (second, after)) if len(found) < run.plan.design.common)
    return ComparisonRequest(
        metric=metric, margin=suite.margin, horizon=suite.horizon, paired=not unpaired, cautions=(*cautions, *said),
        refusals=(TWO_RUNS, *missing) if clocked else missing, withhold=not clocked)


def why_unpaired(candidate: Sequence[Result], baseline: Sequence[Result], metric: Metric) -> str:
    """Return why trials of one seed of two runs are not pairs; "" if they are."""
    ours, theirs = (cell_trials(name, found, METRICS[metric]) for name, found in (("", candidate), ("", baseline)))
    if ours.results.keys() != theirs.results.keys():
        return f"{ours.n} seeds in one run and {theirs.n} in the other, not the same ones"
    known = all(name in item.hashes for item in (*candidate, *baseline) for name in PAIRED_HASHES
                if item.status == "ok")
    if not known:
        return "not all trials have their hashes"
    return unlike.text if (unlike := mismatch(ours, theirs)) else ""


def forced(first: Ran, second: Ran, force: bool) -> tuple[str, ...]:
    """Return a caution about differences that only `force` allows.

    Raises:
        UsageError: there are differences, and nothing is forced.
    """
    found = []
    if first.plan.digest != second.plan.digest:
        found.append(f"suite digest {first.plan.digest[:16]} of {first.plan.suite.suite!r} against "
                     f"{second.plan.digest[:16]} of {second.plan.suite.suite!r}")
    if first.environment is not None and second.environment is not None:
        if found:  # the source of a class from a file is part of the digest, that of a package is not
            found += [f"other code of {text}" for text in changed_plugins(first.environment, second.environment)]
        found += changed_data(first.environment, second.environment)
    if found and not force:
        raise UsageError(f"{first.name} and {second.name} cannot be compared: {'; '.join(found)}. Only runs of one "
                         "suite and the same data can; --force compares them anyway and marks the result")
    return (f"FORCED: these runs are of different experiments ({'; '.join(found)})",) if found else ()


def _cautions(first: Ran, second: Ran) -> tuple[str, ...]:
    """Return cautions: two runs are never interleaved, and may be from different machines."""
    found = ["the runs were made one after the other, not interleaved: a change of the machine looks like a change of "
             "the cells"]
    one, other = first.environment, second.environment
    if one is not None and other is not None:
        differ = [name for name in ("cpu", "cores", "device", "devices", "python", "commit")
                  if getattr(one, name) != getattr(other, name)]
        names = sorted({*one.libraries, *other.libraries})
        differ += [name for name in names if one.libraries.get(name) != other.libraries.get(name)]
        differ += changed_plugins(one, other)
        if differ:
            found.append(f"the runs differ in {', '.join(differ)}")
    return tuple(found)


def _by_cell(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.cell_id, []).append(result)
    return found
