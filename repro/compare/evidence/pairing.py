"""Trials of two cells by seed: which are pairs, how those without a figure ended, and how long each was watched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, Protocol

from repro.compare.figures import Pair
from repro.core.numbers import plain_sum
from repro.record.result.result_warnings import Resumed
from repro.record.result.results import Bracket, Measured, Point, figure
from repro.record.result.status import meaning
from repro.suite.metrics import MetricSpec

OFF_TRAINING_CLOCK = ("eval", "checkpoint", "logging")


def is_meaningless(value: float) -> bool:
    """Return True for a value that no duration, count or quality can have, or that no ratio can be formed of."""
    return not (math.isfinite(value) and value > 0)


class Observed(Measured, Protocol):
    """The fields of one trial that a comparison reads. A result has them, and so has a mean of several trials."""

    @property
    def repeat(self) -> int: ...

    @property
    def attempt(self) -> int:
        """0 for what no attempt made."""

    @property
    def bracket(self) -> Bracket | None: ...

    @property
    def curve(self) -> Sequence[Point]: ...

    @property
    def only_numbered(self) -> bool:
        """Its evaluations have no position but their number."""

    @property
    def hashes(self) -> Mapping[str, str]: ...

    @property
    def effective(self) -> Mapping[str, str]: ...

    @property
    def phases(self) -> Mapping[str, float]: ...

    @property
    def resumed(self) -> Sequence[Resumed]: ...

    @property
    def samples(self) -> int | None: ...

    @property
    def samples_to_target(self) -> float | None: ...

    @property
    def startup_seconds(self) -> float | None: ...

    @property
    def tta_wall_bounds(self) -> tuple[float, float] | None: ...

    @property
    def run_seconds(self) -> float | None: ...

    @property
    def init_seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """The known facts of one trial and its target."""

    kind: Literal["reached", "watched", "never", "unknown"]
    """watched: not reached by `at`, might have been later; never: cannot be reached later; unknown: not a result."""
    at: float


UNKNOWN = Observation("unknown", 0.0)


def observe(result: Observed, spec: MetricSpec) -> Observation:
    """Return when the trial reached its target, or until when it is known not to have reached it."""
    value = figure(result, spec)
    if value is not None:
        return Observation("reached", value)
    target = meaning(result.status).target
    if target == "never":
        return Observation("never", math.inf)
    end = watched_until(result, spec) if target == "watched" else None
    return UNKNOWN if end is None or is_meaningless(end) else Observation("watched", end)


def watched_until(result: Observed, spec: MetricSpec) -> float | None:
    """Return the last moment at which a trial without the target is known not to have reached it."""
    if spec.watched == "samples":
        last = result.curve[-1] if result.curve else None
        return float(result.samples) if result.samples is not None else float(last.samples) if last else None
    wall = result.run_seconds
    if wall is None and result.curve:
        wall = result.curve[-1].wall_seconds
    if wall is None or spec.watched == "wall":
        return wall
    if spec.watched == "cold":  # the launch is before init_start: a lower bound, which is what censoring needs
        return wall + (result.init_seconds or 0.0)
    if result.run_seconds is None or not result.phases:  # a program's own clock is known where it states one only
        last = result.curve[-1] if result.curve else None
        return None if last is None or last.train_seconds == last.wall_seconds else last.train_seconds
    return wall - plain_sum(result.phases.get(name, 0.0) for name in OFF_TRAINING_CLOCK)


PAIRED_HASHES = ("init_weights", "data_order", "data")
"""Hashes that must be equal for one seed to mean the same in two trials."""


@dataclass(frozen=True, slots=True)
class CellTrials:
    """The trials of one cell by repeat, and their figures."""

    name: str
    """Its name in a sentence: the candidate, the baseline."""
    results: Mapping[int, Observed]
    values: Mapping[int, float]
    without: Mapping[str, int]
    """Status -> trials without a figure."""
    wrong: str
    """Sentence about a figure that no clock can give, or a repeated seed; "" if there is none."""

    @property
    def n(self) -> int:
        return len(self.results)

    @property
    def streamed(self) -> bool:
        """The order of the samples is the data's own, so no seed means anything for it."""
        return "stream" in [item.effective.get("input_order") for item in self.results.values()]

    @property
    def selections(self) -> set[str]:
        """Which training samples stayed, by the hash of their numbers; "": all of the data."""
        return {item.effective.get("selection", "") for item in self.results.values() if item.effective}

    def only(self, repeats: Collection[int]) -> CellTrials:
        """Return it without its other trials."""
        results = {repeat: item for repeat, item in self.results.items() if repeat in repeats}
        return replace(self, results=results, values={at: value for at, value in self.values.items() if at in results},
                       without=Counter(item.status for at, item in results.items() if at not in self.values))

    def without_words(self) -> str:
        """`the candidate crashed in 2 of 6 trials and ran out of memory in 1`; "" if every trial has a figure."""
        if not self.without:
            return ""
        parts = []
        for status, count in sorted(self.without.items()):
            end = meaning(status)
            parts.append(f"{end.words}{' without this figure' if end.reached else ''} in {count}")
        return f"{self.name} {listed([f'{parts[0]} of {self.n} trials', *parts[1:]])}"


