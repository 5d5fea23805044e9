"""Images in class folders: read, cut out and labelled as declared; bad files are named."""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.workloads import imagenet_form
from repro.workloads.data.manifest import Prepared
from repro.workloads.imagenet import ImageNet, ImageNetSynthetic
from repro.workloads.imagenet_form import ImageNetForm, ImageReader, drawn, side_in
from tests.made_data import image_folders, prepared

torch = pytest.importorskip("torch")

from repro.workloads import classification, nets  # noqa: E402

STAGES = ((0, 32), (2, 48))
STREAMS = Streams(7, 0)


@pytest.fixture
def data(tmp_path: Path) -> Prepared:
    return prepared(ImageNetForm(), image_folders(tmp_path / "images"))


def _reader(data: Prepared) -> ImageReader:
    return ImageReader(data, STREAMS, STAGES, 40)


# ---- reading

def test_counts_come_from_the_files(data: Prepared) -> None:
    assert data.manifest.facts == {"train_samples": 48, "eval_samples": 16, "classes": 4}
    assert data.manifest.version == "other numbers than ILSVRC2012"
    workload = ImageNet.model_validate({**ImageNet.found_here({}), "image_size": 32})
    parts = workload.build(STREAMS, "cpu")
    assert parts.open_data() == workload.identity().sha256 == data.sha256
    outputs = parts.model(parts.train_batch(0, np.arange(4))[0])
    assert outputs.shape == (4, 4)
    np.testing.assert_array_equal(parts.fed()[0][1], parts.draws(0, np.arange(4)))  # type: ignore[misc]
    assert parts.reader is not None
    assert parts.synthetic_batch(3)[0].shape == (3, 3, 32, 32)


def test_labels_are_those_of_the_folders(data: Prepared) -> None:
    reader = _reader(data)
    reader.open()
    for side in reader._samples:
        assert [f"n{target:08}" for target in side.targets] == [path.decode().split("/")[1] for path in side.paths]
    images, found = reader.evaluation(np.array([3, 0]))
    assert images.shape == (2, 3, 40, 40) and images.dtype == torch.float32
    np.testing.assert_array_equal(found, reader._samples[1].targets[[3, 0]])


