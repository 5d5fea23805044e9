"""The tuning of a run: a record of its own below the scored one, read back with its ranking, its choice and its cost.

Layout of a run with two phases:

    RUN/declared.json   the suite of both phases as declared, with the seeds of the scored one (`Declared`)
    RUN/tuning/         the tuning: an ordinary run folder, whose plan has kind "tuning"
    RUN/tuned.yaml      the suite with the chosen settings, which `repro run` accepts
    RUN/plan.json ...   the scored run; `plan.suite.tuned` says where its settings come from

Everything is derived from the files each time; nothing is stored but `Declared`.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from repro.core.errors import OutputError, SuiteError
from repro.core.files import read_model
from repro.core.frozen import Frozen
from repro.core.numbers import known_median, plain_sum
from repro.core.random_streams import SEEDS_BELOW
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.result.results import Result, figure
from repro.record.result.status import meaning
from repro.suite.contenders import scored_suite
from repro.suite.metrics import METRICS
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell
from repro.suite.planning.matrix import tried_cells
from repro.suite.recorded import reading
from repro.suite.tune import Space, Tune

DECLARED, FROZEN = "declared.json", "tuned.yaml"
QUALITY = ("final", "best")
"""Paths of metrics that are the quality itself, which a trial that missed the target has too."""
RULE = ("settings that reach the target with every seed come first, by the median of the metric over seeds; the others "
        "follow, by the median of their best quality; of equal settings the one drawn first wins")


class Declared(Frozen):
    """The suite of both phases as declared, and the seeds of the scored phase, fixed before the tuning."""

    suite: Suite
    master_seed: int = Field(ge=0, lt=SEEDS_BELOW)
    """Of the scored trials: the suite's, else drawn for this run."""
    order_seed: int = Field(ge=0, lt=SEEDS_BELOW)
    """Of the scored trials."""

    @property
    def seeded(self) -> Suite:
        """The suite with the master seed of the scored trials."""
        return self.suite.model_copy(update={"master_seed": self.master_seed})

    def scored(self, tuning: Tuning) -> Suite:
        """Return the suite that scores what a tuning chose.

        Raises:
            OutputError: no trial of any contender could be judged.
        """
        return scored_suite(self.seeded, tuning.choice, tuning_sha256(tuning.record))


@dataclass(frozen=True, slots=True)
class TriedSetting:
    """One setting of a contender, and what became of it."""

    number: int
    """Place in the order of drawing, from 1."""
    values: dict[str, Any]
    """Field -> value."""
    cell: Cell | None
    """None: the machine could not run it, or the suite excludes it."""
    results: tuple[Result, ...]
    figure: float | None
    """Median of the metric over seeds; None if a seed missed the target or has no result."""
    quality: float | None
    """Median over seeds of the best quality; None if no trial has one."""
    rank: int
    """1: chosen."""

    @property
    def statuses(self) -> dict[str, int]:
        """Status -> number of trials."""
        return dict(Counter(item.status for item in self.results))

    @property
    def judged(self) -> bool:
        """It has a figure or a quality to be ranked by."""
        return self.figure is not None or self.quality is not None


