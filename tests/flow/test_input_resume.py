"""A trial with input workers whose rank is killed resumes and ends with the weights of one that reads in its steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.core import registry
from repro.core.machine import Machine
from repro.record.environment import environment
from repro.record.folder.store import Record
from repro.runner import preflight
from repro.runner.run import Run, prepare
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan
from repro.worker.gate import parity
from tests.flow.test_checkpoints import killer
from tests.watcher import Silent

pytest.importorskip("torch")

PLUGINS = Path(__file__).parents[1] / "plugins"
MACHINE = Machine(device="cpu", device_count=0, cores=2)
SUITE = """\
suite: killed
seeds: 1
on_failure: resume_from_checkpoint
checkpoint_every: 1
attempts: 10
trial:
  workload: {{kind: file-samples, folder: {folder}, told: {told}, step_seconds: 0.01}}
  input: {{workers: {workers}}}
  processes: 2
  engine: ddp
  batch: {{global: 16}}
  optimizer: {{kind: sgd, lr: 0.02}}
  stop: {{metric: top1, target: 0.999, max_epochs: 14.5, design: fixed_budget}}
  evaluate_every: 100
  device: cpu
"""


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plug-ins of the tests are installed; preflight checks and gate are tested elsewhere."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)
    monkeypatch.setattr(parity, "groups", lambda *_: [])
    registry._third_party.cache_clear()
    yield
    registry._third_party.cache_clear()


def train(folder: Path, samples: Path, workers: int, killed_by: int | None = None) -> tuple[Record, list[str]]:
    """Run the suite; return its record and the hashes of all batches that rank 1 was fed."""
    told = folder / "told"
    told.mkdir(parents=True)
    (folder / "suite.yaml").write_text(SUITE.format(folder=samples, told=told, workers=workers))
    source = read_suite(str(folder / "suite.yaml"), ())
    plan = make_plan(source.suite, MACHINE, source.problem)
    run = Run(plan, prepare(plan, source.text, folder / "run"), MACHINE, Silent())
    if killed_by is None:
        record = run.execute()
    else:
        with killer(run.folder.root, killed_by) as killed:
            record = run.execute()
        assert killed
    return record, (told / "fed1.txt").read_text().splitlines()


@pytest.mark.slow
def test_a_killed_trial_resumes_in_the_middle_of_its_input(tmp_path: Path) -> None:
    from file_samples import write_samples

    write_samples(tmp_path / "samples")
    whole, fed = train(tmp_path / "whole", tmp_path / "samples", workers=0)
    resumed, refed = train(tmp_path / "killed", tmp_path / "samples", workers=2, killed_by=1)
    (ours,), (theirs,) = resumed.results, whole.results
    assert ours.status == theirs.status == "missed", (ours.reason, theirs.reason)
    assert ours.resumed and not theirs.resumed
    assert ours.hashes == theirs.hashes
    step = ours.resumed[-1].step
    assert refed[-(len(fed) - step):] == fed[step:]
    assert ours.input_wait_seconds and theirs.input_wait_seconds
