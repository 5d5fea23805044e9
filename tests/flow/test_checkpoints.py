"""A trial with a killed rank resumes from its checkpoint and ends with the weights of an undisturbed one.

Real processes, gloo on loopback, kill -9 from outside at seeded moments. The default case is DDP on two ranks; the
matrix (FSDP, ZeRO 0 to 3, algorithms, error feedback, precisions, one and two ranks) is slow.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.bundle.verify import verify
from repro.core.machine import Machine
from repro.record.environment import environment
from repro.record.folder.checkpoint import Checkpoints
from repro.record.folder.index import file_sha256
from repro.record.folder.store import Record
from repro.record.result.result_warnings import CheckpointsSkipped
from repro.record.result.results import Result
from repro.runner import preflight
from repro.runner.context import Options
from repro.runner.run import Run, prepare
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan
from repro.worker.gate import parity
from tests.chaos.faults import ranks_of
from tests.plans import suite
from tests.unit.record.resumable_runs import Bomb
from tests.watcher import Silent

pytest.importorskip("torch")

MACHINE = Machine(device="cpu", device_count=0, cores=2)
GRACE_SECONDS = 0.4
"""Latest moment of a kill after a first checkpoint is there; the rest of a trial takes longer."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable preflight checks and gate: they are tested elsewhere."""
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)
    monkeypatch.setattr(parity, "groups", lambda *_: [])


def begin(folder: Path, processes: int, more: str) -> Run:
    folder.mkdir()
    (folder / "suite.yaml").write_text(suite(
        "killed", more, head="on_failure: resume_from_checkpoint\ncheckpoint_every: 1\nattempts: 10\n",
        workload="{kind: digits-mlp, hidden: 160}", engine="ddp", evaluate_every=720, processes=processes,
        optimizer=None if "  optimizer:" in more else "{kind: sgd, lr: 0.02}", determinism="bitwise",
        stop="{metric: top1, target: 0.999, max_epochs: 4, design: fixed_budget}"))
    source = read_suite(str(folder / "suite.yaml"), ())
    plan = make_plan(source.suite, MACHINE, source.problem)
    assert not plan.skipped, plan.skipped
    return Run(plan, prepare(plan, source.text, folder / "run"), MACHINE, Silent())


@contextmanager
def killer(root: Path, seed: int) -> Iterator[list[int]]:
    """Kill one rank of every trial, some time after it has a checkpoint; the ranks that were killed."""
    draws, killed, over = np.random.default_rng(seed), [], threading.Event()

    def watch() -> None:
        hit: set[str] = set()
        while not over.wait(0.002):
            for kept in root.glob("trials/*/checkpoints"):
                trial = kept.parent.name
                if trial in hit or not any(kept.glob("step_*")) or (kept.parent / "result_2.txt").exists():
                    continue
                hit.add(trial)
                over.wait(float(draws.uniform(0, GRACE_SECONDS)))
                ranks = ranks_of(os.getpid())
                if ranks and not (kept.parent / "result.json").exists():
                    rank = sorted(ranks)[int(draws.integers(len(ranks)))]
                    with suppress(ProcessLookupError):
                        os.kill(ranks[rank], signal.SIGKILL)
                        killed.append(rank)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def hashes(record: Record) -> dict[str, dict[str, str]]:
    return {result.trial_id: result.hashes for result in record.results}


def compare(tmp_path: Path, processes: int, more: str, seeds: int) -> tuple[int, int]:
    """Return (kills, resumed trials); all hashes of every killed trial are the undisturbed one's."""
    whole = begin(tmp_path / "whole", processes, more).execute()
    assert {result.status for result in whole.results} == {"missed"}, [item.reason for item in whole.results]
    assert not list((tmp_path / "whole").rglob("checkpoints")), "a trial that ended well needs none"
    kills = resumed = 0
    for seed in range(seeds):
        run = begin(tmp_path / f"killed{seed}", processes, more)
        with killer(run.folder.root, seed) as killed:
            record = run.execute()
        assert hashes(record) == hashes(whole), [(item.attempt, item.status, item.reason) for item in record.attempts]
        assert not [item for item in record.attempts if item.status == "refused"]
        went_on = [result for result in record.results if result.resumed]
        for result in went_on:
            check_clock(run, result)
        assert verify(run.folder.root).problems == []
        kills, resumed = kills + len(killed), resumed + len(went_on)
    return kills, resumed


