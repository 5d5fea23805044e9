"""Cell: one combination of factors, with the name and the label that every report uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator

from repro.core import pattern
from repro.core.errors import visible
from repro.core.frozen import Frozen
from repro.suite.choice import Choice
from repro.suite.kinds.kinds import AnyTrialConfig
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Side, cell_name
from repro.suite.recorded import is_text_of

AA = "A/A"
"""The factor that the two cells of a pair differ in, as reports show it."""

REFERENCE = "reference"
"""Label of the cell from which all others of a suite differ in one factor."""

Label = Annotated[str, AfterValidator(visible)]
"""A text in one line: a record's own text cannot pass for lines of ours."""


class Cell(Frozen):
    """One combination of factors; its trials differ only in their seed."""

    cell_id: str
    label: Label
    factors: dict[str, str]
    """The factors that vary over the plan, as reports show them."""
    choices: AnyTrialConfig
    differs_in: tuple[str, ...] | None = None
    """The factors that the label names: those in which the cell differs from the reference of a suite that varies one
    at a time. None: a suite of all combinations, whose labels name all factors."""
    side: Side = ""
    twin_of: str = ""
    """For side B: the id of its side A."""

    @property
    def training(self) -> TrainingConfig:
        """The choices of a cell of kind training, which alone has engines and workloads."""
        assert isinstance(self.choices, TrainingConfig)
        return self.choices

    @property
    def well_named(self) -> bool:
        """The id is the one that choices and side give."""
        return self.cell_id == cell_name(self.choices, self.side)

    @property
    def well_labelled(self) -> bool:
        """Label and factors say of the choices what is so; a label in words of another version is none of this one."""
        plain = {key: value for key, value in self.factors.items() if key != AA}
        if self.factors.get(AA, "") != self.side or not self.label.endswith(_mark(self.side)):
            return False
        data = self.choices.stated()
        if not all(_states(self.choices, data, key, value) for key, value in plain.items()):
            return False
        if plain or self.differs_in is not None:
            return self.plain_label == label_of(self.choices, plain, self.differs_in)
        return self.plain_label == visible(self.choices.title) or any(
            choice.is_label(self.plain_label) for choice in self.choices.plugins())

    @property
    def well_paired(self) -> bool:
        """A side B names its side A, which the choices give; no other cell names one."""
        return self.twin_of == (self.choices.cell_id if self.side == "B" else "")

    def relabelled(self) -> Cell:
        """Return the cell with the label and the factors that its choices give."""
        factors = shown_factors(self.choices, [key for key in self.factors if key != AA])
        label = label_of(self.choices, factors, self.differs_in) + _mark(self.side)
        if self.side:
            factors = factors | {AA: self.side}
        if label == self.label and list(factors.items()) == list(self.factors.items()):
            return self
        return self.model_copy(update={"label": label, "factors": factors})

    @property
    def plain_label(self) -> str:
        """The label without the side."""
        return self.label.removesuffix(_mark(self.side))

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


def truly_labelled(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return cells of a record with labels that follow from their choices, whatever the record calls them."""
    if not _one_at_a_time(cells):
        cells = [cell.model_copy(update={"differs_in": None}) for cell in cells]
    return tuple(cell.relabelled() for cell in cells)


def _one_at_a_time(cells: Sequence[Cell]) -> bool:
    """Return whether cells differ as they say: each in the factors that it names, from a level that all others have.

    The reference need not be among them: it may be excluded, or unable to run on the machine.
    """
    named: dict[str, set[str]] = {}
    common: dict[str, set[str]] = {}
    for cell in cells:
        if cell.differs_in is None:
            return False
        for key, value in shown_factors(cell.choices, (key for key in cells[0].factors if key != AA)).items():
            (named if key in cell.differs_in else common).setdefault(key, set()).add(value)
    return all(len(values) == 1 and not values & named.get(key, set()) for key, values in common.items())


def differing(shown: Mapping[str, str], reference: Mapping[str, str]) -> tuple[str, ...]:
    """Return the factors whose levels differ from the reference's."""
    return tuple(key for key, value in shown.items() if reference[key] != value)


def shown_factors(choices: AnyTrialConfig, keys: Iterable[str]) -> dict[str, str]:
    """Return factor -> the text that reports show for it."""
    data = choices.stated()
    return {key: _text(choices, data, key) for key in keys}


def label_of(choices: AnyTrialConfig, factors: Mapping[str, str], differs_in: Sequence[str] | None = None) -> str:
    """Return the label of a cell with these factors, as shown.

    Args:
        differs_in: the factors to name; none of them: the reference; None: all.
    """
    if differs_in is not None:
        factors = {key: value for key, value in factors.items() if key in differs_in}
        if not factors:
            return REFERENCE
    return visible(", ".join(choices.phrase(key, value) for key, value in factors.items()) or choices.title)


def _text(choices: AnyTrialConfig, data: dict[str, Any], key: str) -> str:
    value: Any = getattr(choices, key, None)
    if isinstance(value, Choice):
        return value.label
    value = pattern.get(data, key)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)


def _states(choices: AnyTrialConfig, data: dict[str, Any], key: str, text: str) -> bool:
    """Return whether `text` says what is so of the field `key`."""
    value: Any = getattr(choices, key, None)
    if isinstance(value, Choice):
        return value.label == text or value.is_label(text)
    return _text(choices, data, key) == text or is_text_of(text, pattern.get(data, key))


def _mark(side: Side) -> str:
    return f" [{side}]" if side else ""


class Skipped(Frozen):
    """A requested combination that will not run."""

    label: Label
    factors: dict[str, str]
    reason: str
    missing: bool = False
    """Something is not installed on the machine of the plan: on another one it may run."""
