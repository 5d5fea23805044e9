"""The layers that workloads state are those of their models."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from repro.core.random_streams import Streams  # noqa: E402
from repro.papers.kfac.factors import find_layers  # noqa: E402
from repro.seams.training import Workload  # noqa: E402
from repro.seams.workload import call_model  # noqa: E402
from repro.workloads.digits import Digits, DigitsMlp  # noqa: E402
from repro.workloads.gpt_synthetic import GptSynthetic  # noqa: E402
from repro.workloads.mnist1d import Mnist1d  # noqa: E402
from repro.workloads.text import Text  # noqa: E402


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
