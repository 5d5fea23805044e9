"""Equal cells whose trials or runs cannot simply be exchanged: run again another day, always second, after the other.

The generator knows nothing of how blocks, turns and carry-over are judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from benchmarks.verdicts.experiment import Experiment, SimulatedRun, places_of, simulated
from benchmarks.verdicts.scenario import DIFFERENT, OPEN, Judged, Scenario, of_ratio, primary
from repro.compare import Comparison
from repro.compare.runs.two_runs import Ran, versus_several
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.core.random_streams import SEEDS_BELOW
from repro.record.environment.environment import Environment, take
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import Attempt
from repro.record.result.results import Result

CALM = Experiment(20, spread=0.01, within="speed", seed_spread=0.0)
"""A spread of 1 % in speed: what the machine does is larger than the noise."""
DAY_MS = 86_400_000


def exchange() -> Iterator[Scenario]:
    """Yield the scenarios of trials that ran again, of runs in turns, and of carry-over."""
    for slower in (0.0, 0.02, 0.05):
        yield _again(f"4 of 20 run again, {slower:.0%} slower", slower, 4)
    yield _again("10 of 20 run again, 5% slower", 0.05, 10)
    yield _again("4 of 20 run again, 5% slower, different", 0.05, 4, ratio=1.013)
    for order in ("ABBABAABABBA", "ABBABAABAB", "ABABABABABAB"):
        for change in (0.01, 0.02):
            yield _turns(f"runs {order}, second {change:.0%} slower", order, second=change)
    yield _turns("runs ABBABAABABBA, 1% slower each", "ABBABAABABBA", later=0.01)
    for pairs in (10, 20):
        yield _carried(f"carry-over 0%, {pairs} pairs, caution", pairs, 0.0)
        yield _carried(f"carry-over 2%, {pairs} pairs", pairs, 0.02)
        for size in (0.0, 0.02):
            yield _estimated(f"carry-over {size:.0%}, {pairs} pairs, interval", pairs, size)
            yield _with_a_term(f"carry-over {size:.0%}, {pairs} pairs, term in model", pairs, size)
    yield _with_a_term("carry-over 0%, 20 pairs, term in model, different", 20, 0.0, ratio=1.013)
    for pairs in (7, 10, 20):
        yield _washed(f"carry-over 2%, {pairs} pairs, washed out", pairs, 2)
    yield _washed("carry-over 2%, 10 pairs, washed out, four cells", 10, 4)
    yield _washed("carry-over 2%, 20 pairs, washed out, four cells", 20, 4)
    yield _washed("carry-over 2%, 20 pairs, washed out, different", 20, 2, ratio=1.013)


def _again(name: str, slower: float, count: int, ratio: float = 1.0) -> Scenario:
    """Return the scenario of so many candidates that crashed and ran again next day, on a slower machine."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = _drawn(replace(CALM, ratio=ratio), generator)
        crashed = generator.choice(CALM.pairs, count, replace=False)
        candidate, _ = places_of(2)
        run.seconds_per_sample[candidate, crashed] *= 1 + slower
        late = {item.trial_id for item in run.results if item.cell_id == run.plan.cells[candidate].cell_id
                and item.repeat in crashed}
        results = [item.model_copy(update={"attempt": 2}) if item.trial_id in late else item for item in run.results]
        return Judged(primary(run.plan, results, _next_day(results)).verdict)

    return of_ratio(name, ratio, judge)


def _next_day(results: list[Result]) -> Execution:
    """Return the starts: all in order, then a day later the second ones."""
    starts = []
    for place, item in enumerate(results):
        first = Attempt(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1,
                        started_ms=1000 * place, seconds=1, status="ok")
        again = first.model_copy(update={"attempt": 2, "started_ms": DAY_MS + 1000 * place})
        starts += [first] if item.attempt == 1 else [first.model_copy(update={"status": "crashed"}), again]
    return Execution(starts, (DAY_MS - 1,))


def _turns(name: str, order: str, second: float = 0.0, later: float = 0.0) -> Scenario:
    """Return the scenario of runs of equal cells in this order, 0.4 % apart.

    Args:
        second: how much slower the second run of every couple is.
        later: how much slower each run is than the one before.
    """

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        sides: dict[str, list[Ran]] = {"A": [], "B": []}
        for number, side in enumerate(order):
            shift = math.exp(generator.normal(0, 0.004)) * (1 + second * (number % 2)) * (1 + later) ** number - 1
            run = simulated(replace(CALM, pairs=5, shift=shift), generator, f"{number}-")
            sides[side].append(Ran(f"run {number}", run.plan, run.results,
                                   here().model_copy(update={"started_ms": number})))
        try:
            words = {item.verdict for item in versus_several(sides["A"], sides["B"])}
        except UsageError:
            return Judged("refused")
        return Judged(min(words & DIFFERENT, default="same" if "same" in words else OPEN))

    return Scenario(name, "equal", judge, wrong=DIFFERENT)


