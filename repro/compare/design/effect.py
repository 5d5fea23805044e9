"""The parts of a main effect, as they are written to JSON."""

from __future__ import annotations

from pydantic import computed_field

from repro.compare.figures import Bounds, Comparison
from repro.core.frozen import Frozen

HEADING = "main effects, each level against that of the baseline, paired over all other factors"
FEW = 8
"""Contrasts of single cells above which a short report gives main effects, if asked for, in the place of their reasons.
"""


class Interaction(Frozen):
    """The difference of a main effect between two levels of another factor."""

    factor: str
    level: str
    reference: str
    combinations: int
    """Combinations of the remaining factors over which both effects were averaged."""
    ratio_here: float
    """The effect at `level`: geometric mean of candidate / baseline."""
    ratio_there: float
    """The effect at `reference`."""
    interval: Bounds | None
    """Of ratio_here / ratio_there, seeds being the replicates; None: no spread."""
    p: float
    p_adjusted: float
    """Holm over all interactions shown."""
    flagged: bool
    """The two effects differ: p_adjusted is at most 5 %."""

    @computed_field  # type: ignore[prop-decorator]  # mypy#14461
    @property
    def ratio(self) -> float:
        """ratio_here / ratio_there; 1 if the effect is the same at both."""
        return self.ratio_here / self.ratio_there

    @computed_field  # type: ignore[prop-decorator]  # mypy#14461
    @property
    def reverses(self) -> bool:
        """The effect is on different sides of 1."""
        return (self.ratio_here - 1) * (self.ratio_there - 1) < 0

    @property
    def words(self) -> str:
        """`depends on processes: 1.310 at 2 processes, 0.980 at 1 process (ratio of the two 1.337, p = 0.002 ...)`."""
        turned = ", on the other side of 1" if self.reverses else ""
        return (f"depends on {self.factor}: {self.ratio_here:.3f} at {self.level}, {self.ratio_there:.3f} at "
                f"{self.reference}{turned} (ratio of the two {self.ratio:.3f}, t test over seeds, "
                f"p = {self.p_adjusted:.2g} after Holm)")


class MainEffect(Frozen):
    """One level of a factor against another, over all combinations of the other factors."""

    factor: str
    level: str
    reference: str
    combinations: int
    """Combinations of the other factors with trials of both levels: each counts alike."""
    incomplete: int
    """Combinations of which one of the two cells was skipped or excluded."""
    failed: int
    """Combinations left out because a trial failed, which tells nothing about either level."""
    pooled: Comparison
    """One pair per seed: geometric means over the combinations. Its family are the main effects shown."""
    interactions: tuple[Interaction, ...] = ()

    @property
    def flagged(self) -> tuple[Interaction, ...]:
        """The other factors that the effect depends on."""
        return tuple(item for item in self.interactions if item.flagged)

    @computed_field  # type: ignore[prop-decorator]  # mypy#14461
    @property
    def scope(self) -> str:
        """`averaged over 16 of 32 combinations of the other factors (16 have only one of the two levels)`."""
        every = self.combinations + self.incomplete + self.failed
        if every <= 1:
            return "no other factor varies"
        reasons = [f"{count} {words}" for count, words in (
            (self.incomplete, "without one of the two levels"), (self.failed, "with a failed trial")) if count]
        if not reasons:
            return "averaged over both levels of the other factor" if every == 2 else (  # two levels have one factor
                f"averaged over all {every} combinations of the other factors")
        return f"averaged over {self.combinations} of {every} combinations of the other factors ({', '.join(reasons)})"
