"""The facts that rules judge: an experiment of any origin in figures. None means that the source does not state it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from repro.compare import Comparison
from repro.compare.tuning_check import TuningCheck
from repro.compare.verdict.convergence import Convergence
from repro.record.folder.ledger import Attempt

Origin = Literal["record", "mlperf", "dawnbench", "speedrun", "mlflow"]
HYPERPARAMETERS = ("initialisation", "optimizer", "momentum", "weight decay", "learning rate", "schedule",
                   "batch per worker", "global batch", "epochs")
"""The hyper-parameters that FireCaffe's second practice requires."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One training run, with or without a result."""

    name: str
    reached: bool | None
    """It reached its target; None: unknown, because the run failed."""
    seconds: float | None = None
    """To the target, evaluation on the clock."""
    epochs: float | None = None
    """Passes over the training data up to the target, or samples of them where the source counts those."""
    quality: float | None = None
    throughput: float | None = None
    """Samples per second."""
    seed: str | None = None
    """The seed of all random numbers, as text."""
    drawn: str | None = None
    """Hash of what the seed drew (weights, order): two runs with one hash are the same run."""
    weights: bool | None = None
    """The final weights are identified."""
    every_rank: bool | None = None
    """Every rank's own weights were compared with them and are equal; None: unknown."""
    initial: str | None = None
    """Hash of the initial weights."""
    unexplained: float | None = None
    """Share of the clock that its parts do not explain, 0 to 1."""
    backwards: bool = False
    """The clock went backwards."""
    stamped: bool | None = None
    """Its time is the difference between a start and a stop, with nothing subtracted."""
    steps: bool | None = None
    """Step times of the slowest rank are recorded with their 95th percentile."""
    points: int | None = None
    """Number of recorded evaluations."""
    communicated: bool | None = None
    """Bytes sent and seconds waited for communication are recorded."""
    expected: bool | None = None
    """The traffic that the algorithm should cause is recorded as well."""


@dataclass(frozen=True, slots=True)
class CellFacts:
    """Runs that differ in nothing but their seed."""

    cell_id: str
    label: str
    runs: tuple[RunFacts, ...]
    workers: int | None = None
    global_batch: int | None = None
    model: str | None = None
    """Architecture, data and loss as text; equal if all three are."""
    target: str | None = None
    others: str | None = None
    """Everything that defines the cell except workers and batch, as text."""
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    """By the names of `HYPERPARAMETERS`; missing ones are unknown."""
    determinism: str | None = None
    planned: int | None = None
    """Number of planned runs, fixed beforehand."""
    interval: bool | None = None
    """An interval of its median or mean time can be given."""
    median: float | None = None
    """Time to the target; without one, the figure that is compared."""
    unit: str = "s"
    """Of the median."""
    bandwidth: float | None = None
    """Bits per second of the slowest link in use."""
    loopback: bool = False
    """All ranks were processors of one machine: no link is between them."""
    simulated: bool = False
    repeated: str = ""
    """Statement that some of its runs are one training repeated; "" if they are not, or their evaluations are unknown.
    """
    fault: str = ""
    """Reason why the rules of its own program reject its score; "" if they accept it or there are none."""

    @property
    def reached(self) -> int:
        return sum(run.reached is True for run in self.runs)

    @property
    def share(self) -> str:
        """Its runs that reached the target, as text."""
        return f"{self.reached} of {len(self.runs)}"


@dataclass(frozen=True, slots=True)
class DataFacts:
    """A data set as the source describes it."""

    name: str
    version: str | None = None
    digest: str | None = None
    train_samples: int | None = None
    eval_samples: int | None = None
    licence: str | None = None
    source: str | None = None
    synthetic: bool = False
    test_views: int | None = None
    """Number of times that an evaluation shows a test sample."""


@dataclass(frozen=True)
class Facts:
    """An experiment."""

    origin: Origin
    title: str
    cells: tuple[CellFacts, ...]
    programs: bool = False
    """Every run is a program of the user's: data, model and traffic are its own affair."""
    measurements: bool = False
    """Every run measures operations and trains nothing."""
    no_target: bool = False
    """No accuracy was asked for: every run is a fixed number of steps."""
    comparisons: tuple[Comparison, ...] | None = None
    """Comparisons with their tests; None: the source holds none."""
    contrasts: tuple[tuple[str, str], ...] | None = None
    """(candidate, baseline) cells of every stated speed-up; None: none is stated."""
    declared: bool | None = None
    """One contrast, or main effects, were declared before the runs."""
    declared_effects: tuple[str, ...] = ()
    """Factors whose main effects were declared before the runs."""
    data: tuple[DataFacts, ...] | None = None
    hardware: str | None = None
    without_hardware: tuple[str, ...] = ()
    """Labels of the cells without stated hardware, if other cells have it."""
    interconnect: str | None = None
    software: tuple[str, ...] = ()
    """Names and versions."""
    system: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    varied: tuple[str, ...] | None = None
    """All factors that vary."""
    skipped: tuple[tuple[str, str], ...] | None = None
    """(combination, reason) of requested combinations that were not run."""
    excluded: int | None = None
    """Number of combinations excluded on purpose."""
    missing: int | None = None
    """Planned runs without a result."""
    attempts: tuple[Attempt, ...] | None = None
    """Starts of runs."""
    deleted: int | None = None
    """Number of deleted runs, as far as the source shows them."""
    means: Mapping[str, str] | None = None
    """Summary of "costs", "rates" and "ratios": arithmetic, harmonic or geometric mean, or median."""
    agreements: Sequence[Convergence] | None = None
    """Each cell's samples to the target against those of the reference at its batch."""
    parity: str | None = None
    """"passed", "failed", "not needed"; None: no gate, or one that left cells out."""
    ungated: Mapping[str, str] = field(default_factory=dict)
    """Reason why the parity gate left out a cell, by the cell's label."""
    models: int | None = None
    """Number of models whose answers are combined in one figure."""
    augmented: bool | None = None
    """Test samples are shown several times, cropped or flipped."""
    tuning: TuningCheck | None = None
    """None: none is stated."""
    untuned_optimizers: bool = False
    """Optimizers are compared whose settings come from nowhere that is stated."""
    reproduced: bool | None = None
    """Another party obtained the same results."""

    @property
    def no_hardware(self) -> str:
        """The sentence for `hardware` being None."""
        lacking = self.without_hardware
        if not lacking:
            return "the hardware is not stated"
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        return (f"the hardware is not stated for {len(lacking)} of {len(self.cells)} cells: "
                f"{'; '.join(lacking[:3])}{more}")

    @property
    def timed(self) -> str:
        """The unit whose times are summarised."""
        return "operation" if self.measurements else "step"

    @property
    def whole(self) -> bool:
        """True if the source is everything that its author reports: what it lacks was not reported."""
        return self.origin == "record"

    @property
    def runs(self) -> list[tuple[CellFacts, RunFacts]]:
        return [(cell, run) for cell in self.cells for run in cell.runs]

    @cached_property
    def by_id(self) -> dict[str, CellFacts]:
        return {cell.cell_id: cell for cell in self.cells}

    @property
    def ended(self) -> list[RunFacts]:
        """The runs of which it is known whether they reached their target."""
        return [run for _, run in self.runs if run.reached is not None]

    @property
    def several(self) -> list[CellFacts]:
        """The cells that have, or may have, several workers."""
        return [cell for cell in self.cells if cell.workers is None or cell.workers > 1]

    def cell(self, cell_id: str) -> CellFacts:
        return self.by_id[cell_id]
