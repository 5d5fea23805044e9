"""Seconds to the target: the samples that a batch needs for it, measured or published, times the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

from repro.papers.predict import formula
from repro.papers.predict.epochs import EpochTable
from repro.papers.predict.observed import Family
from repro.seams.training import Workload


@dataclass(frozen=True, slots=True)
class Towards:
    """Seconds to the target by seed, the source of the number of samples, or why there are none."""

    seconds: Mapping[int, float]
    source: str = ""
    why: str = ""


class Target:
    """Samples that each seed of a family needs to its target, by global batch."""

    def __init__(self, family: Family, published: EpochTable | None) -> None:
        choices = family.cell.training
        self._published, self._has_target, self._every = published, choices.stop.has_target, choices.evaluate_every
        self._epoch = choices.workload.get(Workload).train_samples
        needed: dict[int, dict[int, list[int | None]]] = {}
        for item in family.trials:
            needed.setdefault(item.repeat, {}).setdefault(item.batch, []).append(item.samples_to_target)
        self._reached = {
            seed: {batch: mean(value for value in values if value is not None)
                   for batch, values in by_batch.items() if None not in values}
            for seed, by_batch in needed.items()
        }

    def seconds(
        self, processes: int, batch: int, steps: Mapping[int, float], evaluations: Mapping[int, float]
    ) -> Towards:
        """Return the seconds to the target.

        Args:
            steps: seed -> seconds of a step.
            evaluations: seed -> seconds of an evaluation.
        """
        if self._published:
            table = self._published
            epochs = formula.interpolated(table.epochs, batch)
            if epochs is None:
                return Towards({}, why=f"the published table has no epochs on both sides of batch {batch}")
            samples = dict.fromkeys(steps, epochs * (table.samples or self._epoch))
            source = f"published ({table.source}): {epochs:.4g} epochs"
        elif not self._has_target:
            return Towards({})
        else:
            found = {seed: formula.interpolated(self._reached.get(seed, {}), batch) for seed in steps}
            if None in found.values():
                return Towards({}, why=f"not every seed reached the target with batch {batch}, or with batches on both "
                                       "sides of it: state epochs by --epochs")
            samples = {seed: value for seed, value in found.items() if value is not None}
            measured = all(batch in self._reached[seed] for seed in steps)
            source = "measured" if measured else "between the measured batches, by logarithms"
        return Towards({
            seed: samples[seed] / batch * step + (samples[seed] / self._every * evaluations[seed] if self._every else 0)
            for seed, step in steps.items()
        }, source)
