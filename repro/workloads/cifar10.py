"""CIFAR-10 with small residual networks or Network in Network, from its files; and a synthetic twin without files."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, TrainingParts
from repro.workloads import cifar10_form, synthetic
from repro.workloads.cifar10_form import CHANNELS, CLASSES, SIDE
from repro.workloads.data.manifest import Prepared
from repro.workloads.data.workload import Counts, FileWorkload
from repro.workloads.reading import Classifier, InMemory, Tables
from repro.workloads.selected_data import DedupWorkload
from repro.workloads.synthetic import drawn_identity

if TYPE_CHECKING:
    import torch

PAD = 4
"""Pixels by which a crop moves an image at most; the edge is mirrored."""
SHIFTS = 2 * PAD + 1
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of CIFAR-10's training pixels, by channel, in [0, 1]."""


class Augmentation(NamedTuple):
    """Random changes of training images, drawn again in every epoch."""

    flip: bool
    crop: bool
    cutout: int
    """Side of a square of mean colour, its centre anywhere in the image; 0: none (DeVries and Taylor 2017)."""


class SmallImageBatches(Tables):
    """Images [n, 3, 32, 32] of mean 0 and deviation 1, augmented on the device, vectorised.

    The number that is drawn for a sample holds flip, shift and the centre of the cutout, whichever of them are used.
    """

    shape = (CHANNELS, SIDE, SIDE)
    classes = CLASSES

    def __init__(
        self, load: Callable[[], InMemory], samples: int, augmentation: Augmentation, streams: Streams, device: str
    ) -> None:
        super().__init__(load, samples, streams, device)
        self._augmentation = augmentation
        if any(augmentation):
            self.outcomes = 2 * SHIFTS**2 * SIDE**2

    def open(self) -> str:
        self._mean, self._std = (self.put(np.array(each, np.float32)) * 255 for each in (MEAN, STD))
        self._scale = 1 / self._std
        return super().open()

    def looked_up(self, epoch: int, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        rows = self.send(indices)
        images = self._scaled(self._train[rows]) if draws is None else self._augmented(rows, self.send(draws))
        return images, self._train_targets[rows]

    def evaluation(self, indices: np.ndarray) -> Batch:
        images, targets = super().evaluation(indices)
        return self._scaled(images), targets

    def _augmented(self, rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return the images of `rows` [n] as their numbers `codes` [n] say; all on the device."""
        import torch

        rest, flips = codes.div(2, rounding_mode="floor"), codes.remainder(2)
        shifts, middles = rest.remainder(SHIFTS**2), rest.div(SHIFTS**2, rounding_mode="floor")
        line = torch.arange(SIDE, device=codes.device)
        ys, xs = line.expand(len(codes), SIDE), line.expand(len(codes), SIDE)
        if self._augmentation.flip:
            xs = torch.where(flips[:, None] == 1, SIDE - 1 - xs, xs)
        if self._augmentation.crop:
            down, right = shifts.remainder(SHIFTS), shifts.div(SHIFTS, rounding_mode="floor")
            ys, xs = _mirrored(ys + down[:, None] - PAD), _mirrored(xs + right[:, None] - PAD)
        images = self._scaled(self._train[rows[:, None, None], ys[:, :, None], xs[:, None, :]])
        if self._augmentation.cutout:
            middle_y, middle_x = middles.div(SIDE, rounding_mode="floor"), middles.remainder(SIDE)
            hidden = self._near(middle_y, line)[:, :, None] & self._near(middle_x, line)[:, None, :]
            images.masked_fill_(hidden[:, None], 0.0)  # the mean colour
        return images

    def _near(self, middles: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
        """Return [n, 32] bool: pixels of a line that the square around each middle hides."""
        start = middles[:, None] - self._augmentation.cutout // 2
        return (line >= start) & (line < start + self._augmentation.cutout)

    def _scaled(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return pixels [n, 32, 32, 3] uint8 as [n, 3, 32, 32] float32 of mean 0 and deviation 1."""
        return ((pixels.float() - self._mean) * self._scale).permute(0, 3, 1, 2).contiguous()


def _mirrored(places: torch.Tensor) -> torch.Tensor:
    """Return places outside of 0 to 31 mirrored at the edge, which is not repeated."""
    return SIDE - 1 - (SIDE - 1 - places.abs()).abs()


WIDTHS = {"resnet9": 64, "resnet20": 16, "resnet32": 16, "nin": 192}
"""Channels of the first convolution in the papers and entries."""


class _Cifar10(Classifier):
    """Small colour images of ten classes in the device's memory; where they come from is the subclass's matter."""

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
    cutout: int = Field(default=0, ge=0, le=SIDE)
    """Side of a square of mean colour at a random place in each training image (DeVries and Taylor 2017); 0: none."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""

    @property
    def unrepeatable(self) -> str:
        return "AdaptiveMaxPool2d" if self.model == "resnet9" else ""

    @abstractmethod
    def loaded(self) -> InMemory:
        """Read or draw the data, checked.

        Raises:
            TrialError: they are not what they should be.
        """

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import nets

        augmentation = Augmentation(self.flip, self.crop, self.cutout)
        batches = SmallImageBatches(self.loaded, self.train_samples, augmentation, streams, device)
        make = partial(nets.SMALL[self.model], CLASSES, self.width or WIDTHS[self.model])
        return batches.parts(make, self.label_smoothing)


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

    def whole(self) -> InMemory:
        return load(self.prepared())

    def loaded(self) -> InMemory:
        return DedupWorkload.loaded(self)


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
        return drawn_identity("cifar10-synthetic", self, self.loaded().sha256)

    def loaded(self) -> InMemory:
        recipe = synthetic.Recipe(SIDE, CHANNELS, CLASSES, self.samples, self.held_out, seed=0)
        images, targets = synthetic.as_bytes(synthetic.draw(recipe))
        sha256 = hashlib.sha256(images.tobytes() + targets.astype("<i8").tobytes()).hexdigest()
        cut = self.samples
        return InMemory(images[:cut], targets[:cut], images[cut:], targets[cut:], sha256)


def load(data: Prepared) -> InMemory:
    """Read all files and compare their hashes with the manifest's.

    Raises:
        TrialError: a file cannot be read or has changed.
    """
    contents = {}
    for entry in data.entries:
        try:
            contents[entry.path] = (data.folder / entry.path).read_bytes()
        except OSError as error:
            raise TrialError(f"{data.name}: {entry.path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(contents[entry.path]).hexdigest() != entry.sha256:
            raise TrialError(f"{data.name}: {entry.path} has changed since the manifest was made; {data.again}")
    return InMemory(*cifar10_form.read(contents), data.sha256)
