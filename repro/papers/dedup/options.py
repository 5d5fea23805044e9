"""Options of a workload whose near-duplicates are left out before training, and the facts that its data then have."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from repro.seams.reach import TextOption

if TYPE_CHECKING:
    import numpy as np

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


def rows_sha256(rows: np.ndarray) -> str:
    """Return the sha256 of the numbers of images [n], as `Selected` holds it."""
    return hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
