"""What rules look at: an experiment in figures, whoever made it. None everywhere: the source does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from repro.compare import Comparison

Origin = Literal["record", "mlperf", "dawnbench", "mlflow"]
HYPERPARAMETERS = ("initialisation", "optimizer", "momentum", "weight decay", "learning rate", "schedule",
                   "batch per worker", "global batch", "epochs")
"""What FireCaffe's second practice asks for, each by itself."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One training run that left a result, or the place of one that has none."""

    name: str
    reached: bool | None
    """Whether it reached its target; None: it broke, so that nobody knows."""
    status: str
    seconds: float | None = None
    """To the target, evaluation on the clock."""
    epochs: float | None = None
    """Passes over the training data up to the target, or samples of them where the source counts those."""
    quality: float | None = None
    throughput: float | None = None
    """Samples per second."""
    seed: str | None = None
    """What all its random numbers come from, as text."""
    drawn: str | None = None
    """Hash of what the seed drew (weights, order): two runs with one hash are one run twice."""
    weights: bool | None = None
    """Whether the weights it ended with are identified."""
    initial: str | None = None
    """Hash of the weights it began with."""
    unexplained: float | None = None
    """Share of the clock that its parts do not explain, 0 to 1."""
    backwards: bool = False
    """The clock went backwards."""
    stamped: bool | None = None
    """Whether its time is that between a start and a stop, with nothing taken off."""
    steps: bool | None = None
    """Step times as the slowest rank's, with their 95th percentile, are kept."""
    points: int | None = None
    """Evaluations kept."""
    communicated: bool | None = None
    """Bytes sent and seconds waited for communication are known."""
    expected: bool | None = None
    """What the algorithm should send is known beside it."""


@dataclass(frozen=True, slots=True)
class CellFacts:
    """Runs that differ in nothing but their seed."""

    cell_id: str
    label: str
    runs: tuple[RunFacts, ...]
    workers: int | None = None
    global_batch: int | None = None
    model: str | None = None
    """What is trained on what, as text: equal where architecture, data and loss are."""
    target: str | None = None
    others: str | None = None
    """Everything that defines the cell but workers and batch, as text."""
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    """By the names of `HYPERPARAMETERS`; what is not there is not known."""
    determinism: str | None = None
    planned: int | None = None
    """Runs that were to be made, fixed beforehand."""
    interval: bool | None = None
    """An interval of its central time can be given."""
    median: float | None = None
    """Seconds to the target."""
    bandwidth: float | None = None
    """Bits per second of the slowest link in use."""
    simulated: bool = False
    fault: str = ""
    """What its own program's rules hold against its score; "" where they hold nothing, or there are none."""

    @property
    def reached(self) -> int:
        return sum(run.reached is True for run in self.runs)


@dataclass(frozen=True, slots=True)
class DataFacts:
    """A data set, as it is named."""

    name: str
    version: str | None
    digest: str | None
    train_samples: int | None
    eval_samples: int | None
    licence: str | None
    source: str | None
    synthetic: bool
    test_views: int | None = None
    """How often an evaluation shows a test sample."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One start of a run."""

    run: str
    number: int
    status: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """A cell's samples to the target against the reference's at its batch."""

    candidate: str
    baseline: str
    verdict: Literal["equivalent", "faster", "slower", "inconclusive"]
    ratio: float | None


@dataclass(frozen=True)
class Facts:
    """An experiment."""

    origin: Origin
    title: str
    cells: tuple[CellFacts, ...]
    comparisons: tuple[Comparison, ...] | None = None
    """With their tests; None: none are in the source."""
    contrasts: tuple[tuple[str, str], ...] | None = None
    """(candidate, baseline) cells of every speed-up that is stated; None: none is."""
    declared: bool | None = None
    """Whether one contrast was declared before the runs."""
    data: tuple[DataFacts, ...] | None = None
    hardware: str | None = None
    without_hardware: tuple[str, ...] = ()
    """Labels of the cells whose hardware is not said, where that of others is."""
    interconnect: str | None = None
    software: tuple[str, ...] = ()
    """Names and versions."""
    system: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    varied: tuple[str, ...] | None = None
    """Factors that vary, all of them."""
    skipped: tuple[tuple[str, str], ...] | None = None
    """(combination, reason) of what was asked for and not run."""
    excluded: int | None = None
    """Combinations left out on purpose."""
    missing: int | None = None
    """Planned runs without a result."""
    attempts: tuple[AttemptFacts, ...] | None = None
    deleted: int | None = None
    """Runs that were taken away again, as far as the source shows them."""
    means: Mapping[str, str] | None = None
    """What summarises "costs", "rates", "ratios": arithmetic, harmonic, geometric, median."""
    agreements: tuple[Agreement, ...] | None = None
    parity: str | None = None
    """"passed", "failed", "not needed"; None: no gate."""
    models: int | None = None
    """Models whose answers are joined in one figure."""
    augmented: bool | None = None
    """Whether the test data are shown several times, cut or turned."""
    reproduced: bool | None = None
    """Whether another party got the results again."""

    @property
    def no_hardware(self) -> str:
        """How rules say that `hardware` is None."""
        lacking = self.without_hardware
        if not lacking:
            return "the hardware is not said"
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        return f"the hardware is not said for {len(lacking)} of {len(self.cells)} cells: {'; '.join(lacking[:3])}{more}"

    @property
    def whole(self) -> bool:
        """Whether this is all that its author reports, so that what it does not say is not reported at all."""
        return self.origin == "record"

    @property
    def runs(self) -> list[tuple[CellFacts, RunFacts]]:
        return [(cell, run) for cell in self.cells for run in cell.runs]

    @cached_property
    def by_id(self) -> dict[str, CellFacts]:
        return {cell.cell_id: cell for cell in self.cells}

    def cell(self, cell_id: str) -> CellFacts:
        return self.by_id[cell_id]
