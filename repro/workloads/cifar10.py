"""CIFAR-10 with small residual networks or Network in Network, from its files; and a synthetic twin without files."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, TrainingParts, Workload
from repro.workloads import synthetic_images
from repro.workloads.data.manifest import Prepared
from repro.workloads.data.workload import Counts, FileWorkload
from repro.workloads.images import cifar10_form
from repro.workloads.selected_data import DedupWorkload, Images, rows_sha256

if TYPE_CHECKING:
    from repro.workloads.images.small_batches import SmallImages

WIDTHS = {"resnet9": 64, "resnet20": 16, "resnet32": 16, "nin": 192}
"""Channels of the first convolution in the papers and entries."""


class _Cifar10(Workload):
    """Small colour images of ten classes in the device's memory; where they come from is the subclass's matter."""

    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    test_views: ClassVar[int | None] = 1
    reference_samples_per_second: ClassVar[float] = 20.0

    model: Literal["resnet9", "resnet20", "resnet32", "nin"] = "resnet9"
    """resnet9: 6.6 million weights, as in DAWNBench entries; resnet20, resnet32: He et al. 2016, 0.27 and 0.46 million;
    nin: Lin et al. 2014, 0.97 million, no normalisation. The others normalise over the samples of one rank."""
    width: int | None = Field(default=None, ge=6, le=1024, multiple_of=2)
    """Channels of the first convolution; null: the model's own (64, 16, 16, 192)."""
    flip: bool = True
    """Mirror each training image with probability 1/2, drawn again in every epoch; like the next two."""
    crop: bool = True
    """Move each training image by at most 4 pixels in both directions; the edge is mirrored."""
    cutout: int = Field(default=0, ge=0, le=cifar10_form.SIDE)
    """Side of a square of mean colour at a random place in each training image (DeVries and Taylor 2017); 0: none."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""

    @abstractmethod
    def _load(self) -> SmallImages:
        """Read or draw the data, checked.

        Raises:
            TrialError: they are not what they should be.
        """

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import classification
        from repro.workloads.images import small_nets
        from repro.workloads.images.small_batches import Augmentation, SmallImageBatches

        augmentation = Augmentation(self.flip, self.crop, self.cutout)
        batches = SmallImageBatches(self._load, self.train_samples, augmentation, streams, device)
        make = partial(small_nets.NETS[self.model], cifar10_form.CLASSES, self.width or WIDTHS[self.model])
        return TrainingParts(
            model=classification.initialised(make, streams),
            loss=partial(classification.loss, label_smoothing=self.label_smoothing),
            scores={"top1": classification.top1},
            train_batch=batches.train,
            eval_batch=batches.evaluation,
            synthetic_batch=batches.synthetic,
            open_data=batches.open,
            fed=batches.fed,
            selection=batches.selection,
            draws=batches.draws if batches.augments else None,
        )


class Cifar10(_Cifar10, FileWorkload, DedupWorkload):
    """The files of CIFAR-10, or made-up ones in the same form, prepared by `repro data prepare cifar10`."""

    title: ClassVar[str] = "CIFAR-10"
    form: ClassVar[cifar10_form.Cifar10Form] = cifar10_form.Cifar10Form()
    data: Counts = Counts(train_samples=50_000, eval_samples=10_000)

    from_data: ClassVar[tuple[str, ...]] = ("data", "selected")

    @classmethod
    def found_here(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        found = super().found_here(options)
        return found | cls.found_selection(found | dict(options)) if found else {}

    @property
    def train_samples(self) -> int:
        return self.selected.kept if self.selected else self.data.train_samples

    def images(self) -> Images:
        return _images(load(self.prepared()))

    def _load(self) -> SmallImages:
        found = load(self.prepared())
        kept = self.rows(_images(found))
        if kept is None:
            return found
        return found._replace(images=found.images[kept], targets=found.targets[kept], selection=rows_sha256(kept))


class Cifar10Synthetic(_Cifar10):
    """Drawn images of the shape and number of CIFAR-10's, augmented like them; accuracy on them says nothing."""

    title: ClassVar[str] = "synthetic images in the shape of CIFAR-10"
    synthetic: ClassVar[bool] = True

    samples: int = Field(default=50_000, ge=1, le=1_000_000)
    """Training samples."""
    held_out: int = Field(default=10_000, ge=1, le=1_000_000)
    """Evaluation samples."""

    @property
    def train_samples(self) -> int:
        return self.samples

    @property
    def eval_samples(self) -> int:
        return self.held_out

    def identity(self) -> DataIdentity:
        return DataIdentity(
            name="cifar10-synthetic", version="1", sha256=self._load().sha256, train_samples=self.samples,
            eval_samples=self.held_out, licence="none: no data", source="drawn from the options of the workload",
        )

    def _load(self) -> SmallImages:
        from repro.workloads.images.small_batches import SmallImages

        recipe = synthetic_images.Recipe(
            cifar10_form.SIDE, cifar10_form.CHANNELS, cifar10_form.CLASSES, self.samples, self.held_out, seed=0)
        images, targets = synthetic_images.as_bytes(synthetic_images.draw(recipe))
        sha256 = hashlib.sha256(images.tobytes() + targets.astype("<i8").tobytes()).hexdigest()
        cut = self.samples
        return SmallImages(images[:cut], targets[:cut], images[cut:], targets[cut:], sha256)


def _images(found: SmallImages) -> Images:
    return Images(found.images, found.eval_images, found.sha256)


def load(data: Prepared) -> SmallImages:
    """Read all files and compare their hashes with the manifest's.

    Raises:
        TrialError: a file cannot be read or has changed.
    """
    from repro.workloads.images.small_batches import SmallImages

    contents = {}
    for entry in data.entries:
        try:
            contents[entry.path] = (data.folder / entry.path).read_bytes()
        except OSError as error:
            raise TrialError(f"{data.name}: {entry.path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(contents[entry.path]).hexdigest() != entry.sha256:
            raise TrialError(f"{data.name}: {entry.path} has changed since the manifest was made; {data.again}")
    images, targets, eval_images, eval_targets = cifar10_form.read(contents)
    return SmallImages(images, targets.astype(np.int64), eval_images, eval_targets.astype(np.int64), data.sha256)
