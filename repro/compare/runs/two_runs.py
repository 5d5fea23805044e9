"""Comparison of the same cells of two runs, or of several of each side: what allows it, and its cautions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from repro.compare.cells import Named
from repro.compare.design.standing import Standing, asked_otherwise
from repro.compare.evidence.blocks import blocks_of
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.evidence.pairing import PAIRED_HASHES, cell_trials, mismatch
from repro.compare.evidence.pooled import MeanTrial, mean_trial
from repro.compare.figures import Comparison
from repro.compare.qualifiers import Failures
from repro.compare.verdict.verdict import judged
from repro.core.errors import UsageError
from repro.record.environment.differences import changed_data, changed_plugins
from repro.record.environment.environment import Environment
from repro.record.folder.execution import Execution
from repro.record.result.results import Result
from repro.suite.metrics import METRICS, MetricSpec
from repro.suite.model import Metric
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

SEPARATE = "each run has its own state of the machine"
TWO_RUNS = ("two separate runs are not pairs: a machine that is 1 % slower, or fuller, in one of them looks like a "
            "difference; put both cells into one suite, whose trials take turns, or give five runs of each, made in "
            "turns (ABBA), with --against")


@dataclass(frozen=True, slots=True)
class Ran:
    """One run, as far as a comparison of two needs it."""

    name: str
    plan: Plan
    results: Sequence[Result]
    environment: Environment | None = None
    execution: Execution | None = None


def versus(first: Ran, second: Ran, metric: Metric | None = None, force: bool = False) -> list[Comparison]:
    """Compare every cell of the second run with the same cell of the first: one family, with Holm's correction.

    A machine that is 1 or 2 % slower in one of two runs gives every pair the same shift, and no test within them can
    tell it from a difference of the cells. So a figure that the machine is in, a time or a memory, gets no verdict from
    two runs: its ratio is shown unpaired and labelled. Samples and qualities, which training alone decides, are paired
    by seed if both runs have the same seeds and their hashes agree, else Welch on logs.

    Args:
        force: compare runs of different suites or methods too, with a caution on every comparison.

    Raises:
        UsageError: the suite digests or the methods differ without `force`, or the runs share no cell.
    """
    chosen = metric or second.plan.suite.metric
    cautions = (*forced(first, second, force), *_cautions(first, second), *asked_otherwise(second.plan.suite, chosen))
    earlier = {cell.cell_id: cell for cell in first.plan.cells}
    shared = [cell for cell in second.plan.cells if cell.cell_id in earlier]
    if not shared:
        raise UsageError(f"{first.name} and {second.name} have no cell in common")
    before, after = ({cell.cell_id: _common(run, cell) for cell in shared} for run in (first, second))
    found = [
        examine(
            Named(cell.cell_id, f"{cell.label} [{second.name}]", cell.choices),
            Named(cell.cell_id, f"{earlier[cell.cell_id].label} [{first.name}]", earlier[cell.cell_id].choices),
            after[cell.cell_id], before[cell.cell_id],
            _request(first, second, after[cell.cell_id], before[cell.cell_id], chosen, cautions),
        )
        for cell in shared
    ]
    if not METRICS[chosen].by_training:  # no verdict, so no p: the trials of one run are no sample of runs
        found = [replace(item, p=None, floor=1.0, equivalence=None) for item in found]
    return judged(found)


def _request(first: Ran, second: Ran, after: Sequence[Result], before: Sequence[Result], metric: Metric,
           cautions: tuple[str, ...]) -> ComparisonRequest:
    suite = second.plan.suite
    trained = METRICS[metric].by_training
    unpaired = why_unpaired(after, before, metric) if trained else SEPARATE
    instead = "Welch on logs instead" if trained else "its ratio and interval do not contain it"
    said = (f"not paired: {unpaired}; {instead}",) if unpaired else ()
    missing = tuple(
        f"{len(found)} of {run.plan.design.common} planned trials of {run.name} have run; no verdict before all have"
        for run, found in ((first, before), (second, after)) if len(found) < run.plan.design.common)
    return ComparisonRequest(
        metric=metric, margin=suite.margin, horizon=suite.horizon_of(metric), paired=not unpaired,
        cautions=(*cautions, *said),
        refusals=missing if trained else (TWO_RUNS, *missing), withhold=trained)


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
    return ("the runs were made one after the other, not interleaved: a change of the machine looks like a change of "
            "the cells", *differing(first.environment, second.environment))


def differing(one: Environment | None, other: Environment | None) -> tuple[str, ...]:
    """Return the caution that two runs are of different machines, libraries or code."""
    if one is None or other is None:
        return ()
    differ = [name for name in ("cpu", "cores", "device", "devices", "python", "commit")
              if getattr(one, name) != getattr(other, name)]
    differ += sorted({name for name, _ in one.libraries.items() ^ other.libraries.items()})
    differ += changed_plugins(one, other)
    return (f"the runs differ in {', '.join(differ)}",) if differ else ()


UNIT = ("each figure is the geometric mean of one run's trials: the run is the unit, because its trials share the "
        "state of the machine")
ABBA = "make them in couples, one run of each side, whose order changes from couple to couple: ABBA ABBA ..."
NOT_IN_TURNS = ("the runs of the two sides were not made in turns, so a change of the machine meanwhile looks like a "
                f"difference; {ABBA}")


def versus_several(
    before: Sequence[Ran], after: Sequence[Ran], metric: Metric | None = None, force: bool = False
) -> list[Comparison]:
    """Compare every cell of the runs `after` with the same cell of the runs `before`: one family, Holm's correction.

    Trials of one run share the state of the machine, so they are no independent sample of what runs differ by. Each run
    gives one figure a cell, the geometric mean of its trials. Welch's test on their logs compares the two sets of runs.
    It holds only if a change of the machine over time, and whatever makes the second of two runs slower, meets both
    sides alike: see `require_turns`.

    Raises:
        UsageError: the suite digests or the methods differ without `force`, a cell is not in every run, or the machine
            is in the metric and the order of the runs gives one side an advantage.
    """
    every = [*before, *after]
    if not METRICS[metric or after[0].plan.suite.metric].by_training:
        require_turns(before, after)
    plan = after[0].plan
    chosen = metric or plan.suite.metric
    cautions = dict.fromkeys((UNIT, *(text for other in every[1:] for text in (
        *forced(every[0], other, force), *differing(every[0].environment, other.environment))),
        *asked_otherwise(plan.suite, chosen)))
    cells = [cell for cell in plan.cells if all(cell.cell_id in {item.cell_id for item in run.plan.cells}
                                                for run in every)]
    if not cells:
        raise UsageError("the runs have no cell in common")
    spec = METRICS[chosen]
    refusals, doubts = _repeated_seeds(before, after, spec)
    words = ["1 run" if len(side) == 1 else f"{len(side)} runs" for side in (before, after)]
    claimed = [(run.name, Standing(run.plan, run.results)) for run in after]
    found = judged([
        examine(
            Named(cell.cell_id, f"{cell.label} [{words[1]}]", cell.choices),
            Named(cell.cell_id, f"{cell.label} [{words[0]} against]", cell.choices),
            run_means(after, [cell] * len(after), spec), run_means(before, [cell] * len(before), spec),
            ComparisonRequest(
                metric=chosen, margin=plan.suite.margin, paired=False, withhold=False,
                cautions=(*cautions, *doubts), refusals=(
                    *refusals, *lacking(every, [cell] * len(every), spec),
                    *(f"{name}: {text}" for name, standing in claimed
                      for text in standing.unclaimed(cell.cell_id, spec)))),
        )
        for cell in cells
    ])
    return [with_failed_starts(item, starts_of(after, [cell] * len(after), spec),
                               starts_of(before, [cell] * len(before), spec))
            for item, cell in zip(found, cells, strict=True)]


def _repeated_seeds(
    before: Sequence[Ran], after: Sequence[Ran], spec: MetricSpec
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (refusals, cautions) about runs of one side that share a master seed: they repeat the same trainings,
    whose luck each of them counts again. Times of the same seeds on both sides still differ by the machine alone."""
    seeds = [[run.plan.master_seed for run in side] for side in (before, after)]
    if not (spec.to_target or spec.by_training) or all(len(set(side)) == len(side) for side in seeds):
        return (), ()
    text = ("runs of one side have the same master seed: they repeat its trainings and say nothing about other seeds; "
            "run the suite again without --master-seed")
    return ((text,), ()) if spec.by_training or sorted(seeds[0]) != sorted(seeds[1]) else ((), (text,))


