"""A tuned run whose overrides leave no cell to the declared contrast: its record is sound and its suite runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.record.folder.store import read_record
from repro.suite.file import read_suite
from tests.commands import command
from tests.plans import suite

pytestmark = pytest.mark.slow

SUITE = suite("own", """\
matrix:
  optimizer: [sgd, adamw]
  batch.global: [64, 128]
baseline: {optimizer: sgd}
contrasts: [optimizer, batch.global]
primary:
  candidate: {optimizer: adamw, batch.global: 64}
  baseline: {optimizer: sgd, batch.global: 64}
tune:
  trials: 2
  metric: samples
  spaces:
    - origin: by hand
      space: {optimizer.lr: {log: [0.01, 0.1]}}
""", seeds=2, engine="fake", batch=None, launcher="inline")


def test_a_dropped_contrast_is_dropped_from_the_frozen_suite_too(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SUITE)
    code, _, error = command(tmp_path, "run", "own.yaml", "-o", "batch.global=128", "--no-mlflow", "--out", "run")
    assert code in (0, 3), error
    assert read_record(tmp_path / "run").plan.suite.primary is None
    found = verify(tmp_path / "run")
    assert found.sound, found.text()
    assert read_suite(str(tmp_path / "run/tuned.yaml")).suite.primary is None
    code, _, error = command(tmp_path, "plan", "run/tuned.yaml")
    assert code == 0, error
    assert command(tmp_path, "bundle", "run", "--out", "run.zip")[0] == 0
