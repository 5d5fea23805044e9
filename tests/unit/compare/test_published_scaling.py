"""Published scalings beside the model: the figures of docs/predict.md are computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.comm.algorithms.ring import Ring
from repro.core.yaml_file import read_yaml

ROOT = Path(__file__).parents[3]
PAGE = " ".join((ROOT / "docs" / "predict.md").read_text(encoding="utf-8").split())


def needed_step(seconds: float, processes: int, speed: float) -> float | None:
    """The computation of a step at which `processes` reach a speed-up of `speed` (weak scaling) although communication
    takes `seconds` of every step and nothing hides it: T of speed = p T / (T + c); None: no step is long enough."""
    return seconds * speed / (processes - speed) if speed < processes else None


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(ROOT / "tests" / "data" / "published-scaling.yaml").data
    return found


def test_minutes_without_communication(published: dict[str, Any]) -> None:
    """Each GPU as fast as one of eight, the published epochs, nothing else: the least that scaling can take."""
    data = published["mlperf"]
    first = data["results"][0]
    for item in data["results"]:
        modelled = first["minutes"] * first["processes"] / item["processes"] * item["epochs"] / first["epochs"]
        steps = item["epochs"] * data["train_samples"] / item["batch"]
        rest = 60e3 * (item["minutes"] - modelled) / steps
        row = (f"| {item['system']} | {item['processes']:,} | {item['batch']:,} | {item['epochs']} "
               f"| {item['minutes']:.4g} | {modelled:.3g} | {100 * modelled / item['minutes']:.0f} % | {rest:.1f} |")
        assert row in PAGE, row


def test_the_least_step_that_a_published_speed_up_needs(published: dict[str, Any]) -> None:
    for item in published["papers"]:
        share = item["processes"] / item["speed_up"] - 1
        row = f"| {item['model']} | {item['processes']} | {item['speed_up']} | {share:.3g} |"
        assert row in PAGE, row
        if item["bytes"]:
            seconds = Ring().cost(item["processes"], item["bytes"] // 4, 4).path_bytes * 8 / item["bits_per_second"]
            needed = needed_step(seconds, item["processes"], item["speed_up"])
            assert needed is not None
            assert f"a ring takes {seconds:.3g} s" in PAGE
            assert f"a step would have to compute for {needed:.3g} s" in PAGE