def starts_of(runs: Sequence[Ran], cells: Sequence[Cell], spec: MetricSpec) -> tuple[int, int]:
    """Return (trials of these runs of which a start failed and ran again, all their trials); (0, 0) if no clock is in
    the metric."""
    if not spec.clocked:
        return 0, 0
    every = list(zip(runs, cells, strict=True))
    return (sum(blocks_of(run.plan, run.results, run.execution).crashed.get(cell.cell_id, 0) for run, cell in every),
            sum(item.cell_id == cell.cell_id for run, cell in every for item in run.results))


def with_failed_starts(found: Comparison, ours: tuple[int, int], theirs: tuple[int, int]) -> Comparison:
    """Return a comparison of runs with the failed starts of both sides that ran again."""
    if not ours[0] + theirs[0]:
        return found
    starts = Failures(candidate=ours[0], candidate_trials=ours[1], baseline=theirs[0], baseline_trials=theirs[1],
                      starts=True)
    return found.model_copy(update={"failed_starts": starts, "cautions": (starts.caution, *found.cautions)})


def require_turns(before: Sequence[Ran], after: Sequence[Ran]) -> None:
    """Require that the order of the runs in time favours no side.

    The runs are couples of one run of each side, and each side is equally often the first of its couple, or once more
    if the number of couples is odd: ABBA BAAB. Then a steady change of the machine, and whatever makes the second run
    of two slower (heat, a cache, a full disk), is the same for both sides; it only widens the interval.

    Raises:
        UsageError: the order is another one, or a start is unknown.
    """
    order = turns(before, after)
    couples = [order[place:place + 2] for place in range(0, len(order), 2)]
    if not order or any(len(set(couple)) < 2 for couple in couples):
        raise UsageError(f"{NOT_IN_TURNS}{f' (they were made {order})' if order else ''}")
    if abs(couples.count("AB") - couples.count("BA")) > 1:
        raise UsageError(f"the runs alternate {order}: whatever makes the second run of two slower looks like a "
                         "difference; make them ABBA")


