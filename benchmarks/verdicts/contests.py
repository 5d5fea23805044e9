"""Contests: how often a candidate is called faster whose quality is only at the target, or whose times are equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.verdicts.experiment import made_plan, places_of
from benchmarks.verdicts.scenario import DIFFERENT, OPEN, Judged, Scenario, primary
from benchmarks.verdicts.screen import ALPHA, DISAGREE
from repro.compare import Comparison
from repro.core.frozen import FORMAT
from repro.published.contest_rules import Contest as Rules
from repro.published.record import PublishedCell, PublishedPoint, PublishedRecord, PublishedResult, Score
from repro.published.speedrun.claims import judge_claims
from repro.published.store import Published
from repro.record.result.results import Result
from repro.stats import quality_claim
from repro.suite.kinds.stop import ALPHA as CLAIMED

TARGET = 0.9
"""Of the made plan; higher is better."""
DEVIATION = 0.0014
"""Standard deviation of the quality of one run."""
SECONDS = 100.0


@dataclass(frozen=True, slots=True)
class Contest:
    """The design and the truth of one simulated contest."""

    pairs: int
    better: float = 0.0
    """Mean quality of the candidate beyond the target, in standard deviations of a run; the baseline's is 3."""
    ratio: float = 1.0
    """True time of the candidate over that of the baseline."""
    spread: float = 0.005
    """Standard deviation of the log time of a run."""
    noise: Literal["normal", "t3", "skewed"] = "normal"
    """Of the quality; skewed: exponential, a few runs much worse than the others."""
    crashed: int = 0
    """First runs of the candidate that crashed."""


def contests() -> Iterator[Scenario]:
    """Yield contests whose quality is exactly at the target, whose times are equal, and with a true claim."""
    for pairs in (6, 10, 20):
        yield _scenario(f"contest, {pairs} runs, quality at the target", Contest(pairs, ratio=0.95), "faster")
    yield _scenario("contest, 10 runs, t3 quality at the target", Contest(10, ratio=0.95, noise="t3"), "faster")
    # Shown and not promised: Student's t takes the runs for normal, and the runs drawn may hold none of the bad ones.
    yield _scenario("contest, 10 runs, skewed quality at the target", Contest(10, ratio=0.95, noise="skewed"))
    yield _scenario("contest, 10 runs, equal times", Contest(10, better=3.0), *DIFFERENT)
    for baselines in (2, 3):
        yield _several(baselines)
    yield replace(_scenario("contest, 10 runs, 1 % faster", Contest(10, better=3.0, ratio=0.99), "slower"),
                  right=frozenset({"faster"}), least=0.9)


def _scenario(name: str, design: Contest, *wrong: str) -> Scenario:
    """Return a scenario; where the quality is at the target the rate allowed is that of its claim, however clear the
    times are.
    """

    def judge(generator: np.random.Generator, checked: bool) -> Judged:
        qualities, times = _drawn(design, generator)
        candidate, _ = places_of(2)
        # Without its claim a candidate has no verdict: most experiments at the target need no comparison.
        supported = quality_claim(qualities[candidate].tolist(), TARGET, "higher").supported
        if not supported and not checked:
            return Judged(OPEN)
        word = _compared(design, qualities, times).verdict
        return Judged(word if supported or word == OPEN else DISAGREE)

    truth = "at target" if not design.better else "equal" if design.ratio == 1 else f"ratio {design.ratio:g}"
    return Scenario(name, truth, judge, frozenset(wrong), rate=ALPHA if design.better else CLAIMED)


def _several(baselines: int, runs: int = 10, spread: float = 0.005) -> Scenario:
    """Return a public record of two candidates and several baselines, equal in truth: one ratio to each of them."""
    names = ["pr_a", "pr_b", *(f"baseline-{number}" for number in range(baselines))]

    def judge(generator: np.random.Generator, _: bool) -> Judged:
        record = _public({name: SECONDS * np.exp(spread * generator.standard_normal(runs)) for name in names},
                         TARGET - DEVIATION * generator.standard_normal((len(names), runs)))
        found = {time.verdict for arm in judge_claims(record).arms for time in arm.times}
        return Judged(next(iter(sorted(found & DIFFERENT)), OPEN))

    return Scenario(f"contest, 10 runs, 2 arms x {baselines} baselines", "equal", judge, DIFFERENT)


def _public(seconds: dict[str, np.ndarray], losses: np.ndarray) -> Published:
    cells = tuple(PublishedCell(
        cell_id=name, label=name, ok=len(times), missed=0, invalid=0, refused=0,
        factors={"round": "r", "benchmark": "b", "org": "o", "system": name, "target": f"{TARGET}"},
        score=Score(minutes=1.0, valid=True, runs=len(times), required=None, failed=0),
    ) for name, times in seconds.items())
    results = tuple(PublishedResult(
        program="speedrun", result_id=f"{name}-{number}", cell_id=name, repeat=number, round="r", org="o", system=name,
        benchmark="b", status="ok", seconds=float(time), hyperparameters={"machine": "one"}, source="", sha256="",
        curve=(PublishedPoint(seconds=float(time), value=float(loss)),),
    ) for (name, times), row in zip(seconds.items(), losses, strict=True)
        for number, (time, loss) in enumerate(zip(times, row, strict=True)))
    record = PublishedRecord(
        format=FORMAT, program="speedrun", imported="", reader="", cells=cells, contest=Rules(), results=len(results),
        refused=0, results_sha256="", refused_sha256="")
    return Published(Path(), record, results, ())


def _drawn(design: Contest, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return qualities and seconds, each of shape (2 cells, runs)."""
    shape = (2, design.pairs)
    candidate, baseline = places_of(2)
    qualities = TARGET + DEVIATION * _noise(design, generator, shape)
    qualities[candidate] += design.better * DEVIATION
    qualities[baseline] += 3 * DEVIATION
    seconds = SECONDS * np.exp(design.spread * generator.standard_normal(shape))
    seconds[candidate] *= design.ratio
    return qualities, seconds


def _noise(design: Contest, generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return deviations of mean 0."""
    if design.noise == "t3":
        return np.asarray(generator.standard_t(3, shape))
    return 1 - generator.standard_exponential(shape) if design.noise == "skewed" else generator.standard_normal(shape)


def contest_of(design: Contest, generator: np.random.Generator) -> Comparison:
    """Return the primary contrast of a new contest."""
    return _compared(design, *_drawn(design, generator))


def _compared(design: Contest, qualities: np.ndarray, seconds: np.ndarray) -> Comparison:
    plan = made_plan(2, design.pairs, contest=True)
    candidate, _ = places_of(2)
    results = [
        Result(trial_id=f"{plan.cells[place].cell_id}-s{repeat}", cell_id=plan.cells[place].cell_id, repeat=repeat,
               attempt=1, status="crashed" if place == candidate and repeat < design.crashed else "ok",
               tta_wall=float(seconds[place, repeat]), final=float(qualities[place, repeat]),
               run_seconds=float(seconds[place, repeat]),
               hashes={"init_weights": f"w{repeat}", "data_order": f"o{repeat}", "data": "d"})
        for place, repeat in plan.order]
    return primary(plan, results)