def test_labels_in_a_file_give_the_same(data: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _reader(data).evaluation(np.arange(16))
    order = np.argsort([path.decode().split("/")[-1] for path in _reader(data)._samples[1].paths])
    monkeypatch.setenv("REPRO_DATA", str(tmp_path / "other"))
    flat = prepared(ImageNetForm(), image_folders(tmp_path / "flat", val_folders=False))
    found = _reader(flat).evaluation(np.arange(16))
    assert torch.equal(found[0], expected[0][order]) and torch.equal(found[1], expected[1][order])
    lines = (tmp_path / "flat" / "val.txt").read_text().split("\n")[:-1]
    (tmp_path / "flat" / "val.txt").unlink()
    (tmp_path / "flat" / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(
        f"{line.split('.')[0]},{line.split()[1]} 85 1 499 272\n" for line in lines))
    kaggle = _reader(prepared(ImageNetForm(), tmp_path / "flat")).evaluation(np.arange(16))
    assert torch.equal(kaggle[0], found[0]) and torch.equal(kaggle[1], found[1])


def test_a_copy_in_a_worker_reads_the_same_bytes_in_any_batch(data: Prepared) -> None:
    reader = _reader(data)
    reader.open()
    whole = reader.train(1, np.arange(12))
    copy = pickle.loads(pickle.dumps(reader))
    (data.home / "files.txt").unlink()  # a copy of an opened reader needs no list
    copy.train(0, np.arange(3))
    for index in (5, 0, 11):
        alone = copy.train(1, np.array([index]))
        assert torch.equal(alone.batch[0][0], whole.batch[0][index])
        np.testing.assert_array_equal(alone.fed[1], whole.fed[1][[index]])  # type: ignore[index]
    np.testing.assert_array_equal(whole.fed[1], drawn(STREAMS, 1, 48)[:12])
    assert not torch.equal(reader.train(0, np.arange(12)).batch[0], whole.batch[0])


def test_resizing_follows_the_epochs(data: Prepared) -> None:
    assert [side_in(STAGES, epoch) for epoch in range(4)] == [32, 32, 48, 48]
    reader = _reader(data)
    assert [reader.train(epoch, np.arange(2)).batch[0].shape[-1] for epoch in (1, 2)] == [32, 48]
    for wrong in ([[1, 64]], [[0, 64], [0, 96]], [[0, 16]], [[0, 4096]]):
        with pytest.raises(ValidationError):
            ImageNet(resizing=wrong)
    with pytest.raises(ValidationError, match="alexnet_bn needs images of at least 64"):
        ImageNet(model="alexnet_bn", image_size=32)


# ---- decoding

def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def test_a_centre_crop_is_the_middle_seven_eighths() -> None:
    pixels = np.zeros((256, 320, 3), np.uint8)
    pixels[16:240, 48:272] = 200  # the middle 224 x 224
    assert (imagenet_form.centre_crop(_png(pixels), 224) == 200).all()
    drawn = np.random.default_rng(0).integers(256, size=(512, 640, 3), dtype=np.uint8)
    resized = np.asarray(Image.fromarray(drawn).resize((320, 256), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(imagenet_form.centre_crop(_png(drawn), 224), resized[16:240, 48:272])


def test_random_crops_have_the_declared_areas_and_aspects() -> None:
    generators = [np.random.default_rng(seed) for seed in range(2000)]
    boxes = np.array([imagenet_form._box(400, 300, generator) for generator in generators])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 400 and boxes[:, 3].max() <= 300
    share, aspect = wide * high / 120_000, wide / high
    assert share.min() > 0.075 and share.max() <= 1.0
    assert 0.73 < aspect.min() < 0.78 and 1.30 < aspect.max() < 1.37
    always_fits = share[share < 0.56]  # at any aspect: uniform
    assert abs(always_fits.mean() - 0.32) < 0.02
    assert imagenet_form._box(1000, 1, np.random.default_rng(0))[3] == 1  # nothing fits: the middle


def test_half_of_the_images_are_mirrored() -> None:
    ramp = np.broadcast_to(np.linspace(0, 255, 64)[None, :, None], (64, 64, 3)).astype(np.uint8)
    found = [imagenet_form.random_crop(_png(ramp), 32, draw) for draw in range(400)]
    mirrored = sum(bool(image[0, 0, 0] > image[0, -1, 0]) for image in found)
    assert 160 < mirrored < 240


def test_pixels_are_scaled_to_the_declared_mean() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(2, 4, 5, 3), dtype=np.uint8)
    expected = ((pixels / 255 - np.array(imagenet_form.MEAN)) / np.array(imagenet_form.STD)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(imagenet_form.scaled(pixels), expected, atol=1e-5)


def test_grey_and_transparent_images_become_colour() -> None:
    for mode in ("L", "RGBA", "CMYK", "P"):
        stream = io.BytesIO()
        Image.new(mode, (50, 40), 1).save(stream, "JPEG" if mode == "CMYK" else "PNG")
        assert imagenet_form.centre_crop(stream.getvalue(), 32).shape == (32, 32, 3)


# ---- bad input

def test_only_jpeg_and_png_are_decoded() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (50, 40), 1).save(stream, "TIFF")
    with pytest.raises(imagenet_form.Undecodable, match="no JPEG or PNG image"):
        imagenet_form.check(stream.getvalue())


def _truncate(folder: Path) -> None:
    path = next((folder / "train" / "n00000002").iterdir())
    path.write_bytes(path.read_bytes()[:-200])


def _no_image(folder: Path) -> None:
    (folder / "val" / "n00000001" / "x.JPEG").write_bytes(b"<html>")


def _empty(folder: Path) -> None:
    (folder / "train" / "n00000009").mkdir()


def _stray(folder: Path) -> None:
    shutil.copytree(folder / "val" / "n00000001", folder / "val" / "n00000077")


def _no_val(folder: Path) -> None:
    shutil.rmtree(folder / "val")


def _empty_val(folder: Path) -> None:
    shutil.rmtree(folder / "val")
    (folder / "val").mkdir()


@pytest.mark.parametrize(("spoil", "message"), [
    (_truncate, r"n00000002_\d+\.JPEG: cannot be decoded: .*truncated.*restore or remove it"),
    (_no_image, r"x\.JPEG: cannot be decoded: no JPEG or PNG image"),
    (_empty, r"train/n00000009: a class without an image"),
    (_stray, r"val/n00000077/.*: its class 'n00000077' has no folder in train"),
    (_no_val, r"has no folder val; wanted: a folder with train/CLASS"),
    (_empty_val, r"val: too few samples: no images"),
])
def test_wrong_folders_are_named(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    folder = image_folders(tmp_path / "images")
    spoil(folder)
    with pytest.raises(UsageError, match=message) as caught:
        prepared(ImageNetForm(), folder)
    assert "\n" not in str(caught.value)


def test_wrong_labels_are_named(tmp_path: Path) -> None:
    folder = image_folders(tmp_path / "images", val_folders=False)
    lines = (folder / "val.txt").read_text().splitlines()
    (folder / "val.txt").write_text("\n".join(lines[1:]))
    with pytest.raises(UsageError, match=r"val\.txt: has no class for ILSVRC2012_val_00000001\.JPEG"):
        prepared(ImageNetForm(), folder)
    (folder / "val.txt").write_text("one\n")
    with pytest.raises(UsageError, match=r"val\.txt: line 1: not a file and its class"):
        prepared(ImageNetForm(), folder)
    (folder / "val.txt").rename(folder / "LOC_val_solution.csv")
    with pytest.raises(UsageError, match=r"has no class for"):
        prepared(ImageNetForm(), folder)
    (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\none\n")
    with pytest.raises(UsageError, match=r"LOC_val_solution\.csv: line 2: not a file and its class"):
        prepared(ImageNetForm(), folder)
    (folder / "LOC_val_solution.csv").unlink()
    with pytest.raises(UsageError, match=r"not in class folders, and there is neither val\.txt nor LOC_val"):
        prepared(ImageNetForm(), folder)


def test_an_image_that_cannot_be_decoded_ends_the_trial_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folders(tmp_path / "images")
    _truncate(folder)
    monkeypatch.setattr(imagenet_form, "check", lambda raw: None)  # it was whole then, and has this size
    reader = _reader(prepared(ImageNetForm(), folder))
    with pytest.raises(TrialError, match=r"imagenet: train/n00000002/\S+\.JPEG cannot be decoded: .*truncated.*never "
                                         "left out"):
        reader.train(0, np.arange(48))


def test_a_file_that_changed_is_refused_when_it_is_read(data: Prepared) -> None:
    reader = _reader(data)
    path = data.folder / reader._samples[1].paths[5].decode()
    path.write_bytes(b"other")
    with pytest.raises(TrialError, match=r"val/\S+ has changed since the manifest was made: it has 5 bytes"):
        reader.evaluation(np.arange(16))
    path.unlink()
    with pytest.raises(TrialError, match=r"val/\S+ cannot be read: No such file"):
        reader.evaluation(np.arange(16))


def test_images_of_one_class_are_not_prepared(tmp_path: Path, store: Path) -> None:
    folder = image_folders(tmp_path / "images", classes=1)
    with pytest.raises(UsageError, match="too few classes: classes is 1, at least 2 are needed"):
        prepared(ImageNetForm(), folder)
    assert list(store.iterdir()) == []


# ---- networks

@pytest.mark.parametrize(("name", "weights"), [
    ("resnet50", 25_557_032),  # as torchvision and MLPerf's reference have it
    ("vgg16", 138_357_544),  # Simonyan and Zisserman 2015, table 2: 138 million
    ("googlenet", 6_998_552),  # BVLC's model without the auxiliary classifiers
    ("alexnet_bn", 61_101_992),  # the 61,100,840 of one tower, less 1,152 biases, plus 2,304 of the normalisation
])
def test_networks_have_their_published_size(name: str, weights: int) -> None:
    with torch.device("meta"):
        net = nets.LARGE[name](1000)
        assert sum(item.numel() for item in net.parameters()) == weights
        assert net(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
    assert len(list(net.children())) >= 9


@pytest.mark.parametrize("name", ["googlenet", "resnet50"])
def test_the_first_output_is_moderate(name: str) -> None:
    parts = ImageNetSynthetic(model=name, samples=64, held_out=8, classes=4, image_size=32).build(STREAMS, "cpu")
    parts.open_data()
    inputs, targets = parts.train_batch(0, np.arange(16))
    with torch.no_grad():
        assert parts.loss(parts.model(inputs), targets).item() < 4


def test_resnet50_has_the_stride_in_the_middle() -> None:
    with torch.device("meta"):
        net = nets.resnet50(10)
    strides = [[conv.stride[0] for conv in block.inner.modules() if isinstance(conv, torch.nn.Conv2d)]
               for name, block in net.named_children() if name.endswith("block1")]
    assert strides == [[1, 1, 1], [1, 2, 1], [1, 2, 1], [1, 2, 1]]


def test_top5_counts_targets_among_the_five_largest() -> None:
    outputs = torch.arange(10.0).repeat(3, 1)
    assert int(classification.top5(outputs, torch.tensor([5, 4, 9]))) == 2
    assert int(classification.top5(outputs[:, :3], torch.tensor([0, 1, 2]))) == 3


def test_the_twin_has_the_shapes_of_imagenet() -> None:
    workload = ImageNetSynthetic()
    assert (workload.train_samples, workload.eval_samples, workload.classes) == (1_281_167, 50_000, 1000)
    small = ImageNetSynthetic(samples=60, held_out=20, classes=5, image_size=64, resizing=((0, 32), (1, 64)))
    parts = small.build(STREAMS, "cpu")
    assert parts.open_data() == small.identity().sha256
    assert parts.train_batch(0, np.arange(3))[0].shape == (3, 3, 32, 32)
    assert parts.train_batch(1, np.arange(3))[0].shape == (3, 3, 64, 64)
    assert parts.eval_batch(np.arange(3))[0].shape == (3, 3, 64, 64)
    assert parts.synthetic_batch(2)[0].shape == (2, 3, 32, 32)
