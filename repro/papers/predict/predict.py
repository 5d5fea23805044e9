"""Times with other numbers of processes, from a record: computation, communication, input and evaluations added up.

A synchronous step of p processes takes the expected maximum of p draws from the step times of the smallest number of
processes, and what the links need for the algorithm's own schedule (Hockney 1994), fitted to what steps took beyond
their computation with the other numbers of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from repro.comm.algorithm import Algorithm
from repro.comm.cost_model import fit_parameters
from repro.comm.schedule import ScheduleCost, bytes_by_rank
from repro.core.errors import UsageError
from repro.core.numbers import plain_sum
from repro.papers.advise.exchange import Estimated, Exchange, algorithm_of, estimated
from repro.papers.predict import formula
from repro.papers.predict.formula import EpochTable
from repro.papers.predict.observed import Family, Observed, families_in, of_line, of_record
from repro.papers.predict.prediction import LinkFit, ScaleLine, ScaleModel, ScaleRow, Scaling
from repro.papers.predict.sharing import cost_by_class, shared_path
from repro.record.folder.store import Record
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


LEAST_SECONDS = 1e-6
"""Communication of a step that took no longer than its computation: the fit needs a positive time."""
UNLIKE = 0.02
"""Share by which the path of shared links must differ from that of rounds to be tried."""
BySeed = Mapping[int, Observed]


def predict(
    record: Record, run: str, processes: Sequence[int], scaling: Scaling | None = None, fitted: Sequence[int] = (),
    epochs: EpochTable | None = None,
) -> ScaleModel:
    """Return the scale model of a record.

    Args:
        processes: numbers to predict; those of the record are added.
        scaling: None: strong if some cells keep the global batch with two numbers of processes, else weak.
        fitted: numbers of processes to fit to; empty: all of the record.
        epochs: published epochs to the target by batch, instead of the record's.

    Raises:
        UsageError: nothing in the record can be predicted from.
    """
    families, left_out = families_in(record)
    chosen = scaling or ("strong" if any(_lines(item, "strong", fitted) for item in families) else "weak")
    lines = list[ScaleLine]()
    for item in families:
        found = _lines(item, chosen, fitted)
        if not found:
            left_out.append(f"{item.label or record.plan.suite.suite}: {_too_few(item, chosen, fitted)}")
        for by_count in found:
            try:
                lines.append(_Line(item, by_count, chosen, fitted, Target(item, epochs)).predicted(processes))
            except UsageError as error:
                left_out.append(str(error))
    if not lines:
        raise UsageError(f"{run}: nothing to predict from: {left_out[0] if left_out else 'no trial ended well'}")
    return ScaleModel(
        suite=record.plan.suite.suite, run=run, origin=record.origin_of(record.plan.cells[0]), cores=record.plan.cores,
        scaling=chosen, lines=tuple(lines), left_out=tuple(dict.fromkeys(left_out)),
        assumptions=of_record(record, lines, chosen))


def _lines(family: Family, scaling: Scaling, fitted: Sequence[int]) -> list[dict[int, BySeed]]:
    """Return the trials of a family by processes and seed, once for each batch that two fitted numbers of processes
    have.
    """
    found: dict[int, dict[int, dict[int, Observed]]] = {}
    for item in family.trials:
        batch = item.batch if scaling == "strong" else item.samples
        found.setdefault(batch, {}).setdefault(item.processes, {})[item.repeat] = item
    return [dict(sorted(by_count.items())) for _, by_count in sorted(found.items())
            if len([count for count in by_count if not fitted or count in fitted]) > 1]


def _too_few(family: Family, scaling: Scaling, fitted: Sequence[int]) -> str:
    counts = sorted({item.processes for item in family.trials})
    what = "the global batch" if scaling == "strong" else "the samples of a worker"
    return (f"no two numbers of processes{' of --fit' if fitted else ''} with {what} kept ended well (found: "
            f"{', '.join(map(str, counts)) or 'none'})")


@dataclass(frozen=True, slots=True)
class _Seed:
    """The model of one seed."""

    draws: tuple[float, ...]
    links: tuple[float, ...]
    """alpha and beta of each class of links."""
    input_seconds: float
    evaluations: Mapping[int, float]
    """Fitted processes -> seconds of an evaluation."""

    def evaluation_seconds(self, count: int) -> float:
        """Return the seconds of an evaluation with the largest fitted number of processes up to `count`."""
        return self.evaluations[max([known for known in self.evaluations if known <= count],
                                    default=min(self.evaluations))]


class _Line:
    """The model of one family at one batch."""

    def __init__(self, family: Family, known: Mapping[int, BySeed], scaling: Scaling, fitted: Sequence[int],
                 target: Target) -> None:
        self.family, self.known, self.scaling, self.target = family, known, scaling, target
        self.name = family.label or "the suite"
        self.fit = [count for count in known if not fitted or count in fitted]
        self.smallest = self.fit[0]
        self.algorithm, self.assumed = algorithm_of(family.cell)
        self.seeds = sorted(set.intersection(*(set(known[count]) for count in self.fit)))
        if not self.seeds:
            raise UsageError(f"{self.name}: no seed ended well with all of {', '.join(map(str, self.fit))} processes")
        self.first = known[self.smallest][self.seeds[0]]
        largest = known[self.fit[-1]][self.seeds[0]]
        assert largest.exchange is not None, "more than one process"
        self.exchange: Exchange = largest.exchange
        self.ranks_of_node = _ranks_of_node(largest)
        self.measured_shares = self._shares()
        self.shared = False
        self._known_costs: dict[tuple[int, bool], tuple[ScheduleCost, ...]] = {}
        if self._unlike_rounds():
            errors = {shared: self._error(shared) for shared in (False, True)}
            self.shared = errors[True] < errors[False]

    def predicted(self, processes: Sequence[int]) -> ScaleLine:
        """Return all rows, those of the record first measured and then modelled."""
        models = self._models()
        rows = tuple(self._row(count, models) for count in sorted({*processes, *self.known}))
        label = f"batch {self.first.batch}" if self.scaling == "strong" else f"{self.first.samples} samples a worker"
        names = ("between nodes", "within a node") if self.ranks_of_node > 1 else (
            "between nodes" if self.first.node_of_rank else "all links",)
        links = tuple(LinkFit(links=name, alpha=median(model.links[2 * at] for model in models.values()),
                              beta=median(model.links[2 * at + 1] for model in models.values()))
                      for at, name in enumerate(names))
        return ScaleLine(
            label=", ".join(part for part in (self.family.label, label) if part),
            algorithm=f"{self.algorithm.title}{', assumed' if self.assumed else ''}", smallest=self.smallest,
            seeds=len(self.seeds), steps=len(self.first.steps), links=links, rows=rows,
            fit_error=self._largest_error(models),
            assumptions=tuple(of_line(
                [item for count in self.fit for item in self.known[count].values()], self.fit, self.exchange,
                self.measured_shares, self.scaling, self.shared, rows[-1].processes)))

    # ---- rounds, or messages that share links

    def _unlike_rounds(self) -> bool:
        """Return True if messages of different rounds would share links, on this algorithm's schedules."""
        most = self.fit[-1]
        return self.ranks_of_node == 1 and most > 2 and abs(
            self._costs(most, shared=True)[0].path_bytes / self._costs(most)[0].path_bytes - 1) > UNLIKE

    def _error(self, shared: bool) -> float:
        self.shared = shared
        return self._largest_error(self._models())

    def _largest_error(self, models: Mapping[int, _Seed]) -> float:
        return max(abs(self._step(count, models[seed]) / self.known[count][seed].step_seconds - 1)
                   for count in self.fit for seed in self.seeds)

    def _models(self) -> dict[int, _Seed]:
        return {seed: self._seed(seed) for seed in self.seeds}

    # ---- one seed

    def _seed(self, seed: int) -> _Seed:
        first = self.known[self.smallest][seed]
        draws = first.steps
        if self.smallest > 1:
            if first.exposed_seconds is None:
                raise UsageError(f"{self.name}: {self.smallest} processes are the fewest, and their communication was "
                                 "not counted: run it with one process, or with a counted algorithm, for example ring")
            share = max(0.0, 1 - first.exposed_seconds / mean(draws))
            draws = tuple(share * value for value in draws)
        evaluations = {count: self.known[count][seed].evaluation_seconds for count in self.fit}
        model = _Seed(draws, (), first.input_seconds, evaluations)
        rows, seconds = list[tuple[float, ...]](), list[float]()
        for count in self.fit:
            item = self.known[count][seed]
            if count > 1:
                rows.append(self._columns(count))
                seconds.append(max(LEAST_SECONDS, mean(item.steps) - self._compute(count, model)))
        if len(rows) == 1:  # latency and rate cannot be told apart
            rows = [tuple(value * (at % 2) for at, value in enumerate(rows[0]))]
        return _Seed(draws, fit_parameters(rows, seconds, len(rows[0])), model.input_seconds, evaluations)

    def _compute(self, count: int, model: _Seed) -> float:
        """Return the seconds of the slowest of `count` workers."""
        ratio = formula.computation_ratio(self.measured_shares, self._samples(count), self.first.samples)
        return ratio * formula.expected_maximum(model.draws, max(1.0, count / self.smallest))

    def _step(self, count: int, model: _Seed) -> float:
        return self._compute(count, model) + self._exchange_seconds(count, model) + model.input_seconds

    def _exchange_seconds(self, count: int, model: _Seed) -> float:
        return plain_sum(a * b for a, b in zip(self._columns(count), model.links, strict=True)) if count > 1 else 0.0

    # ---- what a number of processes needs

    def _samples(self, count: int) -> float:
        return self.first.batch / count if self.scaling == "strong" else self.first.samples

    def _batch(self, count: int) -> int:
        return self.first.batch if self.scaling == "strong" else self.first.samples * count

    def _columns(self, count: int) -> tuple[float, ...]:
        """Return how often each parameter of the links counts in a step."""
        return tuple(value for item in self._costs(count, self.shared) for value in (item.rounds, item.path_bytes))

    def _costs(self, count: int, shared: bool = False) -> tuple[ScheduleCost, ...]:
        if (count, shared) not in self._known_costs:
            self._known_costs[count, shared] = self._cost(count, shared)
        return self._known_costs[count, shared]

    def _cost(self, count: int, shared: bool) -> tuple[ScheduleCost, ...]:
        """Return the cost of a step's schedules by class of links."""
        if self.ranks_of_node > 1:
            return _by_class(self.algorithm, self.exchange, count, self.ranks_of_node)
        found = self.exchange.cost(self.algorithm, count)
        if shared:
            one = shared_path(self.algorithm.all_reduce(count, self.exchange.elements, self.exchange.itemsize),
                              self.exchange.itemsize)
            found = ScheduleCost(found.rounds, round(self.exchange.calls * one), 0)
        return (found,)

    def _shares(self) -> dict[int, float]:
        """Return the seconds of computation by samples of a worker, as measured with the smallest number of processes,
        median over seeds.
        """
        found: dict[int, list[float]] = {}
        for item in self.family.trials:
            if item.processes == self.smallest:
                found.setdefault(item.samples, []).append(mean(item.steps) - (item.exposed_seconds or 0.0))
        return {samples: median(values) for samples, values in found.items()}

    def _row(self, count: int, models: Mapping[int, _Seed]) -> ScaleRow:
        batch, known = self._batch(count), self.known.get(count, {})
        if why := self._impossible(count):
            return ScaleRow(processes=count, batch=batch, fitted=False, step=None, measured=None, why=why)
        steps = {seed: self._step(count, model) for seed, model in models.items()}
        speeds = [formula.speed_up(steps[seed], batch, self._step(self.smallest, model), self._batch(self.smallest))
                  for seed, model in models.items()]
        towards = self.target.seconds(count, batch, steps, {
            seed: model.evaluation_seconds(count) for seed, model in models.items()})
        speed, reached = estimated(speeds), [item.seconds_to_target for item in known.values()]
        moved = self.algorithm.all_reduce(count, self.exchange.elements, self.exchange.itemsize)
        formula_bytes = self.exchange.calls * max(bytes_by_rank(moved, count, self.exchange.itemsize)[0])
        sent = [item.sent_bytes for item in known.values() if item.sent_bytes is not None]
        return ScaleRow(
            processes=count, batch=batch, fitted=count in self.fit, step=estimated(list(steps.values())),
            measured=_estimated([item.step_seconds for item in known.values()]),
            compute=median(self._compute(count, model) for model in models.values()),
            communication=median(self._exchange_seconds(count, model) for model in models.values()),
            input=median(model.input_seconds for model in models.values()),
            speed_up=speed, efficiency=speed.value * self.smallest / count,
            path_bytes=sum(item.path_bytes for item in self._costs(count, self.shared)) if count > 1 else 0,
            formula_bytes=formula_bytes, sent_bytes=max(sent) if sent else None,
            busy=_mean([item.busy for item in known.values()]),
            to_target=estimated(list(towards.seconds.values())) if towards.seconds else None,
            measured_target=_estimated([value for value in reached if value is not None])
            if None not in reached else None, epochs=towards.source, why=towards.why)

    def _impossible(self, count: int) -> str:
        if self.scaling == "strong" and self.first.batch % count:
            return f"a batch of {self.first.batch} cannot be divided among {count} processes"
        if self.ranks_of_node > 1 and count > self.ranks_of_node and count % self.ranks_of_node:
            return f"{count} processes do not fill nodes of {self.ranks_of_node}"
        if not self.algorithm.runs("all_reduce", count) and count > 1:
            return f"{self.algorithm.title} has no schedule for {count} processes"
        return ""


def _ranks_of_node(item: Observed) -> int:
    """Return the ranks of each node of an emulated cluster; 1 if none is set up."""
    return len(item.node_of_rank) // len(set(item.node_of_rank)) if item.node_of_rank else 1


def _by_class(algorithm: Algorithm, exchange: Exchange, count: int, ranks_of_node: int) -> tuple[ScheduleCost, ...]:
    transfers = algorithm.all_reduce(count, exchange.elements, exchange.itemsize)
    found = cost_by_class(transfers, [rank // ranks_of_node for rank in range(count)], exchange.itemsize)
    return tuple(ScheduleCost(exchange.calls * item.rounds, exchange.calls * item.path_bytes, 0) for item in found)


def _estimated(values: Sequence[float]) -> Estimated | None:
    return estimated(values) if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
