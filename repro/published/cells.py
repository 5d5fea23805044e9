"""Cells of published results, and their conversion for comparisons."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repro.core.frozen import Frozen
from repro.published.record import PublishedBracket, PublishedCell, PublishedResult, Score
from repro.published.untrusted.files import plain
from repro.record.result.remarks import Stated, stated
from repro.record.result.results import Bracket, Result

SEVERAL = "several"
"""Value of a factor that differs between the runs of a cell."""
FACTORS = {
    "round": "round", "org": "org", "system": "system", "benchmark": "benchmark", "division": "division",
    "accelerator": "accelerator", "accelerators": "accelerators", "nodes": "nodes", "framework": "framework",
    "model": "model", "batch.global": "global_batch_size",
}


class CellKey(NamedTuple):
    """The identity of one cell; `folder` distinguishes two folders with the same names."""

    round: str
    org: str
    system: str
    benchmark: str
    folder: str = ""

    @property
    def cell_id(self) -> str:
        """A readable slug and 8 hex digits."""
        slug = re.sub("[^a-z0-9]+", "-", f"{self.benchmark}-{self.system}".lower()).strip("-")[:60].rstrip("-")
        return f"{slug or 'cell'}-{_digest(*self)}"

    @property
    def label(self) -> str:
        where = f" ({self.folder})" if self.folder else ""
        return plain(f"{self.org} {self.system}, {self.benchmark}, {self.round}{where}", 300)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def result_id(cell_id: str, source: str) -> str:
    """Return the id of one run: the slug of the cell and 8 hex digits of the source."""
    return f"{cell_id[:-9]}-{_digest(cell_id, source)}"


def make_cell(key: CellKey, results: Sequence[PublishedResult], refused: int, score: Score) -> PublishedCell:
    """Make a cell from its runs; `results` is empty if all of its logs were refused."""
    factors = {"origin": "published", "round": key.round, "org": key.org, "system": key.system,
               "benchmark": key.benchmark}
    for name, attribute in FACTORS.items():
        values = {str(value) for item in results if (value := getattr(item, attribute)) is not None}
        if values:
            factors[name] = values.pop() if len(values) == 1 else SEVERAL
    return PublishedCell(
        cell_id=key.cell_id, label=key.label, factors=factors, score=score, refused=refused,
        **{status: sum(item.status == status for item in results) for status in ("ok", "missed", "invalid")},
    )


def as_result(item: PublishedResult) -> Result:
    """Convert a published run to the result of a trial.

    `tta_wall` is the clock of the program. `tta_train` and `tta_cold` are None, because no log has them. The curve
    stays with the published result, because a point of a trial needs a training clock.
    """
    values = [point.value for point in item.curve if point.value is not None and point.metric in ("", *item.target)]
    single = len({point.metric for point in item.curve}) == 1
    lower = "lower" in item.direction.values()
    known = bool(item.direction) or item.program == "dawnbench"
    samples = item.curve[-1].samples if item.curve else None
    elapsed = item.run_seconds
    return Result(
        trial_id=item.result_id, cell_id=item.cell_id, repeat=item.repeat, attempt=0, status=item.status,
        reasons=stated(item.reason), tta_wall=item.seconds, run_seconds=elapsed, init_seconds=item.init_seconds,
        samples_to_target=item.samples_to_target, epochs_to_target=item.epochs_to_target,
        bracket=_bracket(item.bracket), samples=samples,
        samples_per_second=samples / elapsed if samples and elapsed and item.status != "invalid" else None,
        final=values[-1] if values and single else None,
        best=(min(values) if lower else max(values)) if values and single and known else None,
        warnings=tuple(Stated(text=text) for text in item.warnings),
    )


def _bracket(found: PublishedBracket | None) -> Bracket | None:
    if found is None or found.miss_samples is None or found.hit_samples is None:
        return None
    return Bracket(
        miss_samples=found.miss_samples, hit_samples=found.hit_samples,
        miss_wall_seconds=found.miss_seconds, hit_wall_seconds=found.hit_seconds,
    )


class BatchCost(Frozen):
    """The cost of reaching the target in one run, at its batch size."""

    result_id: str
    cell_id: str
    benchmark: str
    global_batch_size: int
    epochs: float | None
    samples: int | None


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """The costs of all runs of one benchmark in one round that reached the target, smallest batch first."""

    round: str
    benchmark: str
    costs: tuple[BatchCost, ...]

    @property
    def unit(self) -> str:
        """`epochs` if a run states them, else `samples`."""
        return "epochs" if any(cost.epochs is not None for cost in self.costs) else "samples"

    def points(self, unit: str) -> list[tuple[BatchCost, float]]:
        """Return the runs whose cost is known in a unit, with it."""
        return [(cost, value) for cost in self.costs
                if (value := cost.epochs if unit == "epochs" else cost.samples) is not None]


def batch_costs(results: Iterable[PublishedResult]) -> list[BatchCosts]:
    """Return the costs of all runs that reached the target, by round and benchmark.

    Rounds are separate because rules and targets change between them.
    """
    found: dict[tuple[str, str], list[BatchCost]] = defaultdict(list)
    for item in results:
        known = item.epochs_to_target is not None or item.samples_to_target is not None
        if item.status == "ok" and item.global_batch_size is not None and known:
            found[item.round, item.benchmark].append(BatchCost(
                result_id=item.result_id, cell_id=item.cell_id, benchmark=item.benchmark,
                global_batch_size=item.global_batch_size, epochs=item.epochs_to_target,
                samples=item.samples_to_target))
    return [BatchCosts(*key, tuple(sorted(costs, key=lambda cost: (
        cost.global_batch_size, cost.cell_id, cost.result_id))))
        for key, costs in sorted(found.items(), key=lambda pair: " ".join(pair[0]))]