@lru_cache(maxsize=1)
def here() -> Environment:
    """Return the environment of this machine."""
    return take(Machine("cpu", 0, 2), ())


def _after(pairs: int, size: float, generator: np.random.Generator, ratio: float = 1.0) -> Comparison:
    """Compare cells of which a trial right after the baseline is slower by `size`."""
    run = _drawn(replace(CALM, pairs=pairs, ratio=ratio), generator)
    _, baseline = places_of(2)
    for before, (cell, repeat) in zip(run.plan.order, run.plan.order[1:], strict=False):
        run.seconds_per_sample[cell, repeat] *= 1 + size * (before[0] == baseline)
    return primary(run.plan, run.results)


def _carried(name: str, pairs: int, size: float) -> Scenario:
    """Return the scenario of the verdict and the caution beside it.

    Without a carry-over a caution is wrong; with one, what the ratio contains is called a difference, which no test
    without a term for it avoids, so that its rate is shown and not promised.
    """

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        found = _after(pairs, size, generator)
        warned = found.carry_over is not None and found.carry_over.clear
        assert warned == any(text.startswith("carry-over") for text in found.cautions), "shown if it is clear"
        if not size:
            return Judged("caution" if warned else "none")
        return Judged(f"{'different' if found.verdict in DIFFERENT else 'open'}{', with a caution' if warned else ''}")

    return Scenario(name, "equal", judge, wrong=frozenset() if size else frozenset({"caution"}))


def _estimated(name: str, pairs: int, size: float) -> Scenario:
    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        found = _after(pairs, size, generator).carry_over
        if found is None or found.after_baseline.interval is None:
            return Judged("none")
        covered = found.after_baseline.interval.low <= 1 + size <= found.after_baseline.interval.high
        return Judged("covered" if covered else "outside")

    return Scenario(name, f"{1 + size:g}", judge, wrong=frozenset({"outside"}))


def _washed(name: str, pairs: int, cells: int, ratio: float = 1.0) -> Scenario:
    """Return the scenario of a suite that runs an unmeasured trial of the cell before a block that would begin after
    another one. A trial right after one of the baseline is 2 % slower."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        run = _drawn(replace(CALM, pairs=pairs, cells=cells, ratio=ratio), generator)
        _, baseline = places_of(cells)
        starts, last = list[Attempt](), (-1, -1)
        for cell, repeat in run.plan.order:
            cell_id = run.plan.cells[cell].cell_id
            if repeat != last[1] and cell != last[0]:
                starts.append(Attempt(trial_id=f"{cell_id}-s{repeat}", cell_id=cell_id, repeat=repeat, attempt=0,
                                      started_ms=len(starts), seconds=1, status="wash_out"))
                last = cell, repeat
            run.seconds_per_sample[cell, repeat] *= 1 + 0.02 * (last[0] == baseline)
            starts.append(Attempt(trial_id=f"{cell_id}-s{repeat}", cell_id=cell_id, repeat=repeat, attempt=1,
                                  started_ms=len(starts), seconds=1, status="ok"))
            last = cell, repeat
        return Judged(primary(run.plan, run.results, Execution(starts)).verdict)

    return of_ratio(name, ratio, judge)


def _with_a_term(name: str, pairs: int, size: float, ratio: float = 1.0) -> Scenario:
    """Return the scenario of the ratio with a term for the carry-over, which is shown beside the verdict."""

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        found = _after(pairs, size, generator, ratio).carry_over
        if found is None or found.ratio.interval is None:
            return Judged("none")
        inside = found.ratio.interval.low <= 1 <= found.ratio.interval.high
        return Judged("open" if inside else "slower" if found.ratio.value > 1 else "faster")

    return of_ratio(name, ratio, judge)


def _drawn(design: Experiment, generator: np.random.Generator) -> SimulatedRun:
    """Return a run in an order that was drawn for it."""
    return replace(simulated(design, generator), order_seed=int(generator.integers(SEEDS_BELOW)))