def check_clock(run: Run, result: Result) -> None:
    """The lost time is on every clock, and the phases still add up to the wall clock."""
    assert result.conservation_error is not None and result.conservation_error < 0.01
    assert result.run_seconds is not None
    lost = sum(item.lost_seconds for item in result.resumed)
    assert lost > 0, "a new start takes a while"
    assert result.phases["lost"] == pytest.approx(lost, abs=0.01)
    assert {item.attempt for item in result.resumed} == {1} and not result.log_faults
    spans = [item for item in map(json.loads, run.folder.ledger.read_text().splitlines())
             if item["trial_id"] == result.trial_id and item["status"] != "started"]
    assert spans[-1]["resumed_from"].startswith("step_0")
    between = spans[-1]["started_ms"] / 1e3 - spans[0]["started_ms"] / 1e3
    assert result.run_seconds < between + spans[-1]["seconds"]
    assert result.run_seconds > spans[-1]["started_ms"] / 1e3 - spans[0]["started_ms"] / 1e3 - spans[0]["seconds"]


@pytest.mark.slow
def test_a_killed_rank_leaves_no_trace_in_the_weights(tmp_path: Path) -> None:
    kills, resumed = compare(tmp_path, 2, "", seeds=1)
    assert (kills, resumed) == (1, 1)


KFAC = "  preconditioner: {kind: kfac, placement: opt, factor_every: 2, eigen_every: 6}\n"


@pytest.mark.slow
def test_a_preconditioner_resumes_where_it_was(tmp_path: Path) -> None:
    # 22 steps an epoch, after which a checkpoint is written: neither a factor step nor an eigen step.
    more = KFAC.replace("opt", "lw").replace("factor_every: 2, eigen_every: 6", "factor_every: 4, eigen_every: 12")
    kills, resumed = compare(tmp_path, 2, more, seeds=1)
    assert (kills, resumed) == (1, 1)


