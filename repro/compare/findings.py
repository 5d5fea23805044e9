"""What a record shows, computed once: every format prints these comparisons, effects, claims and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from repro.compare import Comparison, Metric, Summary, compare, summarize
from repro.compare.cell_figures import cell_figures
from repro.compare.design.calibration import Calibration, read_kept_calibration
from repro.compare.design.effect import MainEffect
from repro.compare.design.factorial import main_effects
from repro.compare.design.standing import claims
from repro.compare.evidence.drift import Lane, lanes_of
from repro.compare.evidence.repeated import repeated_cells
from repro.compare.figures import Claim, Repeated
from repro.compare.runs.run_warnings import RunWarning, run_warnings
from repro.compare.tuning_check import TuningCheck, check_tuning, tuned_by, untuned_optimizers
from repro.compare.verdict.convergence import Convergence, check
from repro.compare.verdict.family import error_budget
from repro.record.folder.store import Record
from repro.record.tuning import TuningCost, cost_of


class Findings:
    """The answers of one record, by the metric and against the baselines that its suite declares.

    Each is computed when it is first asked for. `findings` returns one object a record.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self._summaries: dict[tuple[str, str], Summary] = {}

    @property
    def origins(self) -> Mapping[str, str]:
        """Cell id -> origin of its figures: measured, emulated or simulated."""
        return self.record.origins

    @property
    def origin(self) -> str:
        """The origins of all figures, each once."""
        return " and ".join(dict.fromkeys(self.origins.values())) or "measured"

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every verdict, the declared contrast first."""
        return tuple(compare(self.record.plan, self.record.results, execution=self.record.execution))

    @property
    def primary(self) -> Comparison | None:
        """The verdict on the declared contrast; None if none is declared."""
        return next((item for item in self.comparisons if item.primary), None)

    @property
    def without_primary(self) -> str:
        """Why there is no verdict on a declared contrast, for a record that has none."""
        return "; ".join(("no primary contrast is declared in this plan", *self.record.plan.notes))

    @cached_property
    def effects(self) -> tuple[MainEffect, ...]:
        """The main effects that the suite asks for."""
        return tuple(main_effects(self.record.plan, self.record.results, execution=self.record.execution))

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Of a contest: the claim of each cell."""
        return tuple(claims(self.record.plan, self.record.results))

    @cached_property
    def convergence(self) -> tuple[Convergence, ...]:
        """The samples to the target of the cells compared with those of their baselines."""
        return tuple(check(self.record.plan, self.record.results))

    @cached_property
    def tuning(self) -> TuningCheck | None:
        """The tuning of the record, checked; None if nothing was tuned."""
        return check_tuning(self.record)

    @property
    def phases(self) -> tuple[Record, ...]:
        """The tuning below the record, if there is one, and the record."""
        before = self.tuning.tuning if self.tuning is not None and self.tuning.scored_seed is not None else None
        return (self.record,) if before is None else (before.record, self.record)

    @cached_property
    def tuning_figures(self) -> Mapping[str, Mapping[str, float]]:
        """Cell id -> what the tuning of its contender took; none if the tuning is not below the record."""
        return {cell_id: {
            "settings": item.budget, "trials": item.cost.trials, "abandoned": item.cost.abandoned,
            "wall_seconds": item.cost.wall_seconds, "processor_seconds": item.cost.processor_seconds,
        } for cell_id, item in tuned_by(self.record).items()}

    @property
    def untuned_optimizers(self) -> bool:
        """True if optimizers are compared without saying where their settings come from."""
        return untuned_optimizers(self.record)

    @property
    def cost(self) -> TuningCost:
        """Trials, wall seconds and processor seconds of all starts of the record."""
        return cost_of(self.record.attempts, self.record.results, self.record.plan.cells)

    @cached_property
    def repeated(self) -> tuple[Repeated, ...]:
        """The cells with fewer trainings than trials."""
        return repeated_cells(self.record)

    @cached_property
    def lanes(self) -> list[Lane]:
        """The lanes of a run in a pool; [] of any other run."""
        return lanes_of(self.record.plan, self.record.results, self.record.execution)

    @cached_property
    def warnings(self) -> tuple[RunWarning, ...]:
        """Warnings about the machine and the course of the run, for a reader of any figure."""
        return run_warnings(self.record)

    @property
    def calibration(self) -> Calibration | None:
        """The measured false-positive rate that the run folder keeps now; None: not calibrated."""
        return read_kept_calibration(self.record)

    @cached_property
    def error_budget(self) -> str:
        """The error rates of all verdicts together, in words; "" without a verdict."""
        return error_budget(self.comparisons, len(self.effects), len(self.convergence), self.claims)

    @cached_property
    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Cell id -> its figures of training."""
        return {cell.cell_id: cell_figures(self.record.of_cell(cell.cell_id)) for cell in self.record.plan.cells}

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """Every cell by the declared metric."""
        return tuple(self.summary(cell.cell_id) for cell in self.record.plan.cells)

    def summary(self, cell_id: str, metric: Metric | None = None) -> Summary:
        """Return one cell by a metric; None: the declared one."""
        suite = self.record.plan.suite
        name = metric or suite.metric
        if (cell_id, name) not in self._summaries:
            self._summaries[cell_id, name] = summarize(
                self.record.cell(cell_id), self.record.of_cell(cell_id), name, suite.horizon_of(name))
        return self._summaries[cell_id, name]


def findings(record: Record) -> Findings:
    """Return the findings of a record: the same object each time, so that several formats compare once."""
    found = record.derived.setdefault("findings", Findings(record))
    assert isinstance(found, Findings)
    return found
