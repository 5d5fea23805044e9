"""The benchmarks of the harness compare like with like, and their arithmetic is right."""

from __future__ import annotations

import pytest

from repro import registry
from repro.bench import bare_ddp
from repro.bench.outcome import outcome
from repro.streams import Streams


def test_the_bare_script_trains_the_workload_s_network() -> None:
    parts = registry.load("workload", "digits")().build(Streams(0, 0), "cpu")
    assert str(bare_ddp.network()) == str(parts.model)
    theirs = [tuple(p.shape) for p in bare_ddp.network().parameters()]
    assert theirs == [tuple(p.shape) for p in parts.model.parameters()]


def test_the_ratio_is_ours_over_theirs_pair_by_pair() -> None:
    found = outcome("x", ("ours", [2.0, 4.0, 8.0]), ("theirs", [1.0, 2.0, 4.0]), "s", 3.0)
    assert found.ratio == pytest.approx(2.0)
    assert found.median_ratio == 2.0
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)
    assert "at most 3" in found.text()