ENGINES = """\
matrix:
  engine: [ddp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2},
           {kind: deepspeed, stage: 3}]
"""
BY_MODEL = "{kind: hybrid, alpha_seconds: 0.0001, beta_seconds: 1.0e-9}"
"""By the clock it could choose another algorithm, and is refused where a trial must be bitwise."""
FOUR = """\
matrix:
  engine: [ddp, {kind: deepspeed, stage: 3}]
  comm: [ring, {kind: multicolor, arity: 2, colors: 2}]
"""
MATRIX: dict[str, tuple[int, int, str]] = {
    # processes, seeds of the moments (one moment a trial), what the suite says more
    "engines-1": (1, 1, ENGINES.replace("[ddp", "[single, ddp")),
    "engines-2": (2, 2, ENGINES),
    "adamw-clip": (2, 1, "  optimizer: {kind: adamw, lr: 0.002}\n  gradient_clip: 0.5\n" + ENGINES),
    "ring": (2, 1, "  comm: ring\n" + ENGINES),
    "algorithms": (2, 1, "matrix:\n  comm: [tree, halving-doubling, butterfly, parameter-server, hierarchical, "
                          f"{BY_MODEL}]\n"),
    "error-feedback": (2, 2, "  compression: powersgd\n  compression_rank: 2\nmatrix:\n  comm: [backend, ring]\n"),
    "compressed": (2, 1, "  compression: bf16\n" + ENGINES),
    "bf16-master": (2, 1, "  precision: bf16-master\n" + ENGINES),
    "bf16-autocast": (2, 1, "  precision: bf16-autocast\n" + ENGINES),
    # On a CPU DeepSpeed refuses fp16.
    "fp16-master": (2, 2, "  precision: fp16-master\n  optimizer: {kind: sgd, lr: 0.005}\n"),
    "no-warm-up": (2, 1, "  warmup_steps: false\n  compression: powersgd\n"),
    "accumulation": (2, 1, "  schedule: {kind: cosine, warmup_epochs: 1}\n" + ENGINES.replace(
        "matrix:", "matrix:\n  batch: [{global: 64, accumulation: 2}]")),
    "fsdp": (2, 1, "  optimizer: {kind: adamw, lr: 0.002}\n  gradient_clip: 0.5\nmatrix:\n"
                   "  engine: [fsdp, {kind: fsdp, wrap: model, reshard_after_forward: true}]\n"
                   "  precision: [fp32, bf16-master]\n"),
    "fsdp-ring": (2, 1, "  comm: ring\nmatrix:\n  engine: [fsdp]\n  batch: [{global: 64, accumulation: 2}]\n"),
    "kfac": (2, 1, KFAC + "matrix:\n  engine: [ddp, {kind: deepspeed, stage: 0}]\n"),
    "kfac-lw": (2, 1, KFAC.replace("opt", "lw") + "  comm: ring\nmatrix:\n  precision: [fp32, bf16-autocast]\n"),
    # 12 steps from one checkpoint to the next: the second engine's lie inside its rounds.
    "rare": (2, 2, "matrix:\n  engine: [{kind: local-sgd, every: 4}, {kind: local-sgd, every: 16, "
                   "outer: {lr: 0.7, momentum: 0.9, nesterov: true}}]\n  workload: [{kind: digits, norm: batch}]\n"),
    "hierarchical-partitions": (2, 1, "matrix:\n  engine: [{kind: deepspeed, stage: 3, hpz: 2, config: "
                                      "{zero_optimization: {stage3_param_persistence_threshold: 0}}}]\n"),
    "sufficient-factors": (2, 1, "  comm: ring\nmatrix:\n  engine:\n"
                           "    - {kind: ddp, send: layerwise, sufficient_factors: planned}\n"
                           "  precision: [fp32, bf16-autocast]\n"),
    "batch-norm": (2, 1, "matrix:\n  workload: [{kind: digits, norm: batch}]\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MATRIX)
def test_the_matrix_of_engines_algorithms_and_precisions(tmp_path: Path, case: str) -> None:
    pytest.importorskip("deepspeed")
    processes, seeds, more = MATRIX[case]
    kills, resumed = compare(tmp_path, processes, more, seeds)
    print(f"{case}: {kills} kills, {resumed} trials resumed from a checkpoint, all hashes equal")
    assert resumed >= 1 and kills >= resumed


@pytest.mark.slow
def test_four_ranks(tmp_path: Path) -> None:
    kills, resumed = compare(tmp_path, 4, FOUR, 1)
    print(f"four ranks: {kills} kills, {resumed} trials resumed from a checkpoint, all hashes equal")
    assert resumed >= 1 and kills >= resumed


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Processes started here cannot write a larger file, as on a full disk (bytes)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_ranks_that_cannot_write_agree_to_leave_the_checkpoint_out(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    more = ENGINES.replace("matrix:", "matrix:\n  workload: [{kind: digits-mlp, hidden: 2048}]")
    with largest_file(200_000):
        run = begin(tmp_path / "run", 2, more)
        record = run.execute()
    assert {result.status for result in record.results} == {"missed"}, [item.reason for item in record.results]
    for result in record.results:
        told, = (item for item in result.warnings if isinstance(item, CheckpointsSkipped))
        assert told.step == 12 and told.problem.endswith(" MB are free on its disk)")
    assert not list(run.folder.root.rglob("checkpoints/step_*")) and verify(run.folder.root).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["single", "{kind: deepspeed, stage: 1}"])
def test_a_planted_bomb_and_another_number_of_ranks_are_refused_each_in_a_line(tmp_path: Path, engine: str) -> None:
    """Both checkpoints of a killed trial are replaced, with matching hashes; the trial starts again and ends well."""
    pytest.importorskip("deepspeed")
    import torch

    more = f"matrix:\n  engine: [{engine}]\n  stop.max_epochs: [16]\n"  # lasts, so that it can be killed
    whole = begin(tmp_path / "whole", 1, more).execute()
    run = begin(tmp_path / "killed", 1, more)
    run.plan = run.plan.model_copy(update={"suite": run.plan.suite.model_copy(update={"attempts": 1})})
    with killer(run.folder.root, 0):
        assert [item.status for item in run.execute().attempts] == ["crashed"]
    kept = Checkpoints(run.folder.checkpoints(next(run.plan.trials()).trial_id))
    newest = kept.names()[0]
    victim = next(path for path in sorted((kept.root / newest).rglob("*"))
                  if path.name == ".metadata" or path.suffix == ".pt")
    if victim.suffix == ".pt":
        torch.save(Bomb(tmp_path / "gone-off"), victim)
    else:
        victim.write_bytes(pickle.dumps(Bomb(tmp_path / "gone-off")))
    forge(kept.root / newest, files={victim.relative_to(kept.root / newest).as_posix(): file_sha256(victim)})
    for name in kept.names()[1:]:
        forge(kept.root / name, world=4)
    record = Run(run.plan, run.folder, MACHINE, Silent(), Options(again=True)).execute()
    assert not (tmp_path / "gone-off").exists()
    refused, last = record.attempts[1:]
    assert (refused.status, last.resumed_from) == ("refused", "")
    assert f"checkpoint {newest}: " in refused.reason and "holds more than tensors and plain values" in refused.reason
    if kept.names()[1:]:
        assert "was written by 4 rank(s), this trial has 1" in last.passed_over[0]
    assert hashes(record) == hashes(whole)


def forge(folder: Path, **changes: Any) -> None:
    """Change what a checkpoint says of itself."""
    manifest = json.loads((folder / "checkpoint.json").read_bytes())
    for name, value in changes.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
    (folder / "checkpoint.json").write_text(json.dumps(manifest))


LOW = [(engine, precision)
       for engine in ("single", "ddp", "fsdp", *(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4)))
       for precision in ("bf16-autocast", "bf16-master", "fp16-master")
       if "deepspeed" not in engine or precision != "fp16-master"]  # which DeepSpeed refuses on a CPU


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # DeepSpeed, imported in this process
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "precision"), LOW)
def test_every_precision_resumes_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, engine: str
) -> None:
    """In this process: the trial fails by an exception, and its parts are built again."""
    pytest.importorskip("deepspeed")
    from repro.engines.plain.session import TorchSession

    more = f"  launcher: inline\n  precision: {precision}\nmatrix:\n  engine: [{engine}]\n"
    whole = begin(tmp_path / "whole", 1, more).execute()
    fail_once(monkeypatch, TorchSession, "micro_loss", 40)
    record = begin(tmp_path / "failed", 1, more).execute()
    assert [(item.status, bool(item.resumed_from)) for item in record.attempts] == [
        ("crashed", False), ("missed", True)], [item.reason for item in record.attempts]
    assert hashes(record) == hashes(whole)
    assert record.results[0].effective.get("loss_scale") == whole.results[0].effective.get("loss_scale")


