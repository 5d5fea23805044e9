"""Content of a scale model: every prediction with the parts it is made of, and every assumption."""

from __future__ import annotations

from typing import Literal

from repro.core.frozen import Frozen
from repro.papers.advise.estimate import Estimated

Scaling = Literal["strong", "weak"]
"""strong: the global batch stays; weak: the samples of a worker in a step stay."""


class LinkFit(Frozen):
    """Fitted links of one class; medians over seeds."""

    links: Literal["between nodes", "within a node", "all links"]
    alpha: float
    """Seconds a round."""
    beta: float
    """Seconds a byte."""


class ScaleRow(Frozen):
    """One number of processes. Everything but `measured`, `sent_bytes`, `busy` and `measured_target` is modelled."""

    processes: int
    batch: int
    fitted: bool
    """The model was fitted to it, so that the two steps must agree."""
    step: Estimated | None
    """Seconds of a step; None: `why`."""
    measured: Estimated | None
    """The same in the record."""
    compute: float | None = None
    """Part of the step: median over seeds, as are the two below."""
    communication: float | None = None
    input: float | None = None
    speed_up: Estimated | None = None
    """In samples a second, over the smallest number of processes."""
    efficiency: float | None = None
    path_bytes: int | None = None
    """On the path of a step's schedule."""
    formula_bytes: int | None = None
    """That the busiest rank sends in a step."""
    sent_bytes: int | None = None
    """The same, counted."""
    busy: float | None = None
    """Share of this machine's cores in use."""
    to_target: Estimated | None = None
    """Seconds to the target: steps and evaluations."""
    measured_target: Estimated | None = None
    epochs: str = ""
    """Where the number of steps to the target is from; "": there is no target."""
    why: str = ""
    """Why a figure is missing."""

    @property
    def ratio(self) -> float | None:
        """Modelled over measured step."""
        return self.step.value / self.measured.value if self.step and self.measured else None


class ScaleLine(Frozen):
    """One family at one batch: of all processes (strong scaling) or of a worker (weak)."""

    label: str
    algorithm: str
    smallest: int
    """Processes whose steps the computation is taken from."""
    seeds: int
    steps: int
    """Timed steps of one trial of the smallest number of processes."""
    links: tuple[LinkFit, ...]
    fit_error: float
    """Largest relative error of the fitted steps."""
    rows: tuple[ScaleRow, ...]
    assumptions: tuple[str, ...]


class ScaleModel(Frozen):
    """All lines of a record."""

    suite: str
    run: str
    origin: str
    cores: int
    scaling: Scaling
    lines: tuple[ScaleLine, ...]
    assumptions: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Cells without a prediction, with the reason."""

    @property
    def checked(self) -> list[ScaleRow]:
        """Rows that were predicted and measured, and not fitted."""
        return [row for line in self.lines for row in line.rows if row.ratio is not None and not row.fitted]
