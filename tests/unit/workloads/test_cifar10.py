"""CIFAR-10: files in the real formats are read, checked and augmented as declared."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.workloads import cifar10_form, nets
from repro.workloads.cifar10 import MEAN, STD, Augmentation, Cifar10, Cifar10Synthetic, SmallImageBatches, load
from repro.workloads.cifar10_form import Cifar10Form, as_records
from repro.workloads.data import manifest
from repro.workloads.reading import InMemory
from tests.made_data import archive, as_pickle, cifar10_contents, cifar10_folder, prepared

torch = pytest.importorskip("torch")


# ---- files

def test_every_form_of_the_files_gives_the_same_data(tmp_path: Path) -> None:
    contents = cifar10_contents()
    binary = {f"cifar-10-batches-bin/{name}": item.tobytes() for name, item in contents.items()}
    pickles = {f"cifar-10-batches-py/{Path(name).stem}": as_pickle(item) for name, item in contents.items()}
    (tmp_path / "py").mkdir()
    for name, raw in pickles.items():
        (tmp_path / "py" / Path(name).name).write_bytes(raw)
    archive(tmp_path / "cifar-10-binary.tar.gz", {**binary, "cifar-10-batches-bin/readme.html": b"x"})
    archive(tmp_path / "cifar-10-python.tar.gz", {**pickles, "cifar-10-batches-py/batches.meta": b"x"})
    given = [cifar10_folder(tmp_path / "bin"), tmp_path / "cifar-10-binary.tar.gz", tmp_path / "py",
             tmp_path / "cifar-10-python.tar.gz"]
    identities = {prepared(Cifar10Form(), path).sha256 for path in given}
    assert len(identities) == 1
    found = load(manifest.find("cifar10"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        found.images[200].transpose(2, 0, 1).ravel(), contents["data_batch_2.bin"][200 - 128, 1:])
    assert found.targets[200] == contents["data_batch_2.bin"][72, 0]
    np.testing.assert_array_equal(found.eval_targets, contents["test_batch.bin"][:, 0])


def test_made_up_files_are_called_that(tmp_path: Path) -> None:
    made = prepared(Cifar10Form(), cifar10_folder(tmp_path / "bin"))
    assert made.manifest.version == "not the official files"
    assert made.manifest.facts == {"train_samples": 256, "eval_samples": 64, "official": False}


def test_files_with_the_official_sums_are_called_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cifar10_folder(tmp_path / "bin")
    sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in cifar10_contents()}
    monkeypatch.setattr(cifar10_form, "OFFICIAL", sums)
    assert prepared(Cifar10Form(), folder).manifest.version == "official files"
    (folder / "data_batch_3.bin").write_bytes((folder / "data_batch_1.bin").read_bytes())
    assert prepared(Cifar10Form(), folder).manifest.version == "not the official files"


def test_training_files_count_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    made = prepared(Cifar10Form(), cifar10_folder(tmp_path / "bin", train=240, files=12))
    found = load(made)
    contents = cifar10_contents(240, files=12)
    expected = np.concatenate([contents[f"data_batch_{number}.bin"][:, 0] for number in range(1, 13)])
    np.testing.assert_array_equal(found.targets, expected)


# ---- bad input

def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    members = {name: item.tobytes() for name, item in cifar10_contents().items()}
    path = archive(tmp_path / "cifar-10-binary.tar.gz", members)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz: is truncated, or no archive; the official"):
        prepared(Cifar10Form(), path)
    path.write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"\.tar\.gz: is truncated, or no archive; the official \S+ has \S+ bytes$"):
        prepared(Cifar10Form(), path)
    with pytest.raises(UsageError, match="holds no CIFAR-10 batches"):
        prepared(Cifar10Form(), archive(tmp_path / "other.tar.gz", {"readme": b"x"}))


@pytest.mark.parametrize(("change", "message"), [
    (lambda raw: raw[:-1], r"data_batch_1\.bin: has 393,343 bytes, .*truncated, or no CIFAR-10; .*30,730,000 bytes"),
    (lambda raw: b"", r"data_batch_1\.bin: has 0 bytes"),
    (lambda raw: raw[:3073] + b"\x0b" + raw[3074:], r"data_batch_1\.bin: record 1 has label 11, labels are 0 to 9"),
])
def test_wrong_files_are_named(tmp_path: Path, change: object, message: str) -> None:
    folder = cifar10_folder(tmp_path / "bin")
    path = folder / "data_batch_1.bin"
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        prepared(Cifar10Form(), folder)


def test_absent_files_are_named(tmp_path: Path) -> None:
    folder = cifar10_folder(tmp_path / "bin")
    (folder / "test_batch.bin").unlink()
    with pytest.raises(UsageError, match=r"has no test_batch\.bin; wanted: a folder with data_batch_1\.bin"):
        prepared(Cifar10Form(), folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no CIFAR-10 files"):
        prepared(Cifar10Form(), tmp_path / "empty")


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_names_code_is_refused_and_not_run(tmp_path: Path) -> None:
    raw = pickle.dumps({b"data": _Runs(tmp_path / "ran"), b"labels": []}, protocol=2)
    with pytest.raises(UsageError, match=r"data_batch_1: is no plain CIFAR-10 batch.*posix\.mkdir.*binary version"):
        as_records(raw, "data_batch_1")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [
    [1, 2], {b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]}, {b"data": np.zeros((2, 9), np.uint8)},
    {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]},
    {b"data": np.array([object()]), b"labels": [1]},
])
def test_other_pickles_are_refused(content: object) -> None:
    with pytest.raises(UsageError, match=r"^place: .*binary version"):
        as_records(pickle.dumps(content, protocol=2), "place")


def test_members_of_an_archive_cannot_leave_the_store(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("../../data_batch_1.bin", "/tmp/test_batch.bin"):
            info = tarfile.TarInfo(name)
            data = cifar10_contents()["test_batch.bin"].tobytes()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("data_batch_2.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    made = prepared(Cifar10Form(), path)
    assert sorted(item.name for item in made.folder.iterdir()) == ["data_batch_1.bin", "test_batch.bin"]
    assert not (tmp_path / "data_batch_1.bin").exists()


def test_data_that_changed_or_have_other_counts_are_refused(tmp_path: Path) -> None:
    folder = cifar10_folder(tmp_path / "bin")
    prepared(Cifar10Form(), folder)
    workload = Cifar10.model_validate(Cifar10.found_here({}))
    assert (workload.train_samples, workload.eval_samples) == (256, 64)
    assert workload.identity().sha256 == workload.build(Streams(1, 0), "cpu").open_data()
    with pytest.raises(TrialError, match="the plan is for data with train_samples 50000, those prepared here have 256"):
        Cifar10().identity()
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[::-1])
    for use in (workload.identity, workload.build(Streams(1, 0), "cpu").open_data):
        with pytest.raises(TrialError, match=r"data_batch_2\.bin.* has changed since the manifest was made"):
            use()


# ---- batches

SIDE = 32
ALL = Augmentation(flip=True, crop=True, cutout=8)


def _batches(augmentation: Augmentation, samples: int = 64, repeat: int = 0) -> SmallImageBatches:
    generator = np.random.default_rng(3)
    images = generator.integers(256, size=(samples, SIDE, SIDE, 3), dtype=np.uint8)
    targets = generator.integers(10, size=samples)
    made = SmallImageBatches(lambda: InMemory(images, targets, images[:8], targets[:8], "x"), samples, augmentation,
                             Streams(5, repeat), "cpu")
    made.open()
    return made


def _by_hand(image: np.ndarray, code: int, augmentation: Augmentation) -> np.ndarray:
    """Return one augmented image by numpy's own mirroring and slicing: [3, side, side] float."""
    rest, flip = divmod(code, 2)
    rest, down = divmod(rest, 9)
    rest, right = divmod(rest, 9)
    middle_y, middle_x = divmod(rest, SIDE)
    found = image
    if augmentation.crop:
        padded = np.pad(found, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        found = padded[down:down + SIDE, right:right + SIDE]
    if augmentation.flip and flip:
        found = found[:, ::-1]
    scaled = (found / 255 - np.array(MEAN)) / np.array(STD)
    if augmentation.cutout:
        half = augmentation.cutout // 2
        scaled[max(0, middle_y - half):max(0, middle_y + half), max(0, middle_x - half):max(0, middle_x + half)] = 0
    return scaled.transpose(2, 0, 1)


def test_the_same_sample_has_the_same_bytes_in_any_batch() -> None:
    batches, other = _batches(ALL), _batches(ALL)
    together, _ = batches.train(3, np.arange(20))
    for index in (7, 0, 19):
        alone, _ = other.train(3, np.array([index]))
        assert torch.equal(alone[0], together[index])
    assert not torch.equal(batches.train(4, np.arange(20))[0], together)
    fed = batches.fed()
    np.testing.assert_array_equal(fed[0][1], batches.draws(3, np.arange(20)))
    assert not torch.equal(_batches(ALL, repeat=1).train(3, np.arange(20))[0], together)


@pytest.mark.parametrize("augmentation", [
    ALL, Augmentation(True, False, 0), Augmentation(False, True, 0), Augmentation(False, False, 16),
    Augmentation(True, True, 0),
], ids=str)
def test_augmentation_is_what_it_says(augmentation: Augmentation) -> None:
    batches = _batches(augmentation)
    found, targets = batches.train(2, np.arange(64))
    codes = batches.fed()[0][1]
    assert codes is not None and found.is_contiguous() and found.dtype == torch.float32
    images = batches._train.numpy()
    expected = np.stack([_by_hand(images[index], int(codes[index]), augmentation) for index in range(64)])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(targets, batches._train_targets)


def test_without_augmentation_nothing_is_drawn() -> None:
    batches = _batches(Augmentation(False, False, 0))
    found, _ = batches.train(0, np.arange(4))
    assert batches.fed()[0][1] is None
    assert torch.equal(found[:4], batches.evaluation(np.arange(4))[0])
    parts = Cifar10Synthetic(flip=False, crop=False, samples=20, held_out=10).build(Streams(1, 0), "cpu")
    assert parts.draws is None


# ---- networks

@pytest.mark.parametrize(("name", "width", "weights"), [
    ("resnet20", 16, 269_722), ("resnet32", 16, 464_154),  # He et al. 2016, table 6: 0.27 and 0.46 million
    ("nin", 192, 966_986),  # the layers of Lin et al. 2014, with biases
    ("resnet9", 64, 6_573_120),  # the layers of Page's net
])
def test_networks_have_their_published_size_in_several_blocks(name: str, width: int, weights: int) -> None:
    net = nets.SMALL[name](10, width)
    assert sum(item.numel() for item in net.parameters()) == weights
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert max(sum(item.numel() for item in child.parameters()) for child in net.children()) < 0.75 * weights


def test_the_first_output_is_moderate_and_depends_on_the_seed_alone() -> None:
    for name in nets.SMALL:
        workload = Cifar10Synthetic(model=name, samples=64, held_out=10)
        parts, again = workload.build(Streams(1, 0), "cpu"), workload.build(Streams(1, 0), "cpu")
        parts.open_data()
        inputs, targets = parts.train_batch(0, np.arange(32))
        loss = parts.loss(parts.model(inputs), targets)
        assert 1.5 < loss.item() < 6, name
        assert all(torch.equal(one, other) for one, other in
                   zip(parts.model.parameters(), again.model.parameters(), strict=True))


def test_the_twin_has_the_shapes_of_the_data_set() -> None:
    workload = Cifar10Synthetic()
    real = Cifar10()
    assert (workload.train_samples, workload.eval_samples) == (real.train_samples, real.eval_samples)
    assert workload.synthetic and not real.synthetic
    small = Cifar10Synthetic(samples=30, held_out=10)
    parts = small.build(Streams(1, 0), "cpu")
    assert parts.open_data() == small.identity().sha256
    inputs, targets = parts.eval_batch(np.arange(10))
    assert inputs.shape == (10, 3, 32, 32) and targets.shape == (10,)


def test_label_smoothing_is_in_the_training_loss_only() -> None:
    parts = Cifar10Synthetic(label_smoothing=0.2, samples=30, held_out=10).build(Streams(1, 0), "cpu")
    outputs = torch.tensor([[10.0] + [0.0] * 9])
    expected = -(0.8 * torch.log_softmax(outputs, 1)[0, 0] + 0.02 * torch.log_softmax(outputs, 1)[0].sum())
    assert parts.loss(outputs, torch.tensor([0])).item() == pytest.approx(float(expected))
