"""What an import keeps: one record, its systems and cells, and one result per log or entry."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from repro.core.frozen import Frozen
from repro.published.mlperf.rules import Score

Program = Literal["mlperf", "dawnbench"]
PublishedStatus = Literal["ok", "missed", "invalid"]
"""`ok`: reached the target; `missed`: ran and did not; `invalid`: what the log tells does not hold together."""
Setting = bool | int | float | str


class PublishedPoint(Frozen):
    """One published evaluation; None: the source does not say."""

    seconds: float
    """Since the run's start."""
    samples: int | None = None
    epochs: float | None = None
    value: float | None = None
    """None where it was no finite number."""
    metric: str = ""
    """Where a benchmark has several qualities."""


class PublishedBracket(Frozen):
    """The last evaluation that missed and the first that hit, on the run's clock."""

    miss_seconds: float
    hit_seconds: float
    miss_samples: int | None
    hit_samples: int | None


class PublishedSystem(Frozen):
    """A system description, as far as tables and factors need it; the rest stays as text in `other`."""

    org: str
    name: str
    """Name of its file, by which result folders refer to it."""
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
        """Over all nodes."""
        if self.nodes is None or self.accelerators_per_node is None:
            return None
        return self.nodes * self.accelerators_per_node


class PublishedResult(Frozen):
    """One published run. None everywhere: the source does not say."""

    schema_: Literal[1] = Field(default=1, alias="schema")
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
    """Quality to reach by metric (`""` where there is one); empty: not known here."""
    direction: dict[str, Literal["higher", "lower"]] = Field(default_factory=dict)
    status: PublishedStatus
    reason: str = ""
    seconds: float | None = None
    """Time to target on the program's own clock (MLPerf: run_start to run_stop; DAWNBench: to the first crossing)."""
    run_seconds: float | None = None
    """From start to stop, whatever the run came to."""
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
    """sha256 of the other files that figures were taken from (a description), by path."""


class Refused(Frozen):
    """A file that was not taken, and why."""

    source: str
    reason: str
    cell_id: str | None = None
    """The cell whose run this log would have been: its score counts it as a run without a time."""


class PublishedCell(Frozen):
    """All runs of one system on one benchmark in one round."""

    cell_id: str
    label: str
    factors: dict[str, str]
    """What is known of it, as text; what is not known is left out."""
    score: Score
    ok: int
    missed: int
    invalid: int
    refused: int


class PublishedReference(Frozen):
    """What the reference implementation needed at one batch size, as its keepers publish it."""

    benchmark: str
    round: str
    name: str
    global_batch_size: int
    unit: Literal["epochs", "samples"]
    costs: tuple[float, ...]
    """Of every run of the reference, in `unit`."""
    source: str
    sha256: str


class PublishedRecord(Frozen):
    """One import; its results stand beside it, one a line."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    origin: Literal["published"] = "published"
    program: Program
    imported: str
    """Name of the folder or file that was imported."""
    reader: str
    """Version of the program that read it."""
    cells: tuple[PublishedCell, ...]
    systems: tuple[PublishedSystem, ...] = ()
    references: tuple[PublishedReference, ...] = ()
    results: int
    refused: int
    results_sha256: str
    refused_sha256: str
