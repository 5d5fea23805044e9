"""What a workload copies to a GPU in every step, as far as it shows on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repro.core.random_streams import Streams
from repro.seams.training import Workload
from repro.workloads import reading
from repro.workloads.cifar10 import Cifar10Synthetic
from repro.workloads.digits import Digits
from repro.workloads.mnist1d import Mnist1d
from repro.workloads.synthetic import Synthetic

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Digits, Synthetic, Mnist1d, Cifar10Synthetic])
def test_what_every_step_copies_to_a_gpu_does_not_hold_up_the_host(
    monkeypatch: pytest.MonkeyPatch, kind: type[Workload]
) -> None:
    """Numbers and draws of samples go by pinned memory; a table goes once."""
    moved: list[np.ndarray] = []

    def to_device(tensor: Any, device: str) -> Any:
        moved.append(tensor.numpy())
        return tensor.to(device)

    monkeypatch.setattr(reading, "to_device", to_device)
    parts = kind().build(Streams(1, 0), "cpu")
    parts.open_data()
    assert not moved
    for step, batch in enumerate((parts.train_batch, parts.eval_batch), 1):
        batch(*((0,) if batch == parts.train_batch else ()), np.arange(4))
        assert len(moved) >= step and all(len(array) == 4 for array in moved)