@dataclass(frozen=True, slots=True)
class TuningCost:
    """Cost of tuning one contender, or all: from the ledger, every start counted."""

    trials: int
    """With a result."""
    starts: int
    abandoned: int
    wall_seconds: float
    """Sum over starts, from launch to end; a start without a recorded end counts as 0."""
    processor_seconds: float
    """The same times the processes of each start: processors held, busy or not."""
    unknown: int
    """Starts without a recorded end."""

    def __add__(self, other: TuningCost) -> TuningCost:
        return TuningCost(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class TunedContender:
    """One contender: its space, the search, the choice and the cost."""

    label: str
    levels: dict[str, Any]
    """Factor -> level."""
    space: Space
    budget: int
    """Settings that were declared for it."""
    settings: tuple[TriedSetting, ...]
    """In the order of drawing."""
    cost: TuningCost

    @property
    def chosen(self) -> TriedSetting | None:
        """The best setting; None if none could be judged."""
        best = next(item for item in self.settings if item.rank == 1)
        return best if best.judged else None

    @property
    def ends(self) -> str:
        """The ends of its trials, counted: `2 crashed, 1 timeout`."""
        found = Counter(result.status for item in self.settings for result in item.results)
        return ", ".join(f"{count} {status}" for status, count in sorted(found.items())) or "no trial has ended"

    @property
    def ranked(self) -> tuple[TriedSetting, ...]:
        """The settings, the best first."""
        return tuple(sorted(self.settings, key=lambda item: item.rank))


@dataclass(frozen=True, slots=True)
class Tuning:
    """The tuning of a run, read and ranked."""

    record: Record
    contenders: tuple[TunedContender, ...]

    @property
    def tune(self) -> Tune:
        """The declaration."""
        assert self.record.plan.suite.tune is not None
        return self.record.plan.suite.tune

    @property
    def master_seed(self) -> int:
        return self.record.plan.master_seed

    @property
    def complete(self) -> bool:
        """Every trial has a result."""
        return not self.record.missing()

    @property
    def cost(self) -> TuningCost:
        """Of all contenders together."""
        return sum((item.cost for item in self.contenders), TuningCost(0, 0, 0, 0.0, 0.0, 0))

    @property
    def choice(self) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
        """(levels, setting) chosen for every contender; no setting: none of its trials could be judged.

        Raises:
            OutputError: no trial of any contender could be judged.
        """
        if all(item.chosen is None for item in self.contenders):
            ends = "; ".join(f"{item.label}: {item.ends}" for item in self.contenders[:8])
            raise OutputError(f"{self.record.folder.root}: no trial could be judged, so nothing can be scored: {ends}")
        return [(item.levels, item.chosen.values if item.chosen else None) for item in self.contenders]

    @property
    def lost(self) -> tuple[TunedContender, ...]:
        """The contenders of which no trial could be judged; they are not scored."""
        return tuple(item for item in self.contenders if item.chosen is None) if self.complete else ()

    def as_json(self) -> dict[str, Any]:
        """Return the declaration, every setting with its rank, and the cost (JSON-like)."""
        return {
            "run": str(self.record.folder.root), "master_seed": self.master_seed, "complete": self.complete,
            "tune": self.tune.model_dump(mode="json", by_alias=True, exclude_none=True), "cost": asdict(self.cost),
            "contenders": [{
                "label": item.label, "levels": item.levels, "budget": item.budget, "cost": asdict(item.cost),
                "chosen": item.chosen.values if item.chosen else None,
                "settings": [{
                    "number": one.number, "rank": one.rank, "values": one.values, "figure": one.figure,
                    "quality": one.quality, "statuses": one.statuses,
                    "cell_id": one.cell.cell_id if one.cell else None,
                } for one in item.settings],
            } for item in self.contenders],
        }


def read_tuning(root: Path) -> Tuning | None:
    """Return the tuning of the run at `root`; None if the run was not tuned here.

    Raises:
        OutputError: the tuning is damaged, or its suite cannot be expanded by this version.
    """
    folder = RunFolder(root).tuning
    return tuning_of(read_record(folder.root)) if folder.plan.is_file() else None


def tuning_of(record: Record) -> Tuning:
    """Return a tuning record with its ranking.

    Raises:
        OutputError: it is no tuning, or its suite cannot be expanded by this version.
    """
    plan = record.plan
    if plan.kind != "tuning" or plan.suite.tune is None:
        raise OutputError(f"{record.folder.plan}: is no plan of a tuning")
    try:
        with reading(plan.plugins):
            found = tried_cells(plan.suite, plan.device)
    except SuiteError as error:
        raise OutputError(f"{record.folder.plan}: {error}") from error
    cells = {cell.cell_id: cell for cell in plan.cells}
    contenders = []
    for contender, ids in found:
        tried = [_tried(plan.suite.tune, number, values, cells.get(name), record.of_cell(name or ""))
                 for number, (values, name) in enumerate(zip(contender.settings, ids, strict=True), 1)]
        contenders.append(TunedContender(
            contender.label, contender.levels, contender.space, len(contender.settings),
            tuple(_ranked(plan.suite.tune, tried)),
            cost_of(record.attempts, record.results, [cells[name] for name in ids if name in cells])))
    return Tuning(record, tuple(contenders))


def _tried(
    tune: Tune, number: int, values: dict[str, Any], cell: Cell | None, results: Sequence[Result]
) -> TriedSetting:
    """Return a setting with its figure and quality, without a rank."""
    spec = METRICS[tune.metric]
    found = [value for item in results if (value := figure(item, spec)) is not None
             and (spec.path in QUALITY or meaning(item.status).reached)]
    return TriedSetting(
        number, values, cell, tuple(results),
        figure=statistics.median(found) if len(found) == tune.seeds else None,
        quality=known_median(item.best for item in results if meaning(item.status).counts), rank=0)


def _ranked(tune: Tune, tried: Sequence[TriedSetting]) -> list[TriedSetting]:
    """Return the settings of a contender with their ranks, by `RULE`."""
    spec = METRICS[tune.metric]

    def key(item: TriedSetting) -> tuple[int, float, int]:
        lower = item.cell is not None and item.cell.choices.stop.direction == "lower"
        if item.figure is not None:
            smaller = lower if spec.path in QUALITY else spec.better == "lower"
            return (0, item.figure if smaller else -item.figure, item.number)
        if item.quality is None:
            return (2, math.inf, item.number)
        return (1, item.quality if lower else -item.quality, item.number)

    ranks = {item.number: rank for rank, item in enumerate(sorted(tried, key=key), 1)}
    return [replace(item, rank=ranks[item.number]) for item in tried]


def cost_of(attempts: Sequence[Attempt], results: Sequence[Result], cells: Sequence[Cell]) -> TuningCost:
    """Return what the trials of some cells took."""
    processes = {cell.cell_id: cell.choices.processes for cell in cells}
    starts = [item for item in attempts if item.cell_id in processes]
    ended = [item for item in results if item.cell_id in processes]
    known = [(item.known_seconds, processes[item.cell_id]) for item in starts if item.known_seconds is not None]
    return TuningCost(
        trials=len(ended), starts=len(starts), abandoned=sum(item.status == "abandoned" for item in ended),
        wall_seconds=round(plain_sum(seconds for seconds, _ in known), 3),
        processor_seconds=round(plain_sum(seconds * count for seconds, count in known), 3),
        unknown=len(starts) - len(known))


def tuning_sha256(record: Record) -> str:
    """Return a hash over the plan and the results of a tuning: equal in its bundle, whose texts may be scrubbed."""
    plan = record.plan
    figures = sorted([item.trial_id, item.attempt, item.status, item.samples_to_target, item.tta_wall, item.best,
                      [[at.samples, at.wall_seconds, at.value] for at in item.curve]] for item in record.results)
    return hashlib.sha256(json.dumps([plan.digest, plan.master_seed, plan.order_seed, figures]).encode()).hexdigest()


def read_declared(root: Path) -> Declared:
    """Read the declared suite of a run with two phases.

    Raises:
        OutputError: it is missing or damaged.
    """
    with reading(()):
        return read_model(root / DECLARED, Declared)
