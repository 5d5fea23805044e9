"""Options of engine ddp on how gradients leave: what a plan refuses, each in a line, and what it notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.comm.algorithms.ring import Ring
from repro.core.errors import SuiteError, TrialError
from repro.core.random_streams import Streams
from repro.engines.precisions import Fp32
from repro.engines.torch_engines import Ddp
from repro.optimizers.rules import Sgd
from repro.seams.training import Job, TrainingParts
from repro.suite.planning.plan import Plan
from tests.commands import free_port
from tests.plans import planned, setting, suite

FACTORS = "send: layerwise, sufficient_factors: planned"


def plan(folder: Path, engine: str, more: str = "") -> Plan:
    return planned(folder, suite(
        "sending", more, seeds=6, workload="{kind: digits-mlp, hidden: 16}", engine=f"{{kind: ddp, {engine}}}",
        optimizer="{kind: sgd, lr: 0.02}", stop="{design: fixed_steps, steps: 10}", evaluate_every=None,
        processes=None if "  processes: 1" in more else 2))


REFUSED = [
    ("sufficient_factors: all", "", "use send: layerwise, not bucketed"),
    ("send: blocking, sufficient_factors: all", "", "use send: layerwise, not blocking"),
    (FACTORS, "  compression: bf16", "compression works on DDP's buckets"),
    (FACTORS + ", static_graph: true", "", "remove static_graph and find_unused"),
    (FACTORS + ", find_unused: true", "", "remove static_graph and find_unused"),
    (FACTORS, "  compile: true", "remove compile"),
    (FACTORS, "  activation_checkpointing: true", "remove activation_checkpointing"),
    (FACTORS, "  processes: 1", "one process sends nothing"),
    ("send: blocking", "  overlap: true", "remove overlap, or use send: bucketed"),
    ("send: layerwise, bucket_mib: 1", "", "bucket_mib has no effect with send: layerwise"),
]


@pytest.mark.parametrize(("engine", "more", "reason"), REFUSED)
def test_what_cannot_be_sent_so_is_refused_with_its_reason(
    tmp_path: Path, engine: str, more: str, reason: str
) -> None:
    with pytest.raises(SuiteError) as refused:
        plan(tmp_path, engine, more)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_a_plan_shows_the_cost_table(tmp_path: Path) -> None:
    told = [note for note in plan(tmp_path, FACTORS).notes if "gradients by layer" in note]
    assert len(told) == 1 and " KiB in " in told[0] and "sends " in told[0]
    assert not [note for note in plan(tmp_path, "send: layerwise").notes if "gradients by layer" in note]


def test_convolutions_only_are_refused_in_the_plan() -> None:
    reason = Ddp(send="layerwise", sufficient_factors="all").unsupported(setting(linear_layers=False))
    assert reason is not None and "all layers of the model are convolutions" in reason
    assert Ddp(send="layerwise", sufficient_factors="all").unsupported(setting(linear_layers=None)) is None


def test_a_model_that_can_send_no_factors_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload need not state its layers; a group of one process is enough to find out."""
    torch = pytest.importorskip("torch")
    from torch import nn

    convolutions = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten())
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    bare = nn.Sequential(nn.Linear(4, 4, bias=False))
    for model, inputs, reason in ((convolutions, torch.zeros(2, 1, 5, 5), "would have no effect"),
                                  (tied, torch.zeros(2, 4), "would have no effect"),
                                  (bare, torch.zeros(2, 4), "leave DDP no parameter")):
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(free_port()))
        parts = TrainingParts(model, nn.functional.mse_loss, {}, unused, unused, lambda _, x=inputs: (x, x), unused)
        job = Job(0, 1, "cpu", 2, 1, None, Fp32(), Sgd(lr=0.1), Ring())
        with pytest.raises(TrialError, match=reason) as refused:
            Ddp(send="layerwise", sufficient_factors="all").start(parts, job, Streams(1, 0))
        assert "\n" not in str(refused.value)


def unused(*_: object) -> object:
    raise AssertionError
