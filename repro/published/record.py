"""Models of an import: one record with its systems and cells, and one result per log or entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from repro.core.frozen import Formatted, Frozen
from repro.published.contest_rules import Contest

Program = Literal["mlperf", "dawnbench", "speedrun"]
PublishedStatus = Literal["ok", "missed", "invalid"]
"""`ok`: reached the target (in a contest of fixed runs: reached its end);
`missed`: ran and did not reach it; `invalid`: the log is inconsistent."""
Setting = bool | int | float | str


class PublishedPoint(Frozen):
    """One published evaluation; None: the source does not say."""

    seconds: float
    """Since the run's start."""
    samples: int | None = None
    epochs: float | None = None
    value: float | None = None
    """None if it was not a finite number."""
    metric: str = ""
    """Name of the quality if a benchmark has several."""


class PublishedBracket(Frozen):
    """The last evaluation that missed and the first that hit, on the run's clock."""

    miss_seconds: float
    hit_seconds: float
    miss_samples: int | None
    hit_samples: int | None


class PublishedSystem(Frozen):
    """A system description: fields for tables and factors; the rest is text in `other`."""

    org: str
    name: str
    """Name of its file; result folders refer to it."""
    submitter: str | None = None
    system_name: str | None = None
    division: str | None = None
    availability: str | None = None
    nodes: int | None = None
    accelerators_per_node: int | None = None
    accelerator: str | None = None
    processor: str | None = None
    processors_per_node: int | None = None
    framework: str | None = None
    other: dict[str, str] = Field(default_factory=dict)
    source: str
    sha256: str

    @property
    def accelerators(self) -> int | None:
        """Accelerators of all nodes."""
        if self.nodes is None or self.accelerators_per_node is None:
            return None
        return self.nodes * self.accelerators_per_node


class PublishedResult(Frozen):
    """One published run. None everywhere: the source does not say."""

    origin: Literal["published"] = "published"
    program: Program
    result_id: str
    cell_id: str
    repeat: int = Field(ge=0)
    round: str
    org: str
    system: str
    benchmark: str
    division: str | None = None
    availability: str | None = None
    """MLPerf's "status" of a system: cloud, onprem, preview, research."""
    accelerator: str | None = None
    accelerators: int | None = None
    nodes: int | None = None
    framework: str | None = None
    model: str | None = None
    date: str | None = None
    global_batch_size: int | None = None
    train_samples: int | None = None
    seed: int | None = None
    hyperparameters: dict[str, Setting] = Field(default_factory=dict)
    target: dict[str, float] = Field(default_factory=dict)
    """Quality to reach by metric (`""` if there is only one); empty: unknown here."""
    direction: dict[str, Literal["higher", "lower"]] = Field(default_factory=dict)
    status: PublishedStatus
    reason: str = ""
    seconds: float | None = None
    """Time to target on the clock of the program (MLPerf: run_start to run_stop; DAWNBench: to the first crossing;
    speed-runs: to the end of the run)."""
    run_seconds: float | None = None
    """From start to stop, for any outcome."""
    init_seconds: float | None = None
    epochs_to_target: float | None = None
    samples_to_target: int | None = None
    bracket: PublishedBracket | None = None
    run_start_ms: float | None = None
    """Milliseconds since 1970."""
    run_stop_ms: float | None = None
    curve: tuple[PublishedPoint, ...] = ()
    warnings: tuple[str, ...] = ()
    source: str
    """Path below the imported folder."""
    sha256: str
    also: dict[str, str] = Field(default_factory=dict)
    """sha256 by path of the other files that were used (a description)."""


class Refused(Frozen):
    """A file that was not imported, with the reason."""

    source: str
    reason: str
    cell_id: str | None = None
    """The cell of a refused log; its score counts the log as a run without a time."""


class PublishedCell(Frozen):
    """All runs of one system on one benchmark in one round."""

    cell_id: str
    label: str
    factors: dict[str, str]
    """Known factors as text; unknown factors are omitted."""
    score: Score
    ok: int
    missed: int
    invalid: int
    refused: int

    @property
    def place(self) -> tuple[bool, float, str]:
        """Sorts cells: valid scores first, the shortest first."""
        minutes = self.score.minutes
        return not self.score.valid, float("inf") if minutes is None else minutes, self.cell_id


class PublishedReference(Frozen):
    """The published cost of the reference implementation at one batch size."""

    benchmark: str
    round: str
    name: str
    global_batch_size: int
    unit: Literal["epochs", "samples"]
    costs: tuple[float, ...]
    """Cost of every run of the reference, in `unit`."""
    source: str
    sha256: str


class PublishedRecord(Formatted):
    """One import; its results are in a separate file, one per line."""

    origin: Literal["published"] = "published"
    program: Program
    imported: str
    """Name of the folder or file that was imported."""
    reader: str
    """Version of the program that read it."""
    cells: tuple[PublishedCell, ...]
    systems: tuple[PublishedSystem, ...] = ()
    references: tuple[PublishedReference, ...] = ()
    contest: Contest | None = None
    """Rules and notes of a contest; None: the program is none."""
    results: int
    refused: int
    results_sha256: str
    refused_sha256: str


@dataclass(slots=True)
class Imported:
    """Cells, systems, results, refused files and reference points of one import."""

    cells: list[PublishedCell] = field(default_factory=list)
    systems: list[PublishedSystem] = field(default_factory=list)
    results: list[PublishedResult] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    references: list[PublishedReference] = field(default_factory=list)
    contest: Contest | None = None
    """Rules and notes of a contest; None: the program is none."""


class Score(Frozen):
    """The score of one system on one benchmark."""

    minutes: float | None
    """Mean of the runs that were not dropped; None if none is left or too many runs missed."""
    valid: bool
    """True if the rules are met: enough runs, not too many without a time."""
    reason: str = ""
    """The reason if it is not valid."""
    runs: int
    """Number of logs, including refused ones."""
    required: int | None
    """Runs that the rules require; None: unknown benchmark."""
    failed: int
    """Runs without a time to target: missed, invalid or refused."""
    dropped: tuple[float, ...] = ()
    """Minutes of the runs dropped as fastest and slowest."""
    scaling_factor: float = 1.0
    """Set in review (`scaling.json`); included in `minutes`."""
