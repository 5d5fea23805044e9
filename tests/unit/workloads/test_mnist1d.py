"""MNIST-1D: the published procedure's signals, and a network that learns them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.workloads import mnist1d
from repro.workloads.mnist1d import Mnist1d

FIRST, TARGETS = [-0.3320, -0.4719, -0.7787], [2, 6, 4, 5, 6, 6, 6, 0, 3, 1, 6, 9]


def test_the_signals_are_those_of_the_published_package() -> None:
    """Figures of `mnist1d.data.make_dataset()`, mnist1d 0.0.2.post1 with numpy 2.4 and scipy 1.17, rounded."""
    signals = mnist1d.verified(mnist1d.SHA256)
    assert signals.images.shape == (4000, 40)
    assert signals.eval_images.shape == (1000, 40)
    assert signals.images[0, :3].tolist() == pytest.approx(FIRST, abs=1e-6)
    assert signals.targets[:12].tolist() == TARGETS
    together = np.concatenate([signals.images, signals.eval_images])
    assert float(together.mean()) == pytest.approx(0, abs=1e-5)
    assert float(together.std()) == pytest.approx(1, abs=1e-5)
    assert np.bincount(np.concatenate([signals.targets, signals.eval_targets])).tolist() == [500] * 10


def test_making_them_disturbs_no_other_generator() -> None:
    np.random.seed(3)
    first = np.random.rand()
    np.random.seed(3)
    mnist1d.make.cache_clear()
    mnist1d.make()
    assert np.random.rand() == first


def test_other_content_is_refused() -> None:
    with pytest.raises(TrialError, match="numpy or scipy of this installation draw or filter differently"):
        mnist1d.verified("0" * 64)


def test_parts_show_each_sample_as_it_is() -> None:
    workload = Mnist1d()
    parts = workload.build(Streams(7, 0), "cpu")
    assert parts.open_data() == workload.identity().sha256 == mnist1d.SHA256
    indices = np.array([3999, 0])
    inputs, targets = parts.train_batch(5, indices)
    signals = mnist1d.make()
    assert inputs.shape == (2, 1, 40)
    assert np.array_equal(inputs[:, 0].numpy(), signals.images[indices])
    assert targets.tolist() == signals.targets[indices].tolist()
    assert parts.fed is not None
    assert [fed[0].tolist() for fed in parts.fed()] == [[3999, 0]]
    assert parts.synthetic_batch(4)[0].shape == (4, 1, 40)
    assert parts.model(inputs).shape == (2, 10)
    assert sum(item.numel() for item in parts.model.parameters()) == 5210  # the paper's network


def test_weights_follow_the_seed_alone() -> None:
    def digest(seed: int) -> str:
        model = Mnist1d().build(Streams(7, seed), "cpu").model
        return hashlib.sha256(b"".join(item.numpy().tobytes() for item in model.state_dict().values())).hexdigest()

    assert digest(0) == digest(0) != digest(1)


def test_the_network_learns_the_classes() -> None:
    torch.set_num_threads(1)
    parts = Mnist1d().build(Streams(7, 0), "cpu")
    parts.open_data()
    optimizer = torch.optim.AdamW(parts.model.parameters(), lr=5e-3)
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(4000)
        for start in range(0, 4000, 80):
            inputs, targets = parts.train_batch(epoch, order[start : start + 80])
            parts.loss(parts.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    inputs, targets = parts.eval_batch(np.arange(1000))
    with torch.no_grad():
        assert int(parts.scores["top1"](parts.model(inputs), targets)) > 350
