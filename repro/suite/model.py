"""Suite and Trial: what may be written in a suite, checked and frozen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from repro.core import pattern
from repro.core.errors import nearest
from repro.core.frozen import Frozen, canonical_text
from repro.core.random_streams import SEEDS_BELOW
from repro.core.redact import without_users
from repro.suite.design import DEFAULT_METRICS, JUDGES, Judges, judges_of_all
from repro.suite.field_problem import SUITE_NAME, FieldProblem, SuitePart
from repro.suite.kinds.kinds import AnyTrialConfig, default_metric
from repro.suite.kinds.training import TrainingConfig
from repro.suite.metrics import DEFAULT, DEFAULT_OF_A_CONTEST, METRICS
from repro.suite.sequential import Design, Sequential
from repro.suite.tune import MOST_SETTINGS, Setting, Tune, Tuned

METHOD: Final = "2.0"
"""Version of the measuring method (docs/method.md). Records of another one are refused."""
VERSION = r"^\d+(\.\d+){0,2}$"
MOST_SEEDS = 1000
MARGIN = 0.05
"""Relative difference below which two cells count as the same, if a suite says nothing else."""
CONTEST_MARGIN = 0.005
"""The same of a contest: records improve by 1 to 2 %, which 5 % would call the same."""
Combine = Literal["all", "one_at_a_time"]
Unit = Literal["block", "node"]
LEAST_NODES = 6
"""Fewest nodes with which a test of one value for each can reach 5 %, as of pairs."""
Side = Literal["", "A", "B"]
"""Side in a calibration, which runs every cell twice: A the cell itself, B its twin; "" in any other plan."""


class Trial(Frozen):
    """One run of one cell with one seed."""

    suite: str
    suite_digest: str
    method: str = METHOD
    choices: AnyTrialConfig
    repeat: int = Field(ge=0)
    master_seed: int = Field(ge=0)
    side: Side = ""
    """Only if the choices alone do not name the cell."""

    @property
    def training(self) -> TrainingConfig:
        """The choices of a trial of kind training, which alone has engines and workloads."""
        assert isinstance(self.choices, TrainingConfig)
        return self.choices

    @cached_property
    def cell_id(self) -> str:
        return cell_name(self.choices, self.side)

    @cached_property
    def trial_id(self) -> str:
        """The cell's slug, the repeat and 8 hex digits of the trial's canonical JSON."""
        return self.name_of(self.model_dump(mode="json", by_alias=True))

    def name_of(self, content: Mapping[str, Any]) -> str:
        """Return the name of this trial.

        Args:
            content: its fields as JSON.
        """
        code = hashlib.sha256(canonical_text(content).encode()).hexdigest()
        return f"{self.cell_id[:-9]}-s{self.repeat}-{code[:8]}"


def cell_name(choices: AnyTrialConfig, side: Side) -> str:
    """Return the id of a cell: its choices name it, and a twin has its own name."""
    slug, _, code = choices.cell_id.rpartition("-")
    return f"{slug}-twin-{code}" if side == "B" else choices.cell_id


def _known(name: str) -> str:
    if name not in METRICS:
        raise FieldProblem(f"no metric named {name!r}{nearest(name, METRICS)}")
    return name


Metric = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": [*METRICS]})]
"""The name of an entry of `METRICS`."""
Prose = Annotated[str, AfterValidator(without_users)]
"""Text for readers, outside the digest. It is published, so an address in it loses its user and password."""


class Contrast(Frozen):
    """Two cells, each by the factors that single it out."""

    candidate: dict[str, Any]
    baseline: dict[str, Any]
    metric: Metric = DEFAULT


class Change(SuitePart):
    """One entry of a suite's change list."""

    version: str = Field(pattern=VERSION)
    text: Prose


