"""Workloads: the declared data, the same bytes for the same sample, weights that follow the seed alone."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import TrainingParts, Workload
from repro.workloads import digits, mnist1d, synthetic
from repro.workloads.cifar10 import Cifar10Synthetic
from repro.workloads.digits import Digits, DigitsMlp
from repro.workloads.gpt_synthetic import GptSynthetic
from repro.workloads.imagenet import ImageNetSynthetic
from repro.workloads.mnist1d import Mnist1d
from repro.workloads.synthetic import Synthetic
from repro.workloads.text import Text

SMALL = Synthetic(image_size=8, channels=1, classes=4, samples=512, held_out=128, width=8, depth=2)
ALL = [Digits(), DigitsMlp(hidden=32), DigitsMlp(hidden=32, augment=True), SMALL, Mnist1d()]
TINY = [Text(), GptSynthetic(size="small", context=32), Cifar10Synthetic(samples=64, held_out=32),
        ImageNetSynthetic(samples=64, held_out=32, classes=4, model="alexnet_bn")]


def _open(workload: Workload, seed: int = 0) -> TrainingParts:
    parts = workload.build(Streams(7, seed), "cpu")
    parts.open_data()
    return parts


def _bytes(parts: TrainingParts) -> str:
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in parts.model.state_dict().values())).hexdigest()


def test_content_equals_the_declaration_and_sklearn() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    targets = bunch.target.astype(np.uint8)
    train, evaluation = digits.split(targets)
    digest = hashlib.sha256(digits.content(bunch.images, targets, train, evaluation)).hexdigest()
    assert digest == digits.SHA256 == digits.load().sha256


def test_split_is_disjoint_complete_and_equal_by_class() -> None:
    found = digits.load()
    table = np.concatenate([found.targets, found.eval_targets])
    train, evaluation = digits.split(table)
    assert sorted([*train, *evaluation]) == list(range(1797))
    assert np.bincount(found.eval_targets).tolist() == [36] * 10
    assert len(found.targets) == Digits().train_samples == 1437
    assert len(found.eval_targets) == Digits().eval_samples == 360
    assert np.bincount(found.targets).min() > 130


def test_changed_content_is_refused_with_both_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = digits._table()
    zeroed = whole.copy()
    zeroed[-1, :-1] = 0  # one image of 1797
    monkeypatch.setattr(digits, "_table", lambda: zeroed)
    digits.load.cache_clear()
    try:
        with pytest.raises(TrialError, match=f"expected {digits.SHA256}, found [0-9a-f]{{64}}"):
            Digits().identity()
        with pytest.raises(TrialError, match="found"):
            DigitsMlp(hidden=8).build(Streams(0, 0), "cpu").open_data()
    finally:
        digits.load.cache_clear()


def test_sizes_are_known_without_torch_or_sklearn() -> None:
    code = (
        "import sys; from repro.workloads import digits, synthetic\n"
        "for w in (digits.Digits(), digits.DigitsMlp(), synthetic.Synthetic()):\n"
        "    print(w.train_samples, w.eval_samples, w.title)\n"
        "w.identity(); digits.Digits().identity()\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)"
    )
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root}, timeout=60)


@pytest.mark.parametrize("workload", ALL, ids=lambda each: type(each).__name__)
def test_identity_describes_the_data_that_build_reads(workload: Workload) -> None:
    identity = workload.identity()
    assert workload.build(Streams(7, 0), "cpu").open_data() == identity.sha256
    assert (identity.train_samples, identity.eval_samples) == (workload.train_samples, workload.eval_samples)


@pytest.mark.parametrize("workload", [*ALL, *TINY], ids=lambda each: type(each).__name__)
def test_weights_follow_the_seed_alone(workload: Workload) -> None:
    first = _bytes(workload.build(Streams(7, 0), "cpu"))
    torch.rand(17)
    torch.set_default_dtype(torch.float64)
    try:
        state = torch.get_rng_state()
        assert _bytes(workload.build(Streams(7, 0), "cpu")) == first
        assert torch.equal(torch.get_rng_state(), state), "the global generator is put back"
    finally:
        torch.set_default_dtype(torch.float32)
    assert _bytes(workload.build(Streams(7, 1), "cpu")) != first


@pytest.mark.parametrize("workload", ALL, ids=lambda each: type(each).__name__)
def test_a_sample_has_the_same_bytes_however_batches_are_cut(workload: Workload) -> None:
    indices = np.random.default_rng(3).permutation(workload.train_samples)[:48]
    whole, targets = _open(workload).train_batch(2, indices)
    other = _open(workload)
    other.train_batch(5, indices)
    parts = [other.train_batch(2, indices[rank::3]) for rank in (2, 0, 1)]
    for rank, (inputs, part_targets) in zip((2, 0, 1), parts, strict=True):
        assert torch.equal(inputs, whole[rank::3])
        assert torch.equal(part_targets, targets[rank::3])


def test_augmentation_shifts_by_one_pixel_and_changes_with_epoch_and_seed() -> None:
    indices = np.arange(1437)
    plain, targets = _open(Digits(augment=False)).train_batch(0, indices)
    drawn = [_open(Digits(), seed).train_batch(epoch, indices)[0] for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    padded = torch.nn.functional.pad(plain, (1, 1, 1, 1), value=-1)
    shifts = [padded[:, :, down : down + 8, right : right + 8] for down in range(3) for right in range(3)]
    same = torch.stack([(shift == drawn[0]).flatten(1).all(1) for shift in shifts])
    assert same.any(0).all()
    assert same.sum(1).min() > 1437 / 9 / 2, "all nine shifts are drawn"
    assert torch.equal(targets, torch.from_numpy(digits.load().targets.astype(np.int64)))


@pytest.mark.parametrize("workload", ALL, ids=lambda each: type(each).__name__)
def test_synthetic_batches_need_no_data_and_fit(workload: Workload) -> None:
    parts = workload.build(Streams(7, 0), "cpu")
    inputs, targets = parts.synthetic_batch(6)
    outputs = parts.model(inputs)
    assert torch.isfinite(parts.loss(outputs, targets))
    parts.open_data()
    real, real_targets = parts.eval_batch(np.arange(6))
    assert (real.shape, real.dtype, real_targets.dtype) == (inputs.shape, inputs.dtype, targets.dtype)


@pytest.mark.parametrize("workload", ALL)
def test_an_evaluation_shows_every_sample_once_as_it_is(workload: Workload) -> None:
    """Check the statement of `test_views`: one row a sample, the same bytes each time, all of different rows."""
    assert workload.test_views == 1
    parts, again = _open(workload), _open(workload, seed=1)
    everything = np.arange(workload.eval_samples)
    inputs, targets = parts.eval_batch(everything)
    assert len(inputs) == len(targets) == workload.eval_samples
    assert torch.equal(inputs, parts.eval_batch(everything)[0]) and torch.equal(inputs, again.eval_batch(everything)[0])
    assert torch.equal(inputs[5:9], parts.eval_batch(everything[5:9])[0])
    shown: list[int] = []
    parts.model.register_forward_hook(lambda module, given, outputs: shown.append(len(given[0])))
    with torch.no_grad():
        assert len(parts.model(inputs)) == workload.eval_samples
    assert shown == [workload.eval_samples]


def test_top1_counts_and_loss_is_float32_whatever_the_model_gives() -> None:
    parts = Digits().build(Streams(7, 0), "cpu")
    outputs = torch.eye(10, dtype=torch.bfloat16)[[1, 2, 3]]
    targets = torch.tensor([1, 2, 4])
    assert parts.scores["top1"](outputs, targets).item() == 2
    assert parts.loss(outputs, targets).dtype == torch.float32


def test_with_group_norm_the_mean_of_halves_equals_the_full_batch() -> None:
    parts = _open(Digits())
    inputs, targets = parts.train_batch(0, np.arange(32))
    whole = parts.loss(parts.model(inputs), targets)
    halves = [parts.loss(parts.model(inputs[half]), targets[half]) for half in (slice(16), slice(16, 32))]
    assert torch.isclose(whole, torch.stack(halves).mean(), rtol=1e-5)
    batch = _open(Digits(norm="batch"))
    assert any(isinstance(each, torch.nn.BatchNorm2d) for each in batch.model.modules())


def _accuracy_after(workload: Workload, epochs: int, rate: float) -> float:
    parts = _open(workload)
    optimizer = torch.optim.SGD(parts.model.parameters(), lr=rate, momentum=0.9, nesterov=True)
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(workload.train_samples)
        for start in range(0, workload.train_samples - 63, 64):
            inputs, targets = parts.train_batch(epoch, order[start : start + 64])
            parts.loss(parts.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        inputs, targets = parts.eval_batch(np.arange(workload.eval_samples))
        return float(parts.scores["top1"](parts.model(inputs), targets)) / workload.eval_samples


@pytest.mark.parametrize(
    ("workload", "epochs", "rate", "least"),
    [(SMALL, 6, 0.05, 0.8), pytest.param(Digits(), 3, 0.05, 0.8, marks=pytest.mark.slow),
     (DigitsMlp(hidden=128), 3, 0.05, 0.9),
     pytest.param(Mnist1d(), 4, 0.05, 0.35, marks=pytest.mark.slow)],
    ids=["synthetic", "digits", "digits-mlp", "mnist1d"],
)
def test_accuracy_rises(workload: Workload, epochs: int, rate: float, least: float) -> None:
    assert _accuracy_after(workload, epochs, rate) > least


def test_made_up_data_are_labelled_and_follow_the_options() -> None:
    assert SMALL.synthetic
    assert not Digits.synthetic
    other = SMALL.model_copy(update={"data_seed": 1})
    assert SMALL.identity().sha256 == SMALL.identity().sha256 != other.identity().sha256
    images = synthetic.draw(synthetic.Recipe(8, 1, 4, 512, 128, 0))
    assert np.bincount(images.targets).min() > 100


@pytest.mark.parametrize("workload", [*ALL, *TINY], ids=lambda each: type(each).__name__)
def test_a_workload_says_whether_input_workers_can_read_its_samples(workload: Workload) -> None:
    assert workload.reads_samples == (workload.build(Streams(7, 0), "cpu").reader is not None)


# ---- MNIST-1D: the published procedure's signals

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


# ---- what is stated without building


@pytest.mark.parametrize("workload", [
    Digits(), Digits(norm="batch"), DigitsMlp(hidden=8, depth=2), Mnist1d(), Synthetic(depth=2, samples=8, held_out=8),
    Text(layers=2), GptSynthetic(layers=1, heads=2, width=16), GptSynthetic(layers=2, heads=2, width=16, tied=False)],
    ids=lambda workload: f"{type(workload).__name__}{workload.model_dump(exclude_defaults=True)}")
def test_the_stated_number_of_tensors_is_that_of_the_model(workload: Workload) -> None:
    model = workload.build(Streams(0, 0), "cpu").model
    assert workload.tensor_count == sum(parameter.requires_grad for parameter in model.parameters())
