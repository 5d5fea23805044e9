"""A workload of images whose near-duplicates can be left out before training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError

from repro.papers.dedup.options import Dedup, Selected
from repro.seams.plugin import Setting
from repro.seams.training import Workload

if TYPE_CHECKING:
    import numpy as np

    from repro.papers.dedup.selection import Images


class DedupWorkload(Workload):
    """Base of workloads with the option `dedup`. How many images stay is a fact of the data that the plan holds."""

    from_data: ClassVar[tuple[str, ...]] = ("selected",)
    dedup: Dedup | None = None
    """Near-duplicates of training images that are left out; null: none."""
    selected: Selected | None = None
    """What `dedup` leaves; found when a suite is read."""

    @abstractmethod
    def images(self) -> Images:
        """Read all images.

        Raises:
            TrialError: they are not there, or not what the workload declares.
        """

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
        from repro.papers.dedup.selection import select

        assert self.dedup is not None
        return select(self.dedup, self.images())

    def rows(self, images: Images) -> np.ndarray | None:
        """Return the numbers of the training images that stay, ascending; None: all.

        Raises:
            TrialError: they are not those of the plan.
        """
        from repro.papers.dedup.selection import rows

        return None if self.dedup is None else rows(self.dedup, images, self.selection)
