"""Handwritten digits: what their workloads share, and the small convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, Direction, LayerShape, TrainingParts
from repro.workloads import digits_data
from repro.workloads.selected_data import DedupWorkload, Images, rows_sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class DigitsWorkload(DedupWorkload):
    """Images of 8 x 8 grey pixels in ten classes; the model is the subclass's matter."""

    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    test_views: ClassVar[int | None] = 1
    sha256: ClassVar[str] = digits_data.SHA256

    augment: bool
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""
    planted: float = Field(default=0.0, ge=0, le=1)
    """Near-copies of random training images that are added to them, as a share of these: what is looked for is known.
    """

    @property
    def train_samples(self) -> int:
        if self.dedup is None:
            return digits_data.TRAIN_SAMPLES + digits_data.copies(self.planted)
        return self.selection.kept

    @property
    def eval_samples(self) -> int:
        return digits_data.EVAL_SAMPLES

    def identity(self) -> DataIdentity:
        return digits_data.identity(self.sha256, self.planted, self.train_samples)

    def parts(self, make: Callable[[], nn.Module], streams: Streams, device: str) -> TrainingParts:
        """Return the parts of a trial around the model that `make` builds."""
        from repro.workloads import classification
        from repro.workloads.digit_batches import DigitBatches

        batches = DigitBatches(self._load, self.train_samples, streams, device, augment=self.augment)
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
            draws=batches.draws if self.augment else None,
        )

    def images(self) -> Images:
        return self._images(self._whole())

    def _whole(self) -> digits_data.DigitsData:
        return digits_data.verified(self.sha256, self.planted)

    def _images(self, found: digits_data.DigitsData) -> Images:
        white = 255 // digits_data.GREYS
        return Images(found.train.images * white, found.evaluation.images * white, found.sha256,
                      digits_data.copies(self.planted))

    def _load(self) -> digits_data.DigitsData:
        """Return the data without what is left out."""
        found = self._whole()
        kept = self.rows(self._images(found))
        if kept is None:
            return found
        return found._replace(train=digits_data.Split(found.train.images[kept], found.train.targets[kept]),
                              selection=rows_sha256(kept))


WIDTHS = (32, 64, 128)
"""Channels of the three convolutions."""


class Digits(DigitsWorkload):
    """Three convolutions over 8 x 8 grey pixels; compute-heavy, with few weights to communicate."""

    title: ClassVar[str] = "handwritten digits, small CNN"
    reference_samples_per_second: ClassVar[float] = 10000.0

    norm: Literal["group", "batch"] = "group"
    """"batch" depends on how many samples a rank sees: its mathematics changes with the world size."""
    augment: bool = True
    """Move each training image by at most one pixel, drawn again in every epoch."""

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        sides = enumerate(zip((1, *WIDTHS[:-1]), WIDTHS, strict=True))
        return (*(LayerShape(9 * before, width, (digits_data.SIDE >> stage)**2, kernel=True)
                  for stage, (before, width) in sides),
                LayerShape(WIDTHS[-1] + 1, digits_data.CLASSES, bias=True))

    @property
    def tensor_count(self) -> int:
        return 3 * len(WIDTHS) + 2

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import conv_net

        make = partial(conv_net.conv_net, 1, WIDTHS, digits_data.CLASSES, self.norm)
        return self.parts(make, streams, device)
