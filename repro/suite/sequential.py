"""The design of a plan: how many repeats its cells have, after how many pairs the primary contrast is judged, and the
error that each look may spend."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import Field, StrictInt, model_validator

from repro.stats.exact_tests import EXACT_PAIRS, sign_flip_floor
from repro.stats.sequential import MOST_LOOKS, LookLevel, look_levels
from repro.suite.design import Judges
from repro.suite.field_problem import FieldProblem, SuitePart

ANYTIME_LEAST = 7
"""Fewest pairs with which the e-process can reach 1 / 0.05."""
TOO_FEW = f" pairs are too few for an e-process to decide; {ANYTIME_LEAST} are the least"


class Sequential(SuitePart):
    """Looks at the primary contrast while the suite runs."""

    looks: tuple[StrictInt, ...] = Field(
        (), description="pairs at each look, rising; the last are the most that run; with anytime it may be left out: "
                        "a look after every pair")
    spending: Literal["power", "obrien-fleming", "pocock"] = Field(
        "power", description="error that may be spent up to a share t of the last look: 0.05 t^power, or the functions "
                             "of Lan and DeMets")
    power: float = Field(2.0, gt=0, le=20, description="exponent of spending: power")
    anytime: bool = Field(False, description="an e-process instead of bounds: valid at every n, for open-ended runs")

    @model_validator(mode="after")
    def _design(self) -> Sequential:
        defaults = {name: type(self).model_fields[name].default for name in ("spending", "power")}
        changed = [name for name, default in defaults.items() if getattr(self, name) != default]
        if self.anytime and changed:
            raise FieldProblem("has no meaning with anytime: an e-process spends nothing", (changed[0],))
        if "power" in changed and self.spending != "power":
            raise FieldProblem(f"belongs to spending: power, not to {self.spending}", ("power",))
        if not self.anytime and not 1 <= len(self.looks) <= MOST_LOOKS:
            raise FieldProblem(f"a sequential design has 1 to {MOST_LOOKS} looks, not {len(self.looks)}", ("looks",))
        looks = self.looks
        late = next((place for place, (one, other) in enumerate(pairwise(looks), 1) if other <= one), None)
        if late is not None:
            raise FieldProblem(f"{looks[late]} does not follow {looks[late - 1]}: looks must rise", ("looks", late))
        if self.anytime and looks and looks[0] < ANYTIME_LEAST:
            raise FieldProblem(f"{looks[0]}{TOO_FEW}", ("looks", 0))
        if not self.anytime and (looks[0] < 2 or looks[-1] > 1000):
            raise FieldProblem("looks must be between 2 and 1000 pairs",
                               ("looks", 0 if looks[0] < 2 else len(looks) - 1))
        for place, level in enumerate(() if self.anytime else self.levels()):
            floor = sign_flip_floor(level.n)
            if level.n <= EXACT_PAIRS and level.difference < floor:
                raise FieldProblem(f"{level.n} pairs cannot decide there: the look's nominal p is "
                                   f"{level.difference:.2g}, below the exact sign-flip test's least, {floor:.2g}; "
                                   "look later or spend more early", ("looks", place))
        return self

    def check(self, seeds: int, has_primary: bool) -> None:
        """Check it against the rest of its suite.

        Raises:
            FieldProblem: the last look is not `seeds`, or there is no primary contrast.
        """
        if not has_primary:
            raise FieldProblem("needs a primary contrast: it alone decides when the run stops", ("sequential",))
        if not self.looks and seeds < ANYTIME_LEAST:
            raise FieldProblem(f"{seeds}{TOO_FEW}", ("seeds",))
        if self.looks and self.looks[-1] != seeds:
            last = len(self.looks) - 1
            beyond = next((place for place, n in enumerate(self.looks) if n > seeds), last)
            what = "is beyond" if self.looks[beyond] > seeds else "is the last look, not"
            raise FieldProblem(f"{self.looks[beyond]} {what} seeds: {seeds}; leave out seeds, the last look says it",
                               ("sequential", "looks", beyond))

    def levels(self) -> tuple[LookLevel, ...]:
        """Return the nominal levels of the looks; not with anytime."""
        return look_levels(self.looks, self.spending, self.power)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The design of a plan: a fixed number of repeats, judged once when all have run; or, of a sequential one, repeats
    of the two cells of the primary contrast until a look settles it, while the others stop at the first look."""

    judges: Judges
    repeats: int
    """Of a cell, at most."""
    scored: bool = True
    """False for the tuning of a suite: its trials choose settings, so none of them is compared."""
    sequential: Sequential | None = None
    """None: a fixed number."""
    judged: tuple[int, ...] = ()
    """Of a sequential design: places of the two cells in the plan; () of a suite that was not planned."""

    @property
    def has_target(self) -> bool:
        return self.judges != "nothing"

    @property
    def is_contest(self) -> bool:
        """Its cells claim a mean quality over all declared trials."""
        return self.judges == "mean"

    @property
    def looks(self) -> tuple[int, ...]:
        """Pairs at each look, after which the run may stop; () for a fixed number."""
        if self.sequential is None:
            return ()
        return self.sequential.looks or tuple(range(ANYTIME_LEAST, self.repeats + 1))

    @property
    def anytime(self) -> bool:
        """An e-process judges after every pair, instead of bounds at a few looks."""
        return self.sequential is not None and self.sequential.anytime

    @property
    def common(self) -> int:
        """Repeats that every cell has, however early the run stops."""
        return self.looks[0] if self.looks else self.repeats

    def repeats_of(self, place: int) -> int:
        """Return the most repeats of the cell at a place in the plan."""
        return self.repeats if place in self.judged else self.common

    @property
    def rule(self) -> str:
        """The rule of its looks in words; "" for a fixed number."""
        if self.sequential is None:
            return ""
        if self.anytime:
            return "an e-process of sign flips, valid at every n"
        spending, power = self.sequential.spending, self.sequential.power
        return f"bounds by alpha spending ({spending}{f', t^{power:g}' if spending == 'power' else ''})"

    @property
    def words(self) -> str:
        """The looks and their nominal levels; "" for a fixed number."""
        if self.sequential is None:
            return ""
        if self.anytime:
            places = ", ".join(map(str, self.sequential.looks)) or f"every pair from {self.common} to {self.repeats}"
            return f"after {places}, by an e-process that is valid at every n"
        levels = self.sequential.levels()
        return (f"{', '.join(str(level.n) for level in levels)} pairs; p needed for a difference "
                f"{', '.join(f'{level.difference:.4f}' for level in levels)}, for each side of same "
                f"{', '.join(f'{level.same:.4f}' for level in levels)}")
