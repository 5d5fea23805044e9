"""Images in the real file formats: the gate passes and engines train on them, from files to a sound record."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command
from tests.made_data import cifar10_folder, image_folders
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

CIFAR10 = suite("small-cifar10", """\
matrix:
  engine: [ENGINES]
""", workload="{kind: cifar10, model: resnet9, width: 6, cutout: 8, label_smoothing: 0.1}", batch="{global: 32}",
    optimizer="{kind: sgd, lr: 0.05, momentum: 0.9}", stop="{metric: top1, target: 0.3, max_epochs: 12}",
    evaluate_every=128, processes=2, timeout_seconds=600)
IMAGENET = suite("small-imagenet", """\
matrix:
  engine: [ENGINES]
""", workload="{kind: imagenet, model: MODEL, image_size: 64, resizing: [[0, 32], [1, 64]]}", batch="{global: 16}",
    optimizer="{kind: sgd, lr: 0.01, momentum: 0.9}", stop="{metric: top5, target: 1.0, max_epochs: 2}",
    evaluate_every=48, processes=2, timeout_seconds=3600)
ALL = "ddp, fsdp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2}, " \
      "{kind: deepspeed, stage: 3}"


def _repro(folder: Path, *arguments: str, code: int = 0) -> str:
    ended = command(folder, *arguments, REPRO_DATA=str(folder / "store"), MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    assert ended.code == code, ended.out + ended.error
    return ended.out + ended.error


def _run(folder: Path, text: str) -> tuple[Path, list[dict[str, Any]]]:
    """Run a suite; return the run folder and the results."""
    (folder / "suite.yaml").write_text(text)
    _repro(folder, "run", "suite.yaml", "--out", "run")
    found = [json.loads(path.read_text()) for path in (folder / "run" / "trials").glob("*/result.json")]
    assert found and all(item["status"] in ("ok", "missed") for item in found), found
    assert json.loads((folder / "run" / "parity.json").read_text())["needed"]  # and passed, or nothing had run
    return folder / "run", found


def _check_record(folder: Path, run: Path) -> None:
    """The record is sound without the data, and names no folder of this machine's data."""
    for path in (folder / "store").glob("*/manifest.json"):
        path.unlink()
    assert "sound" in _repro(folder, "verify", str(run))
    for path in run.rglob("*.json"):
        assert str(folder / "given") not in path.read_text(), path
        assert str(folder / "store") not in path.read_text(), path


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["ddp, fsdp", ALL])
def test_cifar10_trains_from_its_files(tmp_path: Path, engines: str) -> None:
    cifar10_folder(tmp_path / "given", train=128, held_out=32)
    _repro(tmp_path, "data", "prepare", "cifar10", "--from", "given")
    run, found = _run(tmp_path, CIFAR10.replace("ENGINES", engines))
    _check_record(tmp_path, run)
    data = json.loads((run / "environment.json").read_text())["data"][0]
    assert {item["hashes"]["data"] for item in found} == {data["sha256"]}
    assert data["version"] == "not the official files"
    assert len({item["hashes"]["augmentation"] for item in found}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("model", "engines"), [
    ("resnet50", "ddp, fsdp, {kind: deepspeed, stage: 3}"), ("googlenet", "ddp, fsdp")])
def test_imagenet_trains_from_class_folders(tmp_path: Path, model: str, engines: str) -> None:
    image_folders(tmp_path / "given")
    _repro(tmp_path, "data", "prepare", "imagenet", "--from", "given")
    suite = IMAGENET.replace("MODEL", model).replace("ENGINES", engines)
    run, _ = _run(tmp_path, suite)
    _check_record(tmp_path, run)


@pytest.mark.slow
def test_an_image_that_cannot_be_decoded_is_the_reason_of_the_crash(tmp_path: Path) -> None:
    """Its size and time are those of the manifest; a sample of hashes may find it, else the decoder does."""
    folder = image_folders(tmp_path / "given")
    _repro(tmp_path, "data", "prepare", "imagenet", "--from", "given")
    broken = sorted((folder / "train").glob("*/*.JPEG"))[7]
    before = broken.stat()
    broken.write_bytes(bytes(before.st_size))
    os.utime(broken, ns=(before.st_mtime_ns, before.st_mtime_ns))
    (tmp_path / "suite.yaml").write_text(IMAGENET.replace("MODEL", "googlenet").replace("ENGINES", "ddp"))
    text = _repro(tmp_path, "gate", "suite.yaml", code=1)
    name = broken.relative_to(folder).as_posix()
    assert re.search(rf"imagenet: {name} (cannot be decoded: no image|.*has changed since the manifest)", text), text
