"""`python -m benchmarks verdicts`: simulate every scenario with a seed of its own, and count the answers."""

from __future__ import annotations

import math
import multiprocessing
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.verdicts.scenario import Scenario
from benchmarks.verdicts.scenarios import SCENARIOS
from benchmarks.verdicts.screen import ALPHA, DISAGREE, EVERY
from repro.core.frozen import Frozen


class Row(Frozen):
    """One scenario, simulated."""

    name: str
    truth: str
    experiments: int
    words: Mapping[str, int]
    """Answer -> how often it was given."""
    wrong: float | None
    """Share of wrong answers; None if no answer is wrong here."""
    wrong_error: float | None
    """Standard error of that share at the rate allowed."""
    found: float | None
    """Share of right answers; None if the truth is equality."""
    paired_t: float | None
    """Share that the paired t test alone finds, of the same experiments; None if it is not valid here."""
    least: float | None
    """Smallest share of right answers promised."""
    most: float | None
    """Largest share of right answers promised."""
    least_relative: float | None
    """Smallest power relative to the paired t test's that is promised."""
    holds: bool
    rate: float = ALPHA
    """Largest share of wrong answers."""

    @property
    def relative(self) -> float | None:
        """Power relative to the paired t test's."""
        return self.found / self.paired_t if self.found is not None and self.paired_t else None

    def text(self) -> str:
        """Format the row under `head`."""
        wrong = "-" if self.wrong is None or self.wrong_error is None else \
            f"{100 * self.wrong:.2f} +- {100 * self.wrong_error:.2f}"
        relative = "-" if self.relative is None else f"{self.relative:.2f}"
        words = ", ".join(f"{word} {count}" for word, count in self.words.items())
        return (f"{self.name:49} {self.truth:>11} {wrong:>13} {_percent(self.found):>8} {_percent(self.paired_t):>8} "
                f"{relative:>8}  {words}{'' if self.holds else '  NOT HELD'}")


def head(experiments: int, seed: int) -> str:
    """Return the first lines of the table."""
    limit = f"{allowed(experiments):.2%}".replace("%", " %")
    return (f"simulated: {experiments:,} experiments a row, seed {seed}; wrong answers allowed: 5 % and 3.3 standard "
            f"errors, {limit} (1 % where a contest's quality is at the target)\n"
            f"{'scenario':49} {'truth':>11} {'wrong %':>13} {'found %':>8} {'paired t':>8} {'relative':>8}  answers")


class VerdictErrors(Frozen):
    """All rows, and what they were computed from."""

    seed: int
    experiments: int
    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        return all(row.holds for row in self.rows)

    def text(self) -> str:
        """Format the end of the table for the terminal."""
        failed = [row.name for row in self.rows if not row.holds]
        return f"not held: {'; '.join(failed)}" if failed else f"all {len(self.rows)} rows hold"


def row_of(scenario: Scenario, words: Mapping[str, int], by_t: int, with_t: int) -> Row:
    """Return the row of a scenario.

    Args:
        by_t: experiments in which the paired t test finds a difference.
        with_t: experiments in which it has a p.
    """
    count = sum(words.values())
    wrong = sum(words.get(word, 0) for word in scenario.wrong) / count if scenario.wrong else None
    found = sum(words.get(word, 0) for word in scenario.right) / count if scenario.right else None
    paired_t = by_t / count if scenario.relative is not None and with_t == count else None
    error = None if wrong is None else _error(max(wrong, 1 / count), count)
    row = Row(name=scenario.name, truth=scenario.truth, experiments=count, words=dict(sorted(words.items())),
              wrong=wrong, wrong_error=error, found=found, paired_t=paired_t, least=scenario.least, most=scenario.most,
              least_relative=scenario.relative, holds=True, rate=scenario.rate)
    return row.model_copy(update={"holds": _holds(row)})


def _holds(row: Row) -> bool:
    if row.words.get(DISAGREE):
        return False
    if row.wrong is not None and row.wrong > allowed(row.experiments, row.rate):
        return False
    if row.found is None:
        return True
    if row.least is not None and row.found < row.least - 2 * _error(row.least, row.experiments):
        return False
    if row.most is not None and row.found > row.most + 2 * _error(row.most, row.experiments):
        return False
    if row.paired_t is None or row.least_relative is None:
        return True
    return row.found >= row.least_relative * row.paired_t - 2 * _error(row.found, row.experiments)


def allowed(count: int, rate: float = ALPHA) -> float:
    """Return the largest share of wrong answers that a rate still gives: 3.3 standard errors."""
    return rate + 3.3 * _error(rate, count)


def _error(share: float, count: int) -> float:
    return math.sqrt(share * (1 - share) / count)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


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
