"""Two emulated GPUs as lanes of a pool: each block on one of them, by its UUID, both at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.record.folder.store import read_record
from tests.emulated_cuda.running import repro
from tests.emulated_cuda.test_machine import FIRST, SECOND
from tests.plans import suite

SUITE = suite("gpus", "matrix:\n  batch.global: [32, 64]\nbaseline: {batch: {global: 64}}\n",
              head="master_seed: 20151102\n", seeds=4, workload="{kind: digits-mlp, hidden: 16, depth: 1}",
              device="cuda", processes=1, stop="{metric: top1, target: 0.3, max_epochs: 2, design: fixed_budget}")


@pytest.mark.rehearse
def test_two_gpus_are_two_lanes(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    ended = repro(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "pool", "--pool", "gpus")
    assert ended.code == 0, ended.error
    record = read_record(tmp_path / "pool")
    assert [item.status for item in record.results] == ["ok"] * 8
    places = {item.shard: item.nodes[0] for item in record.attempts}
    assert {FIRST[:12] in place for place in places.values()} == {True, False}
    assert all((FIRST[:12] in place) != (SECOND[:12] in place) for place in places.values())
    shares = {place.partition("cores ")[2].partition(",")[0] for place in places.values()}
    assert len(shares) == 2, "each lane has cores of its own"
    assert record.plan.device_count == 1
    assert repro(tmp_path, "verify", "pool").code == 0


def test_more_lanes_than_gpus_and_trials_of_two_gpus_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    ended = repro(tmp_path, "run", "s.yaml", "--no-mlflow", "--pool", "{kind: gpus, lanes: 3}")
    assert ended.code == 2 and "3 lanes are too many for 2 GPUs" in ended.error
    ended = repro(tmp_path, "run", "s.yaml", "--no-mlflow", "--pool", "{kind: cores, lanes: 2}", "-o", "device=cuda")
    assert ended.code == 2, ended.error
