"""The number of tensors that a workload states without building its model."""

from __future__ import annotations

import pytest

from repro.core.random_streams import Streams
from repro.seams.training import Workload
from repro.workloads.digits import Digits, DigitsMlp
from repro.workloads.gpt_synthetic import GptSynthetic
from repro.workloads.mnist1d import Mnist1d
from repro.workloads.synthetic import Synthetic
from repro.workloads.text import Text

pytest.importorskip("torch")


@pytest.mark.parametrize("workload", [
    Digits(), Digits(norm="batch"), DigitsMlp(hidden=8, depth=2), Mnist1d(), Synthetic(depth=2, samples=8, held_out=8),
    Text(layers=2), GptSynthetic(layers=1, heads=2, width=16), GptSynthetic(layers=2, heads=2, width=16, tied=False)],
    ids=lambda workload: f"{type(workload).__name__}{workload.model_dump(exclude_defaults=True)}")
def test_the_stated_number_of_tensors_is_that_of_the_model(workload: Workload) -> None:
    model = workload.build(Streams(0, 0), "cpu").model
    assert workload.tensor_count == sum(parameter.requires_grad for parameter in model.parameters())
