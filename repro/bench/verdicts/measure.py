"""`repro bench verdicts`: simulate every scenario with a seed of its own, and count the answers."""

from __future__ import annotations

import multiprocessing
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from repro.bench.verdicts.outcome import Row, VerdictErrors, row_of
from repro.bench.verdicts.scenario import Scenario
from repro.bench.verdicts.scenarios import SCENARIOS
from repro.bench.verdicts.screen import EVERY

SEED = 20151102
"""With the name of a scenario, the seed of all of its random numbers."""


def measure(
    experiments: int, only: Sequence[str] = (), progress: Callable[[Row], None] = lambda row: None, processes: int = 1
) -> VerdictErrors:
    """Simulate the scenarios whose name contains one of `only`; all if it is empty.

    Args:
        progress: called with every row, in the order of the table.
        processes: rows simulated at the same time; it changes no figure.

    Raises:
        ValueError: no scenario has such a name.
    """
    chosen = [item for item in SCENARIOS if not only or any(text in item.name for text in only)]
    if not chosen:
        raise ValueError(f"no scenario is named {' or '.join(map(repr, only))}; there are: "
                         f"{'; '.join(item.name for item in SCENARIOS)}")
    rows = []
    for row in _simulated([item.name for item in chosen], experiments, processes):
        rows.append(row)
        progress(row)
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
