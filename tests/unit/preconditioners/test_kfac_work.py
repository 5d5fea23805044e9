"""The modelled work of K-FAC: from the layers that workloads state, which are those of their models."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from repro.cli.text.suite import plan_text  # noqa: E402
from repro.core.random_streams import Streams  # noqa: E402
from repro.papers.kfac.factors import find_layers  # noqa: E402
from repro.papers.kfac.kfac import Kfac  # noqa: E402
from repro.seams.training import Workload  # noqa: E402
from repro.seams.workload import call_model  # noqa: E402
from repro.suite.planning.cost import estimate  # noqa: E402
from repro.suite.planning.plan import Plan  # noqa: E402
from repro.workloads.digits import Digits, DigitsMlp  # noqa: E402
from repro.workloads.gpt_synthetic import GptSynthetic  # noqa: E402
from repro.workloads.mnist1d import Mnist1d  # noqa: E402
from repro.workloads.text import Text  # noqa: E402
from tests import plans  # noqa: E402
from tests.plans import suite  # noqa: E402


@pytest.mark.parametrize("workload", [
    Mnist1d(), Mnist1d(channels=7), Digits(), DigitsMlp(hidden=32, depth=2), Text(context=16, width=32),
    GptSynthetic(size="small", layers=1, width=16, heads=2, context=8, tied=False, pad_vocabulary=64),
], ids=lambda item: item.title)
def test_the_stated_layers_are_those_of_the_model(workload: Workload) -> None:
    parts = workload.build(Streams(1, 0), "cpu")
    layers = find_layers(parts.model, 1 << 20)
    samples, rows = 3, {}
    for layer in layers:
        layer.module.register_forward_hook(
            lambda module, inputs, output, layer=layer: rows.update({layer.weight: len(layer.output_rows(output))}))
    with torch.no_grad():
        call_model(parts.model, parts.synthetic_batch(samples)[0])
    assert workload.layer_shapes is not None
    assert [(item.inputs, item.outputs, item.positions * samples) for item in workload.layer_shapes] == [
        (*layer.sizes, rows[layer.weight]) for layer in layers]
    assert [item.bias for item in workload.layer_shapes] == [layer.module.bias is not None for layer in layers]


def test_bytes_are_those_that_the_meter_counted() -> None:
    """docs/kfac.md: 117,756 in a factor step, 119,232 in an eigen step of opt, 20,840 in every step of lw."""
    shapes = Mnist1d().layer_shapes
    every = Kfac(eigen_every=1).work(shapes, 100, 2)
    tenth = Kfac(eigen_every=10).work(shapes, 100, 2)
    divided = Kfac(eigen_every=1, placement="lw").work(shapes, 100, 2)
    assert every and tenth and divided
    assert every.sent_bytes == 117_756 + 119_232
    assert tenth.sent_bytes == pytest.approx(117_756 + 11_923.2)
    assert divided.sent_bytes == 117_756 + 20_840
    alone = Kfac().work(shapes, 100, 1)
    assert alone and (alone.sent_bytes, alone.messages) == (0, 0)


def test_operations_follow_from_layers_batch_and_periods() -> None:
    shapes = DigitsMlp(hidden=8, depth=1).layer_shapes  # 65 x 8 and 9 x 10
    observed = 2 * 50 * (65**2 + 8**2 + 9**2 + 10**2)
    cubes = 65**3 + 8**3 + 9**3 + 10**3
    products = 65 * 8 * 73 + 9 * 10 * 19
    for options, wanted in (
        (Kfac(eigen_every=1), observed + 9 * cubes + 2 * 4 * products),
        (Kfac(eigen_every=4, factor_every=2), observed / 2 + 9 * cubes / 4 + 2 * 4 * products),
        (Kfac(eigen_every=1, placement="lw", inverse="direct"), observed + 2 * cubes + 2 * products),
        (Kfac(eigen_every=1, largest_factor=64), observed - 2 * 50 * (65**2 + 8**2) + 9 * (9**3 + 10**3)
         + 8 * 9 * 10 * 19),
    ):
        work = options.work(shapes, 50, 2)
        assert work and work.flops == pytest.approx(wanted)


def planned(tmp_path: Path, preconditioner: str, workload: str = "mnist1d", metric: str = "top1") -> tuple[Plan, str]:
    plan = plans.planned(tmp_path, suite(
        "preconditioned", seeds=2, workload=workload, batch=100, preconditioner=preconditioner, evaluate_every=2000,
        stop=f"{{metric: {metric}, target: 0.9, max_epochs: 20}}", processes=2))
    return plan, plan_text(plan, estimate(plan))


def test_the_plan_counts_it(tmp_path: Path) -> None:
    seconds = []
    for preconditioner in ("none", "{kind: kfac, eigen_every: 100}", "{kind: kfac, eigen_every: 1}"):
        plan, text = planned(tmp_path, preconditioner)
        seconds.append(estimate(plan).full_budget_seconds)
        assert ("own work of preconditioners in a mean step (modelled by formula):" in text) == (
            preconditioner != "none")
    assert seconds == sorted(seconds) and seconds[1] > 1.3 * seconds[0] and seconds[2] > 1.2 * seconds[1]


def test_a_workload_without_stated_layers_is_said(tmp_path: Path) -> None:
    _, text = planned(tmp_path, "kfac", "synthetic", "top1")
    assert "2 processes: unknown, and not in the cost: the workload does not state its layers" in text
