"""Trials of two cells side by side: which are pairs, which are not, and how each of the others ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.compare.figures import Pair
from repro.compare.metric import STATUS_WORDS, MetricSpec, figure, meaningless
from repro.record.results import Result

PAIRED_HASHES = ("init_weights", "data_order", "data")
"""What two trials of one pair must have in common for their seeds to mean the same."""


@dataclass(frozen=True, slots=True)
class Side:
    """The trials of one cell, by repeat, and those of them that have no figure."""

    name: str
    """How a sentence calls it: the candidate, the baseline."""
    results: Mapping[int, Result]
    values: Mapping[int, float]
    without: Mapping[str, int]
    """Status -> trials without a figure."""
    wrong: str
    """A figure that no clock can give, as a sentence; "" where all are sound."""

    @property
    def n(self) -> int:
        return len(self.results)

    def told(self) -> str:
        """`the candidate crashed in 2 of 6 trials and ran out of memory in 1`; "" where every trial has a figure."""
        if not self.without:
            return ""
        parts = [f"{_word(status)} in {count}" for status, count in sorted(self.without.items())]
        return f"{self.name} {_listed([f'{parts[0]} of {self.n} trials', *parts[1:]])}"


def side(name: str, results: Sequence[Result], scale: MetricSpec) -> Side:
    """One cell's trials, in whatever order they come."""
    by_repeat = {item.repeat: item for item in sorted(results, key=lambda item: item.repeat)}
    values, wrong = {}, ""
    without: Counter[str] = Counter()
    if len(by_repeat) < len(results):
        twice = next(repeat for repeat, count in Counter(item.repeat for item in results).items() if count > 1)
        wrong = f"seed {twice} stands twice among the trials of {name}"
    for repeat, item in by_repeat.items():
        value = figure(item, scale)
        if value is None:
            without[item.status] += 1
            continue
        values[repeat] = value
        if meaningless(value) and not wrong:
            found = f"{value:g} {scale.unit}".rstrip()
            wrong = f"seed {repeat} of {name} has a {scale.noun} of {found}: no ratio can be formed of that"
    return Side(name, by_repeat, values, without, wrong)


def pairs_of(candidate: Side, baseline: Side) -> tuple[Pair, ...]:
    """Seeds of which both trials have a figure, by repeat."""
    return tuple(Pair(repeat=repeat, candidate=value, baseline=baseline.values[repeat])
                 for repeat, value in candidate.values.items() if repeat in baseline.values)


def void(candidate: Side, baseline: Side) -> tuple[str, str]:
    """(why the trials of one seed are no pairs, the hash that says so); ("", "") where they are."""
    for repeat, item in candidate.results.items():
        mate = baseline.results.get(repeat)
        if mate is None:
            continue
        both_finished = item.status == mate.status == "ok"
        for name in PAIRED_HASHES:
            ours, theirs = item.hashes.get(name), mate.hashes.get(name)
            # What ended before it wrote its hashes counts by how it ended, not as another seed.
            if ours != theirs and (both_finished or None not in (ours, theirs)):
                what = name.replace("_", " ")
                return f"seed {repeat}: {what} differ between the two, so they are no pair", name
    return "", ""


def _word(status: str) -> str:
    return "reached the target without this figure" if status == "ok" else STATUS_WORDS[status]


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
