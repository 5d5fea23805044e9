"""`python -m benchmarks verdicts`: simulate every scenario with a seed of its own, and count the answers."""

from __future__ import annotations

import multiprocessing
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.verdicts.rows import Row, VerdictErrors, head, row_of
from benchmarks.verdicts.scenario import Scenario
from benchmarks.verdicts.scenarios import SCENARIOS
from benchmarks.verdicts.screen import EVERY

SEED = 20151102
"""With the name of a scenario, the seed of all of its random numbers."""


def measure(experiments: int = 4000, only: str = "", processes: int = 1) -> VerdictErrors:
    """Simulate the scenarios whose name contains `only`, and print each row when it is known; all take about an hour.

    Args:
        experiments: of every scenario.
        processes: rows simulated at the same time; it changes no figure.

    Raises:
        ValueError: no scenario has such a name.
    """
    chosen = [item for item in SCENARIOS if only in item.name]
    if not chosen:
        raise ValueError(f"no scenario is named {only!r}; there are: "
                         f"{'; '.join(item.name for item in SCENARIOS)}")
    print(head(experiments, SEED))
    rows = []
    for row in _simulated([item.name for item in chosen], experiments, processes):
        rows.append(row)
        print(row.text(), flush=True)
    return VerdictErrors(seed=SEED, experiments=experiments, rows=tuple(rows))


def _simulated(names: Sequence[str], experiments: int, processes: int) -> Iterator[Row]:
    if processes == 1:
        yield from (_by_name(name, experiments) for name in names)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_by_name, names, [experiments] * len(names))


def _by_name(name: str, experiments: int) -> Row:
    return simulate(next(item for item in SCENARIOS if item.name == name), experiments)


def simulate(scenario: Scenario, experiments: int) -> Row:
    """Return the row of one scenario; it does not depend on the others."""
    generator = np.random.default_rng([SEED, zlib.crc32(scenario.name.encode())])
    words: Counter[str] = Counter()
    by_t = with_t = 0
    for number in range(experiments):
        found = scenario.judge(generator, number % EVERY == 0)
        words[found.word] += 1
        with_t += found.paired_t is not None
        by_t += bool(found.paired_t)
    return row_of(scenario, words, by_t, with_t)