def fail_once(monkeypatch: pytest.MonkeyPatch, where: type, name: str, call: int) -> None:
    """The method raises at its `call`-th call."""
    real, left = getattr(where, name), [call]

    def method(self: Any, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("lost")
        return real(self, *arguments)

    monkeypatch.setattr(where, name, method)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # DeepSpeed, imported in this process
@pytest.mark.parametrize("engine", ["ddp", pytest.param("{kind: deepspeed, stage: 1}", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["warm_up", "save", "load"])
def test_a_failure_leaves_no_process_group_to_the_next_trial_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, name: str
) -> None:
    """Before, in and after the loop: with launcher inline the next attempt begins where the last one ended."""
    if "deepspeed" in engine:
        pytest.importorskip("deepspeed")
    import torch.distributed as dist

    from repro.engines.plain.session import TorchSession

    more = f"  launcher: inline\nmatrix:\n  engine: [{engine}]\n"
    fail_once(monkeypatch, TorchSession, name, 1)
    if name == "load":
        fail_once(monkeypatch, TorchSession, "micro_loss", 40)
    record = begin(tmp_path / "run", 1, more).execute()
    reasons = [item.reason for item in record.attempts]
    assert len(reasons) == (3 if name == "load" else 2), reasons
    assert all("RuntimeError: lost" in reason for reason in reasons[:-1]), reasons
    assert record.attempts[-1].status == "missed"
    assert not dist.is_initialized()
