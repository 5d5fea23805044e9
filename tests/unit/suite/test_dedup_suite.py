"""Suites that leave near-duplicates out: planned facts, names of cells, and options that are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flow.test_reproduce import command

SUITE = """
suite: own
seeds: 1
trial:
  workload: {kind: digits-mlp, hidden: 8, depth: 1, planted: 0.1, dedup: {threshold: 6}}
  engine: ddp
  processes: 1
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.05}
  stop: {metric: top1, target: 0.9, max_epochs: 1, design: fixed_budget}
  evaluate_every: 2000
"""


def planned(folder: Path, text: str, *more: str) -> tuple[int, str, str]:
    (folder / "own.yaml").write_text(text)
    return command(folder, "plan", "own.yaml", *more)


def test_the_plan_holds_what_stays(tmp_path: Path) -> None:
    code, said, error = planned(tmp_path, SUITE, "--json")
    assert code == 0, error
    workload = json.loads(said)["cells"][0]["choices"]["workload"]
    assert workload["selected"]["samples"] == 1437 + 144
    assert 1000 < workload["selected"]["kept"] < 1437


@pytest.mark.parametrize(("change", "words"), [
    (("threshold: 6", "size: 64"), "size"), (("threshold: 6", "hash: whash, size: 6"), "power of two"),
    (("threshold: 6", "threshold: 64"), "below the 64 bits"), (("threshold: 6", "thresold: 6"), "thresold"),
    (("planted: 0.1", "planted: 2"), "planted"),
])
def test_bad_options_get_one_line(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    code, said, error = planned(tmp_path, SUITE.replace(*change))
    assert code == 2
    assert words in error and "own.yaml:" in error and "Traceback" not in error + said