def turns(before: Sequence[Ran], after: Sequence[Ran]) -> str:
    """Return the order in which the runs were made, A for one of `before`; "" if a start is unknown."""
    known = [(run.environment.started_ms, name) for name, side in zip("AB", (before, after), strict=True)
             for run in side if run.environment is not None]
    return "".join(name for _, name in sorted(known)) if len(known) == len(before) + len(after) else ""


def lacking(runs: Sequence[Ran], cells: Sequence[Cell], spec: MetricSpec) -> tuple[str, ...]:
    """Return why a run has no figure of its cell: trials that have not run, or that ended without it."""
    found = []
    for run, cell in zip(runs, cells, strict=True):
        trials = cell_trials(run.name, _common(run, cell), spec)
        if trials.n < run.plan.design.common:
            found.append(f"{trials.n} of {run.plan.design.common} planned trials of {run.name} have run")
        elif trials.without or trials.wrong:
            found.append(trials.wrong or f"{trials.without_words()}, so that run has no mean")
    return tuple(found)


def _common(run: Ran, cell: Cell) -> list[Result]:
    """Return the trials that every run has: of a sequential run those up to its first look, so that it does not matter
    where it stopped.
    """
    return [item for item in run.results if item.cell_id == cell.cell_id
            and (run.plan.is_part or item.repeat < run.plan.design.common)]


def run_means(runs: Sequence[Ran], cells: Sequence[Cell], spec: MetricSpec) -> list[MeanTrial]:
    """Return one mean a run, of every figure over the trials of its cell."""
    found = []
    for number, (run, cell) in enumerate(zip(runs, cells, strict=True)):
        trials = cell_trials(run.name, _common(run, cell), spec)
        if trials.values and not trials.wrong and not trials.without:
            of_run = [trials.results[repeat] for repeat in sorted(trials.values)]
            found.append(replace(mean_trial(number, of_run, zero=0.0), effective=of_run[0].effective, hashes={}))
    return found