def cell_trials(name: str, results: Sequence[Observed], scale: MetricSpec) -> CellTrials:
    """Return one cell's trials; their order does not matter."""
    by_repeat = {item.repeat: item for item in sorted(results, key=attrgetter("repeat"))}
    values, wrong = {}, ""
    without: Counter[str] = Counter()
    if len(by_repeat) < len(results):
        twice = next(repeat for repeat, count in Counter(item.repeat for item in results).items() if count > 1)
        wrong = f"seed {twice} appears twice among the trials of {name}"
    for repeat, item in by_repeat.items():
        value = figure(item, scale)
        if value is None:
            without[item.status] += 1
            continue
        values[repeat] = value
        if is_meaningless(value) and not wrong:
            found = f"{value:g} {scale.unit}".rstrip()
            wrong = f"seed {repeat} of {name} has a {scale.noun} of {found}: no ratio can be computed from it"
            if item.tta_wall_bounds is not None:
                wrong += (f"; the target may have been reached anywhere from {item.tta_wall_bounds[0]:.3g} to "
                          f"{item.tta_wall_bounds[1]:.3g} s, because the program's output arrived at once: let it "
                          "flush each line, or set engine.terminal: true")
    return CellTrials(name, by_repeat, values, without, wrong)


def pairs_of(candidate: CellTrials, baseline: CellTrials) -> tuple[Pair, ...]:
    """Return the seeds of which both trials have a figure, by repeat."""
    return tuple(Pair(repeat=repeat, candidate=value, baseline=baseline.values[repeat])
                 for repeat, value in candidate.values.items() if repeat in baseline.values)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two trials of one seed that are not a pair: a hash differs."""

    repeat: int
    hash_name: str

    @property
    def text(self) -> str:
        """`seed 3: data order differ between the two`."""
        return f"seed {self.repeat}: {self.hash_name.replace('_', ' ')} differ between the two"


def on_other_samples(one: CellTrials, other: CellTrials) -> bool:
    """Return True if other training samples stayed for one cell than for the other."""
    return bool(one.selections and other.selections and one.selections != other.selections)


def mismatch(candidate: CellTrials, baseline: CellTrials) -> Mismatch | None:
    """Return the first seed whose two trials are not a pair; None if all are pairs."""
    for repeat, item in candidate.results.items():
        mate = baseline.results.get(repeat)
        if mate is None:
            continue
        for name in PAIRED_HASHES:
            ours, theirs = item.hashes.get(name), mate.hashes.get(name)
            if ours == theirs:
                continue
            # No seed can give both cells one order if one reads a stream, or if other samples stayed.
            if name == "data_order" and (
                    candidate.streamed or baseline.streamed or on_other_samples(candidate, baseline)):
                continue
            # What ended before it wrote its hashes counts by how it ended, not as another seed.
            both_finished = meaning(item.status).reached and meaning(mate.status).reached
            if both_finished or None not in (ours, theirs):
                return Mismatch(repeat, name)
    return None


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
