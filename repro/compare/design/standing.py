"""What the design of a plan lets its results say: which of them count, which verdicts wait, and what qualifies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from repro.compare.design.sequential import Progress, progress_of, rerun_refusals
from repro.compare.figures import Claim, Comparison
from repro.compare.verdict.contest import claims
from repro.record.result.results import Result
from repro.suite.metrics import MetricSpec
from repro.suite.planning.plan import Plan


class Standing:
    """The results of a plan under its design; each part is computed when it is first asked for."""

    def __init__(
        self, plan: Plan, results: Sequence[Result], started_ms: Mapping[str, float] | None = None
    ) -> None:
        self.plan = plan
        self.results = results
        self._started_ms = started_ms

    @cached_property
    def _progress(self) -> Progress | None:
        return progress_of(self.plan, self.results, self._started_ms)

    @cached_property
    def claims(self) -> Mapping[str, Claim]:
        """Cell id -> its claim of quality, in the order of the plan; none but of a contest."""
        return {item.cell_id: item for item in claims(self.plan, self.results)}

    @property
    def used(self) -> Sequence[Result]:
        """The results that contrasts beside the primary are judged by: of a sequential run those up to its first look,
        so that the stop cannot choose them."""
        return self._progress.early if self._progress else self.results

    @property
    def waits(self) -> tuple[str, ...]:
        """Why no contrast beside the primary has a verdict, or not yet."""
        return self._progress.refusals if self._progress else rerun_refusals(self.plan)

    def refusals(self, candidate: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return why a candidate gets no verdict by a metric, whatever its figures."""
        return (*self.waits, *self.unclaimed(candidate, spec))

    def unclaimed(self, candidate: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return why a candidate cannot be called faster: its quality is not shown. A baseline is compared as it is."""
        claim = self.claims.get(candidate)
        if claim is None or claim.supported or not spec.speed:
            return ()
        return (f"the candidate's claim of quality is {claim.in_short}, so a time to its end is no result",)

    def cautions(self, candidate: str, baseline: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return what a reader must know of the claims of two cells."""
        found: list[str] = []
        for name, claim in (("candidate", self.claims.get(candidate)), ("baseline", self.claims.get(baseline))):
            if claim is None:
                continue
            if not claim.supported and (name == "baseline" or not spec.speed):
                found.append(f"the {name}'s claim of quality is {claim.in_short}")
            found += [f"{name}: {text}" for text in claim.cautions]
        return tuple(found)

    def placed(self, item: Comparison) -> Comparison:
        """Return a comparison; in place of the primary contrast of a sequential run that of its last look."""
        return self._progress.primary(self.plan, item) if self._progress and item.primary else item
