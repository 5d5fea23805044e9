"""Cell: one combination of factors, with the name and the label that every report uses."""

from __future__ import annotations

from repro.core.frozen import Frozen
from repro.suite.kinds import AnyTrialConfig
from repro.suite.model import Side, cell_name

AA = "A/A"
"""The factor that the two cells of a pair differ in, as reports show it."""


class Cell(Frozen):
    """One combination of factors; its trials differ only in their seed."""

    cell_id: str
    label: str
    factors: dict[str, str]
    """The factors that vary over the plan, as reports show them."""
    choices: AnyTrialConfig
    side: Side = ""
    twin_of: str = ""
    """For side B: the id of its side A."""

    @property
    def well_named(self) -> bool:
        """The id is the one that the choices give, or, for a twin, the one that choices and side give."""
        return self.cell_id in (self.choices.cell_id, cell_name(self.choices, self.side))

    @property
    def trial_side(self) -> Side:
        """The side that trials must state in addition to their choices to identify their cell."""
        return "" if self.cell_id == self.choices.cell_id else self.side

    @property
    def plain_label(self) -> str:
        """The label without the side."""
        return self.label.removesuffix(_mark(self.side)) if self.side else self.label

    def with_choices(self, choices: AnyTrialConfig) -> Cell:
        """Return the cell with other choices, and the name that they give it."""
        return self.model_copy(update={"choices": choices, "cell_id": choices.cell_id})

    def twins(self) -> tuple[Cell, Cell]:
        """Return this cell as both sides of a comparison with itself."""
        return self._as_side("A", ""), self._as_side("B", self.cell_id)

    def _as_side(self, side: Side, twin_of: str) -> Cell:
        return self.model_copy(update={
            "cell_id": cell_name(self.choices, side), "label": f"{self.label}{_mark(side)}",
            "factors": {**self.factors, AA: side}, "side": side, "twin_of": twin_of,
        })


def _mark(side: Side) -> str:
    return f" [{side}]"


class Skipped(Frozen):
    """A requested combination that will not run."""

    label: str
    factors: dict[str, str]
    reason: str
