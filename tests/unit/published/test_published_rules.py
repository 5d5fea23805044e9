"""MLPerf's tables and its score, by hand and against MLCommons' own package."""

from __future__ import annotations

import math
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.published.mlperf.rules import RUNS, TARGETS, Quality, epoch_unit, score, targets

minutes = st.floats(0.01, 1e4)


def official(name: str) -> Any:
    return pytest.importorskip(f"mlperf_logging.{name}", reason="mlperf-logging is not installed")


@pytest.mark.parametrize(("benchmark", "times", "wanted", "dropped", "reason"), [
    ("resnet", [5.0, 1.0, 2.0, 3.0, 100.0], 10 / 3, (1.0, 100.0), ""),
    ("resnet", [5.0, None, 2.0, 3.0, 1.0], 10 / 3, (1.0,), ""),  # a miss is the slowest
    ("resnet", [5.0, None, 2.0, None, 1.0], None, (), "2 of 5 runs have no time to target; at most 1 allowed"),
    ("resnet", [1.0, 2.0, 3.0, 4.0], 2.5, (1.0, 4.0), "4 runs of 5 required"),
    ("resnet", [1.0, 2.0], None, (), "no run is left of 2 without the fastest and the slowest"),
    ("unet3d", [float(value) for value in range(1, 41)], 20.5, (1.0, 2.0, 3.0, 4.0, 37.0, 38.0, 39.0, 40.0), ""),
    ("unet3d", [float(value) for value in range(1, 37)] + [None] * 4, 20.5, (1.0, 2.0, 3.0, 4.0), ""),
    ("unet3d", [1.0] * 35 + [None] * 5, None, (), "5 of 40 runs have no time to target; at most 4 allowed"),
])
def test_the_fastest_and_the_slowest_are_dropped(
    benchmark: str, times: list[float | None], wanted: float | None, dropped: tuple[float, ...], reason: str
) -> None:
    found = score(benchmark, times)
    assert (found.minutes, found.dropped) == (None if wanted is None else pytest.approx(wanted), dropped)
    assert (found.valid, found.reason, found.failed) == (not reason, reason, times.count(None))


@pytest.mark.parametrize("times", [[], [1.0], [None], [1.0, None]])
def test_nothing_left_is_no_score(times: list[float | None]) -> None:
    assert score("resnet", times).minutes is None


@pytest.mark.parametrize("wrong", [-3.0, 0.0, math.nan, math.inf])
def test_a_time_is_positive_and_finite(wrong: float) -> None:
    with pytest.raises(ValueError, match="minutes must be"):
        score("resnet", [1.0, 2.0, wrong])


def test_a_benchmark_that_is_not_known_has_no_valid_score() -> None:
    assert score("bowling", [1.0, 2.0, 3.0]).valid is False


@given(st.lists(minutes, min_size=3, max_size=45), st.integers(0, 4), st.sampled_from(["resnet", "unet3d"]),
       st.floats(0.5, 2))
@settings(max_examples=200, deadline=None)
def test_the_score_is_the_summarizers(times: list[float], failed: int, benchmark: str, factor: float) -> None:
    summarizer = official("result_summarizer.result_summarizer")
    limit = 4 if benchmark == "unet3d" else 1
    expected = summarizer._compute_olympic_average(list(times), failed, limit) if failed <= limit else None
    found = score(benchmark, [*times, *[None] * failed], factor).minutes
    assert found == (None if expected is None else pytest.approx(expected * factor, rel=1e-12))


@given(st.permutations([1.0, 2.0, None, 4.0, 8.0]))
def test_order_does_not_matter(times: list[float | None]) -> None:
    assert score("resnet", times) == score("resnet", [1.0, 2.0, 4.0, 8.0, None])


def test_numbers_of_runs_are_the_packages() -> None:
    meta = official("benchmark_meta")
    assert meta.get_result_file_counts("training") | meta.get_result_file_counts("hpc") == RUNS


NUMBER = r"([0-9.]+)"


def _official_targets(folder: Path) -> list[tuple[tuple[int, int], str, dict[str, float]]]:
    """(round, benchmark, targets by metric) of every closed rule file that states plain numbers."""
    found = []
    for path in sorted(folder.glob("*_*/closed_*.yaml")):
        version = tuple(map(int, path.parent.name.split("_")[1].split(".")[:2]))
        rules = yaml.load(path.read_text(), Loader=yaml.BaseLoader) or []
        for rule in rules:
            check = rule.get("KEY", {}).get("ATLEAST_ONE_CHECK", "")
            if rule.get("KEY", {}).get("NAME") != "eval_accuracy" or not check or "s[" in check:
                continue
            if path.parent.name.endswith("_warn"):
                continue
            stated: dict[str, float] = {}
            for metric, target in re.findall(rf"v\['value'\](?:\['(\w+)'\])? >= {NUMBER}", check):
                stated[metric] = float(target)
            for target, metric in re.findall(rf"{NUMBER} <= v\['value'\]\['(CLIP)'\]", check):
                stated[metric] = float(target)
            for metric, target in re.findall(rf"v\['value'\](?:\['(FID)'\])? <= {NUMBER}", check):
                if float(target) != 1:
                    stated[metric] = float(target)
            found.append(((version[0], version[1]), path.stem.removeprefix("closed_"), stated))
    return found


def test_targets_are_the_packages() -> None:
    checker = official("compliance_checker.mlp_compliance")
    stated = _official_targets(Path(str(import_module(checker.__name__).__file__)).parent)
    assert len(stated) > 80
    for version, benchmark, expected in stated:
        if not targets(benchmark, version, "closed"):
            assert benchmark not in TARGETS, (version, benchmark)  # a round of a benchmark that is in the table
            continue
        found = {quality.metric: quality.target for quality in targets(benchmark, version, "closed")}
        assert found == expected, (version, benchmark)


def test_unknown_benchmarks_have_no_target() -> None:
    assert targets("resnet", (4, 0), "open") == targets("resnet", None, "closed") == ()
    assert targets("bert", (0, 7), "closed") == ()


@pytest.mark.parametrize(("quality", "value", "reached"), [
    (Quality("higher", 0.759, 1.0), 0.759, True), (Quality("higher", 0.759, 1.0), 75.9, False),
    (Quality("lower", 0.925, 0.0), 0.925, True), (Quality("lower", 0.925, 0.0), 0.93, False),
    (Quality("lower", 0.925, 0.0), -0.1, False), (Quality("higher", 0.759, 1.0), None, False),
])
def test_a_quality_has_a_far_bound(quality: Quality, value: float | None, reached: bool) -> None:
    assert quality.reached(value) is reached


def test_epoch_numbers_that_count_something_else() -> None:
    assert epoch_unit("bert", (4, 0)) == "samples" and epoch_unit("resnet", (4, 0)) == "epochs"
    assert epoch_unit("unet3d", (3, 0)) == "epochs" and epoch_unit("unet3d", (3, 1)) == "samples"
