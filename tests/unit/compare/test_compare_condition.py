"""Conditions for scripts: read, refused, and never passed without a figure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from repro.compare import Comparison, contrast
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.figures import LookPlace
from repro.compare.verdict.condition import parse
from repro.compare.verdict.verdict import judged
from repro.core.errors import UsageError
from repro.record.result.results import Bracket, Result
from tests.made_cells import BASELINE, CANDIDATE, MadeCell, result, trials

RUNS = 60
BASE = [10.0, 10.2, 9.9, 10.1, 10.0, 9.8]


def found(scale: float) -> Comparison:
    ours = [scale * value * factor for value, factor in zip(BASE, (1, 1.01, 0.99, 1, 1.02, 0.98), strict=True)]
    return contrast(CANDIDATE, BASELINE, trials(CANDIDATE, ours), trials(BASELINE, BASE), "tta_wall", primary=True)


@pytest.mark.parametrize(("text", "fails"), [
    ("ratio.low > 1.05", True), ("ratio.low>1.25", False), ("low >= 1.1", True), (" high < 1.3 ", True),
    ("ratio.high < 1.1", False), ("speedup.high < 0.9", True), ("speedup.low < 0.7", False),
    ("n != 6", False), ("n == 6", True), ("ratio.low > 1e0", True), ("slower", True), (" slower ", True),
    ("faster", False), ("different", True), ("same", False), ("not-same", True), ("not-slower", False),
    ("not-different", False),
])
def test_a_condition_is_a_verdict_or_an_end_of_an_interval(text: str, fails: bool) -> None:
    assert bool(parse(text).failure(found(1.2))) is fails


def test_a_failed_condition_shows_its_figures() -> None:
    assert parse("ratio.low>1.05").failure(found(1.2)).startswith("candidate against baseline: ratio.low = 1.1")
    assert parse("slower").failure(found(1.2)).startswith(
        "candidate against baseline: slower (--fail-if slower); the 95 % ")


@pytest.mark.parametrize(("text", "message"), [
    ("ratio > ", "like 'slower' or 'not-same', or an end of an interval"), ("slowr", "did you mean 'slower'?"),
    ("not-fast", "did you mean 'faster'?"), ("ratio", "like 'slower'"), ("SLOWER", "like 'slower'"),
    ("ratoi.low > 1", "did you mean 'ratio.low'?"), ("ratio.low > one", "'one' is not a number"),
    ("ratio.low > nan", "not a number"), ("__import__('os') > 1", "like 'slower'"),
    ("ratio.low > 1 or 1", "like 'slower'"), ("ratio.low = 1", "like 'slower'"),
    ("ratio > 1.05", "'ratio.low > 1.05' fails what is surely above, 'ratio.high > 1.05' what may be above"),
    ("speedup < 0.9", "'speedup.high < 0.9' fails what is surely below"),
    ("p <= 0.05", "p alone is not a verdict"),
    ("probability_less < 0.5", "a probability less without its interval crosses a limit by chance"),
])
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert message in str(raised.value)


def test_a_verdict_that_cannot_come_is_no_gate() -> None:
    few = contrast(CANDIDATE, BASELINE, trials(CANDIDATE, BASE[:5]), trials(BASELINE, BASE[1:]), "tta_wall",
                   primary=True)
    with pytest.raises(UsageError, match="can never hold for candidate against baseline: 5 pairs and 1 contrasts"):
        parse("slower").failure(few)
    with pytest.raises(UsageError, match="no verdict on tta_wall; those are slower and faster"):
        parse("higher").failure(found(1.2))


def test_a_family_of_equal_cells_fails_the_gate_in_five_per_cent() -> None:
    """3 contrasts, 7 pairs, CV 10 %: a point estimate above 1.05 failed more than half of them."""
    rng = np.random.default_rng(49)
    gates = dict.fromkeys(("slower", "different", "ratio.low > 1", "ratio.low > 1.05"), 0)
    points = 0
    for _ in range(RUNS):
        times = rng.lognormal(0, 0.1, (4, 7)).tolist()
        family = judged([examine(CANDIDATE, BASELINE, trials(CANDIDATE, row), trials(BASELINE, times[0]),
                                 ComparisonRequest("tta_wall")) for row in times[1:]])
        points += any(item.ratio is not None and item.ratio > 1.05 for item in family)
        for text in gates:
            gates[text] += any(parse(text).failure(item) for item in family)
    print(f"false alarms of {RUNS}: {gates}; of the point estimate: {points}")
    assert points > RUNS / 3
    assert max(gates.values()) <= int(binom.ppf(0.999, RUNS, 0.05))


def test_unlike_grids_alone_do_not_fail_the_gate() -> None:
    def cell(name: MadeCell, step: float, seed: int) -> list[Result]:
        rng = np.random.default_rng(seed)
        return [result(name, k, hit, curve=(), bracket=Bracket(
            miss_samples=int(100 * (hit - step)), hit_samples=int(100 * hit), miss_wall_seconds=hit - step,
            hit_wall_seconds=hit)) for k, value in enumerate(rng.lognormal(0, 0.02, 8))
            if (hit := step * math.ceil(10 * value / step))]

    unlike = contrast(CANDIDATE, BASELINE, cell(CANDIDATE, 4.0, 1), cell(BASELINE, 0.5, 2), "tta_wall", primary=True)
    assert unlike.ratio is not None and unlike.ratio > 1.15
    assert parse("slower").failure(unlike) == "" == parse("ratio.low > 1.05").failure(unlike)
    assert unlike.corrected is not None and unlike.corrected.low < 1


def test_a_figure_that_does_not_exist_fails() -> None:
    empty = contrast(CANDIDATE, BASELINE, [], [], "tta_wall", primary=True)
    for text in ("ratio.low > 1.05", "slower", "not-same", "n < 3"):
        assert f"no result, so {text!r} cannot be ruled out" in parse(text).failure(empty)


@pytest.mark.parametrize("text", ["slower", "same", "not-same", "ratio.low > 1.05"])
def test_a_run_that_goes_on_passes_no_gate(text: str) -> None:
    at = LookPlace(number=1, of=4, n=6, nominal=0.02, same_nominal=0.02, next_n=10)
    open_, over = (found(1.0).model_copy(update={"look": place})
                   for place in (at, at.model_copy(update={"next_n": None})))
    assert "cannot be ruled out" in parse(text).failure(open_)
    assert "cannot be ruled out" not in parse(text).failure(over)


def test_a_gate_of_sameness_that_too_few_pairs_cannot_show_is_refused() -> None:
    ours, theirs = trials(CANDIDATE, BASE[:4]), trials(BASELINE, BASE[:4])
    few = contrast(CANDIDATE, BASELINE, ours, theirs, "tta_wall", primary=True)
    with pytest.raises(UsageError, match=r"'same': can never hold for .*: 4 pairs and 1 contrasts cannot show it"):
        parse("same").failure(few)
    assert parse("not-same").failure(few)
