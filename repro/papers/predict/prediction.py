"""Content of a scale model: every prediction with its parts, every assumption, and the words for them."""

from __future__ import annotations

from typing import Literal

from repro.core.frozen import Frozen
from repro.papers.advise.exchange import Estimated

HEAD = (
    "processes", "nodes", "batch", "step s", "95 % interval", "measured s", "modelled / measured", "computation s",
    "communication s", "input s", "speed-up", "efficiency", "to target s", "95 % interval", "measured s",
    "cores in use", "bytes sent", "counted",
)


def cells(row: ScaleRow) -> tuple[str, ...]:
    """Return one row of the table, with the columns of `HEAD`."""
    return (
        f"{row.processes}{' (fitted)' if row.fitted else ''}", str(row.nodes), str(row.batch),
        _value(row.step), interval(row.step), _value(row.measured), _known(row.ratio, ".3f"),
        _known(row.compute), _known(row.communication),
        _known(row.input, ".2g"), _value(row.speed_up, ".3g"),
        "" if row.efficiency is None else f"{100 * row.efficiency:.0f} %", _value(row.to_target),
        interval(row.to_target), _value(row.measured_target),
        "" if row.busy is None else f"{100 * row.busy:.0f} %",
        "" if row.formula_bytes is None else str(row.formula_bytes),
        "" if row.sent_bytes is None else str(row.sent_bytes),
    )


def line_text(item: ScaleLine) -> str:
    """Describe what a line was fitted to."""
    links = "; ".join(_links(link) for link in item.links)
    return (f"{item.algorithm}, {item.seeds} seed{'s' if item.seeds > 1 else ''}, computation from {item.steps} steps "
            f"of {item.smallest} process{'es' if item.smallest > 1 else ''}; links {links}; fitted steps within "
            f"{100 * item.fit_error:.2g} %")


def notes(item: ScaleLine) -> list[str]:
    """Return the assumptions of a line, the source of its epochs, and why figures are missing."""
    sources = dict.fromkeys(f"{row.processes} processes, batch {row.batch}: samples to the target: {row.epochs}"
                            for row in item.rows if row.epochs and row.epochs != "measured")
    missing = [f"{row.processes} processes: {row.why}" for row in item.rows if row.why]
    return [*item.assumptions, *sources, *missing]


def check_text(model: ScaleModel) -> str:
    """Describe how far predictions are from what the record measured without being fitted; "" if nothing was."""
    errors = sorted(abs(row.ratio - 1) for row in model.checked if row.ratio is not None)
    if not errors:
        return ""
    middle = (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2
    return (f"{len(errors)} measured steps that were not fitted: median error {100 * middle:.2g} %, largest "
            f"{100 * errors[-1]:.2g} %")


def interval(item: Estimated | None) -> str:
    """Format the ends of an interval; "" without one."""
    return "" if item is None or item.low is None or item.high is None else f"{item.low:.4g} to {item.high:.4g}"


def _links(item: LinkFit) -> str:
    if item.cost is None:
        return f"{item.links}: not observed"
    rate = f"{8e-6 / item.cost.beta:.4g} Mbit/s" if item.cost.beta else "no cost of bytes"
    return f"{item.links}: {item.source}, alpha {1e6 * item.cost.alpha:.3g} us a round, {rate}"


def _value(item: Estimated | None, form: str = ".4g") -> str:
    return "" if item is None else format(item.value, form)


def _known(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


Scaling = Literal["strong", "weak"]
"""strong: the global batch stays; weak: the samples of a worker in a step stay."""


LinkClass = Literal["between nodes", "within a node"]
CLASSES: tuple[LinkClass, LinkClass] = ("between nodes", "within a node")


class LinkCost(Frozen):
    """Latency and time per byte of the links of one class."""

    alpha: float
    """Seconds a round."""
    beta: float
    """Seconds a byte."""


class Topology(Frozen):
    """The cluster to predict for, where it is stated; the record says the rest."""

    ranks_per_node: int | None = None
    """Ranks, one a device, that fill a node before the next one is used."""
    between: LinkCost | None = None
    """Links between nodes, which all ranks of a node share."""
    within: LinkCost | None = None

    @property
    def given(self) -> tuple[LinkCost | None, LinkCost | None]:
        """Costs in the order of `CLASSES`."""
        return self.between, self.within


class LinkFit(Frozen):
    """Links of one class."""

    links: LinkClass
    source: Literal["fitted", "given", "not observed"]
    cost: LinkCost | None
    """Fitted: median over seeds. None: not observed."""


class ScaleRow(Frozen):
    """One number of processes. Everything but `measured`, `sent_bytes`, `busy` and `measured_target` is modelled."""

    processes: int
    nodes: int
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
