"""The table of expected pairs in docs/method.md, simulated again: looks against a fixed number of pairs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtr

from repro.stats import equivalence_power, pairs_needed, sign_flip
from repro.stats.anytime import bet
from repro.stats.sequential import LookLevel, look_levels

CV, MARGIN, MOST, SEED = 0.05, 0.05, 200, 20261122
RATIOS = (1.0, 1.05, 1.1, 1.3)
DESIGNS = {"8, 12, 18, 27, 40 (t)": look_levels((8, 12, 18, 27, 40), "power", 1.0),
           "10, 15, 20, 30 (t^2)": look_levels((10, 15, 20, 30))}
TABLE = Path(__file__).parents[3] / "docs" / "method.md"


@dataclass(frozen=True)
class Simulated:
    pairs: float
    """Mean number at the stop."""
    settled: float
    """Share."""


def draws(ratio: float, count: int) -> np.ndarray:
    """Log ratios of pairs of log-normal times with the coefficient of variation on each side."""
    sd = math.sqrt(2 * math.log1p(CV**2))
    return np.random.default_rng([SEED, round(1000 * ratio)]).normal(math.log(ratio), sd, (count, MOST))


def decided(logs: np.ndarray, level: LookLevel) -> bool:
    """Both tests of a difference, or both of each side of sameness."""
    n, edge = len(logs), math.log1p(MARGIN)
    mean, error = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(n)
    exact = n <= 20
    if 2 * stdtr(n - 1, -abs(mean) / error) <= level.difference and (not exact or sign_flip(logs) <= level.difference):
        return True
    sides = max(stdtr(n - 1, (mean - edge) / error), stdtr(n - 1, (-edge - mean) / error))
    return bool(sides <= level.same and (
        not exact or max(sign_flip(logs + edge), sign_flip(logs - edge)) / 2 <= level.same))


def looks(ratio: float, levels: tuple[LookLevel, ...], count: int) -> Simulated:
    never = levels[-1].n, False
    ends = [next(((level.n, True) for level in levels if decided(logs[:level.n], level)), never)
            for logs in draws(ratio, count)]
    return Simulated(float(np.mean([n for n, _ in ends])), float(np.mean([done for _, done in ends])))


def anytime(ratio: float, count: int) -> Simulated:
    logs, edge, needed = draws(ratio, count), math.log1p(MARGIN), math.log(20)
    same = np.minimum(np.maximum.accumulate(bet(logs, -edge).above, axis=1),
                      np.maximum.accumulate(bet(logs, edge).below, axis=1))
    reached = np.maximum(np.maximum.accumulate(bet(logs).either, axis=1), same) >= needed
    settled = reached.any(axis=1)
    first = np.where(settled, np.maximum(reached.argmax(axis=1) + 1, 7), MOST)
    return Simulated(float(first.mean()), float(settled.mean()))


def fixed(ratio: float) -> int:
    """Pairs of which a difference (of 1: sameness) has a power of 80 %."""
    sd = math.sqrt(2 * math.log1p(CV**2))
    if ratio != 1:
        return pairs_needed(sd, ratio)
    return next(n for n in range(5, 1000) if equivalence_power(sd, 1.0, n, MARGIN) >= 0.8)


def rows(count: int) -> list[list[str]]:
    found = []
    for ratio in RATIOS:
        cells = [looks(ratio, levels, count) for levels in DESIGNS.values()] + [anytime(ratio, count)]
        found.append([f"{ratio:g}", str(fixed(ratio)), *(f"{one.pairs:.1f} ({one.settled:.0%})".replace("%", " %")
                                                        for one in cells)])
    return found


@pytest.mark.slow
def test_the_table_of_the_method_is_what_the_simulation_gives() -> None:
    text = TABLE.read_text()
    for row in rows(4000):
        assert f"| {' | '.join(row)} |" in text


def test_the_table_has_a_row_for_every_ratio_and_stopping_early_saves_pairs_of_a_clear_difference() -> None:
    text = TABLE.read_text()
    assert all(re.search(rf"^\| {ratio:g} \| {fixed(ratio)} \|", text, re.MULTILINE) for ratio in RATIOS)
    assert looks(1.3, DESIGNS["8, 12, 18, 27, 40 (t)"], 50) == Simulated(8.0, 1.0)


if __name__ == "__main__":
    for line in rows(4000):
        print("|", " | ".join(line), "|")
