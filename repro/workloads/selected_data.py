"""Workloads of images that may leave out near-duplicates: the option, what it leaves, and who finds them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from repro.core import registry
from repro.seams.plugin import Setting, TextOption
from repro.workloads.reading import Classifier, InMemory

HashKind = Literal["ahash", "dhash", "phash", "whash"]


class Dedup(BaseModel):
    """Which training images are left out: those whose hash is near that of an image that stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hash: HashKind = "phash"
    """ahash: pixels above the mean; dhash: neighbours that get brighter; phash: low frequencies of a cosine transform
    above their median; whash: the same of a Haar transform. All by the package ImageHash."""
    size: int = Field(default=8, ge=2, le=32)
    """Rows and columns of a hash: it has size * size bits. A power of two for whash."""
    threshold: int = Field(default=4, ge=0, le=1023)
    """Bits in which two hashes may differ for the images to count as near-duplicates (Hamming distance)."""
    leave_out: Literal["near", "random"] = "near"
    """random is the control: as many images, drawn at random, so that only the size of the data set is the same."""

    @field_validator("threshold")
    @classmethod
    def _below_bits(cls, threshold: int, info: object) -> int:
        size = getattr(info, "data", {}).get("size")
        if size is not None and threshold >= size**2:
            raise ValueError(f"must be below the {size**2} bits of a hash of size {size}")
        return threshold

    @field_validator("size")
    @classmethod
    def _allowed(cls, size: int, info: object) -> int:
        if getattr(info, "data", {}).get("hash") == "whash" and size & (size - 1):
            raise ValueError("must be a power of two for whash: 2, 4, 8, 16 or 32")
        return size


class Selected(BaseModel):
    """Training data without near-duplicates; a fact of the data that the plan holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int = Field(ge=1)
    """Training images before."""
    kept: int = Field(ge=1)
    sha256: TextOption = Field(pattern="^[0-9a-f]{64}$")
    """Of the numbers of the images that stay, ascending, as little-endian 64 bit."""
    leaked: int = Field(ge=0)
    """Evaluation images within the threshold of a training image that stays."""
    evaluation: int = Field(ge=1)
    """Evaluation images."""
    planted: int = Field(default=0, ge=0)
    """Near-copies that were added on purpose."""
    planted_removed: int = Field(default=0, ge=0)

    @property
    def removed(self) -> int:
        return self.samples - self.kept

    @property
    def recall(self) -> float | None:
        """Share of the planted copies that were left out; None: none were planted."""
        return self.planted_removed / self.planted if self.planted else None

    @property
    def precision(self) -> float | None:
        """Share of the images left out that were planted; natural near-duplicates count as wrong. None: no share."""
        return self.planted_removed / self.removed if self.planted and self.removed else None


class Images(NamedTuple):
    """A data set whose near-duplicates are looked for."""

    train: NDArray[np.uint8]
    """[n, side, side] grey or [n, side, side, 3] colour."""
    evaluation: NDArray[np.uint8]
    sha256: str
    planted: int = 0
    """The last so many training images are near-copies that were added on purpose."""


class Finder(Protocol):
    """What finds near-duplicates; `repro.core.registry.PARTS` names it."""

    def select(self, dedup: Dedup, images: Images) -> Selected:
        """Return what is known of the images that stay."""
        ...

    def rows(self, dedup: Dedup, images: Images, planned: Selected) -> NDArray[np.int64]:
        """Return the training images that stay, ascending.

        Raises:
            TrialError: they are not those of the plan.
        """
        ...


def _finder() -> Finder:
    found: Finder = registry.part("finder", "near-duplicates")
    return found


class DedupWorkload(Classifier):
    """Base of workloads with the option `dedup`. How many images stay is a fact of the data that the plan holds."""

    from_data: ClassVar[tuple[str, ...]] = ("selected",)
    dedup: Dedup | None = None
    """Near-duplicates of training images that are left out; null: none."""
    selected: Selected | None = None
    """What `dedup` leaves; found when a suite is read."""

    @abstractmethod
    def whole(self) -> InMemory:
        """Read all data.

        Raises:
            TrialError: they are not there, or not what the workload declares.
        """

    def images(self, found: InMemory) -> Images:
        """Return the images among which near-duplicates are looked for."""
        return Images(found.images, found.eval_images, found.sha256)

    @classmethod
    def found_here(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return cls.found_selection(options)

    @classmethod
    def found_selection(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the option `selected` of a workload with `options`, if near-duplicates are left out."""
        if options.get("dedup") is None:
            return {}
        try:
            return {"selected": cls.model_validate(options).selection}
        except ValidationError:
            return {}  # said where the options themselves are read

    def note(self, setting: Setting) -> str | None:
        if self.dedup is None or self.selected is None:
            return None
        found, what = self.selected, "near-duplicates" if self.dedup.leave_out == "near" else "drawn at random"
        planted = "" if found.recall is None else f" {found.planted_removed:,} of {found.planted:,} planted copies;"
        return (f"{found.removed:,} of {found.samples:,} training images are left out, {what} ({self.dedup.hash}, "
                f"{self.dedup.threshold} of {self.dedup.size**2} bits);{planted} {found.leaked:,} of "
                f"{found.evaluation:,} evaluation images have a near-duplicate among those that stay")

    @property
    def selection_sha256(self) -> str:
        return self.selected.sha256 if self.selected else ""

    @property
    def selection(self) -> Selected:
        """What `dedup` leaves: as planned, else found now."""
        if self.selected is not None:
            return self.selected
        assert self.dedup is not None
        return _finder().select(self.dedup, self.images(self.whole()))

    def loaded(self) -> InMemory:
        """Return the data without what is left out.

        Raises:
            TrialError: what stays is not what the plan says.
        """
        found = self.whole()
        if self.dedup is None:
            return found
        kept = _finder().rows(self.dedup, self.images(found), self.selection)
        return found._replace(images=found.images[kept], targets=found.targets[kept], selection=rows_sha256(kept))


def rows_sha256(rows: np.ndarray) -> str:
    """Return the sha256 of the numbers of images [n], as `Selected` holds it."""
    return hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