class Suite(SuitePart):
    """A suite: a template of a trial, and the factors that vary."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    suite: str = Field(pattern=SUITE_NAME, description="the suite's name")
    title: Prose = ""
    description: Prose = ""
    version: str = Field("", pattern=rf"{VERSION}|^$", description="the suite's own version, in quotes: \"2.0\"")
    changes: tuple[Change, ...] = Field((), description="what each version changed, the latest first")
    source: Prose = Field("", description="the paper or practice the suite follows")
    expected: Prose = Field("", description="how long it takes, and on which machine")
    seeds: int = Field(10, ge=1, le=MOST_SEEDS, description="repeats of every cell; 10 for a result, 5 the least")
    master_seed: int | None = Field(None, ge=0, lt=SEEDS_BELOW, description="seed of every random number of the "
                                    "trials; null: drawn for every run, and kept in its plan")
    trial: dict[str, Any] = Field(description="settings that all cells share")
    matrix: dict[str, list[Any]] = Field(default_factory=dict, description="factor (dotted path) -> its levels")
    combine: Combine = Field(
        "all", description="all: every combination of levels. one_at_a_time: the reference (the first levels of all "
                           "factors), and the cells that differ from it in one factor; the reference is the baseline")
    exclude: list[dict[str, Any]] = Field(default_factory=list, description="combinations to exclude")
    baseline: dict[str, Any] = Field(
        default_factory=dict,
        description="the cell that others are compared with; factors not named are equal to the candidate's",
    )
    primary: Contrast | None = Field(None, description="the one contrast declared beforehand")
    contrasts: tuple[str, ...] = Field((), description="factors whose main effects are requested: their levels paired "
                                                       "over all other factors")
    sequential: Sequential | None = Field(
        None, description="judge the primary at declared looks and stop when it is settled; seeds is the last look")
    on_failure: Literal["continue", "rerun", "resume_from_checkpoint", "stop"] = Field(
        "continue", description="a trial that crashed or hung: keeps its status, runs again at once, is resumed from "
                                "its last checkpoint, or ends the run"
    )
    attempts: int = Field(3, ge=1, le=10, description="failed starts of one trial at most, with on_failure: rerun or "
                                                      "resume_from_checkpoint")
    checkpoint_every: int = Field(5, ge=1, le=1_000_000, description="evaluations from one checkpoint to the next, "
                                                                     "with on_failure: resume_from_checkpoint")
    wash_out: bool = Field(False, description="an unmeasured trial of the same cell before the first trial of a block, "
                                              "unless that cell ran last: what a trial leaves behind for the next one "
                                              "then favours no cell")
    programs: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(
        default_factory=dict, description="hashes of the files of programs, filled in when a plan is made; given: the "
                                          "files must have them")
    margin: float = Field(MARGIN, gt=0, lt=1,
                          description="largest relative difference that still counts as the same, declared beforehand")
    unit: Unit = Field("block", description="what verdicts on times are about, in a pool: block: the nodes that ran, "
                                            "every pair counts; node: all nodes of their class, one mean for each of "
                                            "at least 6")
    horizon: float | None = Field(
        None, gt=0,
        description="limit up to which runs that missed are compared: seconds, for metric samples a number of samples; "
                    "null: as far as all runs were observed",
    )

    tune: Tune | None = Field(None, description="tune every contender first, with equal budgets, then score it with "
                                                "its best setting")
    settings: tuple[Setting, ...] = Field(
        (), max_length=MOST_SETTINGS, description="values that a tuning chose for the cells of some levels")
    tuned: Tuned | None = Field(None, description="the tuning that chose `settings`; written by a run with `tune`")

    @property
    def metric(self) -> Metric:
        """The metric of the declared contrast, else that of the trials' kind and design."""
        return self.primary.metric if self.primary else self.default_metric

    def horizon_of(self, metric: Metric) -> float | None:
        """Return the horizon in the unit of a metric: seconds, or samples if the declared metric is; None: none."""
        in_samples = [METRICS[name].watched == "samples" for name in (metric, self.metric)]
        return self.horizon if in_samples[0] == in_samples[1] else None

    @property
    def default_metric(self) -> Metric:
        """The metric where no contrast is declared."""
        return default_metric(self.trial) or DEFAULT_METRICS[self.design.judges]

    @property
    def design(self) -> Design:
        """As declared; that of a plan is as far as its cells can run on a machine."""
        names = (pattern.get(self.trial, "stop.design"), *self.matrix.get("stop.design", ()))
        judges = judges_of_all([JUDGES[name] for name in names if isinstance(name, str) and name in JUDGES])
        return self.design_of(judges)

    def design_of(self, judges: Judges, judged: tuple[int, ...] = ()) -> Design:
        """Return the design for cells whose target judges this; `judged`: places of the two of the primary contrast."""
        scored = self.tune is None or self.sequential is not None
        return Design(judges=judges, repeats=self.seeds, scored=scored, sequential=self.sequential, judged=judged)

    @property
    def keeps_checkpoints(self) -> bool:
        """Trials write checkpoints; their clocks include this time."""
        return self.on_failure == "resume_from_checkpoint"

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill in a contest's own margin, the metric that a contrast leaves out, and the last look as `seeds`."""
        if not isinstance(data, Mapping):
            return data
        trial, matrix = data.get("trial"), data.get("matrix")
        designs = [pattern.get(trial, "stop.design")] if isinstance(trial, Mapping) else []
        levels = matrix.get("stop.design") if isinstance(matrix, Mapping) else None
        contest = "contest" in (*designs, *(levels if isinstance(levels, list | tuple) else ()))
        found = {"margin": CONTEST_MARGIN, **data} if contest else dict(data)
        own = DEFAULT_OF_A_CONTEST if contest else default_metric(trial) if isinstance(trial, Mapping) else ""
        if own and isinstance(primary := found.get("primary"), Mapping):
            found["primary"] = {"metric": own, **primary}
        sequential = data.get("sequential")
        looks = sequential.get("looks") if isinstance(sequential, Mapping) else None
        if isinstance(looks, list | tuple) and looks and type(looks[-1]) is int and looks[-1] > 0:
            found.setdefault("seeds", looks[-1])
        return found

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        if self.changes and self.changes[0].version != self.version:
            raise FieldProblem(f"the latest change must be that of the suite's version {self.version!r} (given: "
                               f"{self.changes[0].version!r})", ("changes", 0, "version"))
        if (empty := next((key for key, levels in self.matrix.items() if not levels), None)) is not None:
            raise FieldProblem("has no levels; leave the factor out or list some", ("matrix", empty))
        if self.tune is not None and (self.tuned is not None or self.settings):
            raise FieldProblem("its settings are chosen already; leave out `settings` and `tuned` to tune it again",
                               ("tune",))
        if self.tune is not None and self.tune.master_seed is not None and self.tune.master_seed == self.master_seed:
            raise FieldProblem(f"{self.master_seed} is the master seed of the scored trials too: a setting would be "
                               "chosen on the data that it is scored on; leave it out, or give another",
                               ("tune", "master_seed"))
        if self.tuned is not None and self.tuned.master_seed == self.master_seed:
            raise FieldProblem(f"{self.master_seed} is the master seed that its settings were tuned with; give "
                               "another, or none", ("master_seed",))
        if self.sequential is not None and self.tune is not None and self.tune.searches > 1:
            raise FieldProblem("a run of one search gives one figure and no verdict that could stop it; leave it out",
                               ("sequential",))
        if self.unit == "node" and self.seeds < LEAST_NODES:
            raise FieldProblem(f"unit: node needs at least {LEAST_NODES} (given: {self.seeds}): a node runs whole "
                               "seeds, and fewer nodes cannot reach 5 %", ("seeds",))
        if self.unit == "node" and self.sequential is not None:
            raise FieldProblem("looks count pairs, and how many nodes will have run them is unknown; leave it out with "
                               "unit: node", ("sequential",))
        if self.sequential is not None:
            self.sequential.check(self.seeds, self.primary is not None)
        return self

    @model_validator(mode="after")
    def _reference(self) -> Suite:
        """Make the first levels the baseline of cells that differ from them in one factor."""
        if self.combine == "all":
            return self
        if self.tune is not None:
            raise FieldProblem("one_at_a_time and tune exclude each other: tuned cells differ from the reference in "
                               "their tuned fields, too; tune with combine: all", ("combine",))
        reference = {key: levels[0] for key, levels in self.matrix.items()}
        if self.baseline not in ({}, reference):
            raise FieldProblem("one_at_a_time compares with the first level of every factor; remove the baseline",
                               ("baseline",))
        object.__setattr__(self, "baseline", reference)
        return self

    @field_validator("version", mode="before")
    @classmethod
    def _quoted(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise FieldProblem(f'is a number without quotes; write it as text, "{value}", so that 1.10 is not 1.1')
        return value
