"""Times with other numbers of processes, from a record: computation, communication, input and evaluations added up.

A synchronous step of p processes takes the expected maximum of p draws from the step times of the smallest number of
processes, and what the links need for the algorithm's own schedule (Hockney 1994), fitted to what steps took beyond
their computation with the other numbers of processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from repro.comm.cost_model import fit_robustly
from repro.comm.schedule import ScheduleCost, bytes_by_rank
from repro.core.devices import on_gpu
from repro.core.errors import UsageError
from repro.core.numbers import plain_sum
from repro.papers.advise.exchange import Estimated, Exchange, algorithm_of, estimated
from repro.papers.predict import formula
from repro.papers.predict.formula import EpochTable
from repro.papers.predict.observed import WITHHELD_ERROR, Family, Observed, families_in, of_line, of_record
from repro.papers.predict.prediction import (
    CLASSES,
    LinkClass,
    LinkCost,
    LinkFit,
    ScaleLine,
    ScaleModel,
    ScaleRow,
    Scaling,
    Topology,
)
from repro.papers.predict.sharing import NCCL, cost_by_class, nccl_cost, shared_path
from repro.record.folder.store import Record
from repro.seams.launching import Launcher
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

    def seconds(self, batch: int, steps: Mapping[int, float], evaluations: Mapping[int, float]) -> Towards:
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
        between = math.ceil(self._every / batch) if self._every else math.inf
        return Towards({seed: samples[seed] / batch * (step + evaluations[seed] / between)
                        for seed, step in steps.items()}, source)


LEAST_SECONDS = 1e-6
"""Communication of a step that took no longer than its computation: the fit needs a positive time."""
ALIKE = 1.1
"""Ratio of the bytes of a round up to which latency and rate cannot be told apart."""
UNLIKE = 0.02
"""Relative difference from which on two models are worth telling apart."""
IN_TURN, IN_PAIRS = "in turn", "in pairs"
AT_ONCE: Mapping[str, int] = {IN_TURN: 1, IN_PAIRS: 2}
"""Messages of a rank that are on their way at once."""
ALIKE_PATHS = 0.005
"""Relative difference up to which a path is that of the rounds, whose formula is used."""
BITS = 8
"""Of a byte."""
BySeed = Mapping[int, Observed]
Links = tuple[LinkCost, LinkCost]
"""In the order of `CLASSES`."""
Costs = tuple[ScheduleCost, ScheduleCost]
OPTIONS: Mapping[LinkClass, str] = {"between nodes": "--between", "within a node": "--within"}


def predict(
    record: Record, run: str, processes: Sequence[int], scaling: Scaling | None = None, fitted: Sequence[int] = (),
    epochs: EpochTable | None = None, topology: Topology | None = None,
) -> ScaleModel:
    """Return the scale model of a record.

    Args:
        processes: numbers to predict; those of the record are added.
        scaling: None: strong if some cells keep the global batch with two numbers of processes, else weak.
        fitted: numbers of processes to fit to; empty: all of the record.
        epochs: published epochs to the target by batch, instead of the record's.
        topology: of the cluster to predict for; None: all of it is that of the record.

    Raises:
        UsageError: nothing in the record can be predicted from, or a number of processes needs links that were neither
            observed nor stated.
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
                line = _Line(record, item, by_count, chosen, fitted, Target(item, epochs), topology or Topology())
            except UsageError as error:
                left_out.append(str(error))
            else:
                lines.append(line.predicted(processes))
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
    links: Links
    """As fitted; a class that was not observed costs nothing here."""
    input_seconds: float
    evaluations: Mapping[int, float]
    """Fitted processes -> seconds of an evaluation."""

    def evaluation_seconds(self, count: int) -> float:
        """Return the seconds of an evaluation with the largest fitted number of processes up to `count`."""
        return self.evaluations[max([known for known in self.evaluations if known <= count],
                                    default=min(self.evaluations))]


class _Line:
    """The model of one family at one batch."""

    # The arguments of `predict`, and what of the record the line is about.
    def __init__(self, record: Record, family: Family, known: Mapping[int, BySeed], scaling: Scaling,
                 fitted: Sequence[int], target: Target, topology: Topology) -> None:
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
        self.topology = topology
        rates = family.cell.choices.launcher.get(Launcher).stated_rates
        self.least = [least for rate in rates for least in (0.0, BITS / rate if rate else 0.0)]
        """Parameters of links that are as fast as stated: no fit may need faster ones."""
        self.together = rates[1] is not None
        gpu = on_gpu(record.plan.device)
        # Ranks that a node takes, if the record has one node only.
        capacity = record.plan.device_count if gpu else max(record.plan.cores, *known)
        self.ranks_per_node = topology.ranks_per_node or max(
            (self._ranks_of_node(count) for count in known if self._observed(count).nodes > 1), default=capacity)
        self.measured_shares = self._shares()
        self._known_costs: dict[tuple[int, str], Costs] = {}
        self.ways: tuple[str, ...] = NCCL if gpu and self.assumed else ("rounds",)
        """How the messages of a schedule follow each other: the fastest of these is taken."""
        self.ratio = 1.0
        """Seconds a byte within a node, over that between nodes."""
        self.models = self._models()
        between, within = self._typical()
        if between.beta and within.beta:
            self.ratio = within.beta / between.beta
        if way := self._unlike_rounds():
            self.ways = (way,)
            self.models = self._models()
        used = [_row(self._cost(count, self._typical())) for count in self.fit if count > 1]
        self.sizes = [_sizes(used, at) for at in range(len(CLASSES))]

    def predicted(self, processes: Sequence[int]) -> ScaleLine:
        """Return all rows, those of the record first measured and then modelled.

        Raises:
            UsageError: one of `processes` needs links that were neither observed nor stated.
        """
        for count in processes:
            if not self._impossible(count) and (why := self._unknown_links(count)):
                raise UsageError(f"{self.name}: {why}")
        fit_error = max(abs(self._step(count, self.models[seed]) / self.known[count][seed].step_seconds - 1)
                        for count in self.fit for seed in self.seeds)
        rows = tuple(self._row(count) for count in sorted({*processes, *self.known}))
        if fit_error > WITHHELD_ERROR:
            rows = tuple(_without_figures(row) for row in rows)
        label = f"batch {self.first.batch}" if self.scaling == "strong" else f"{self.first.samples} samples a worker"
        kept = [item for count in self.fit for item in self.known[count].values()]
        return ScaleLine(
            label=", ".join(part for part in (self.family.label, label) if part),
            algorithm="NCCL's ring or tree, whichever is modelled faster" if self.ways == NCCL else
            f"{self.algorithm.title}{', assumed' if self.assumed else ''}", smallest=self.smallest,
            seeds=len(self.seeds), steps=len(self.first.steps), links=self._link_fits(), rows=rows,
            fit_error=fit_error,
            assumptions=(*of_line(kept, self.fit, self.exchange, self.measured_shares, self.scaling,
                                  self.ways[0], rows[-1].processes), *self._placement_assumed(rows)))

    def _link_fits(self) -> tuple[LinkFit, ...]:
        """Return the links of every class: fitted, given, or not observed."""
        found = list[LinkFit]()
        for name, seen, cost, given in zip(CLASSES, self.sizes, self._typical(), self.topology.given, strict=True):
            if seen or given is None:
                found.append(LinkFit(links=name, source="fitted" if seen else "not observed",
                                     cost=cost if seen else None))
            if given is not None:
                found.append(LinkFit(links=name, source="given", cost=given))
        return tuple(found)

    def _typical(self) -> Links:
        """Return the fitted links, medians over seeds."""
        between, within = (LinkCost(alpha=median(model.links[at].alpha for model in self.models.values()),
                                    beta=median(model.links[at].beta for model in self.models.values()))
                           for at in range(len(CLASSES)))
        return between, within

    def _placement_assumed(self, rows: Sequence[ScaleRow]) -> Iterator[str]:
        for name, sizes in zip(CLASSES, self.sizes, strict=True):
            if _inseparable(sizes):
                yield (f"links {name}: a round has as many bytes with every number of processes that used them, so "
                       "their latency and rate cannot be separated, and all of it is taken as bytes")
        new = [row for row in rows if row.processes not in self.known]
        if any(row.nodes > 1 for row in new) and self.ranks_per_node > 1:
            source = "stated" if self.topology.ranks_per_node else "as in the record"
            yield f"{self.ranks_per_node} ranks on a node, {source}: they share its link to other nodes"
        if any(self.topology.given):
            yield "stated links hold for the numbers of processes that were not fitted"
        if self.ways == NCCL:
            yield ("the backend is NCCL, whose choice is not in the record: the faster of its ring and tree, without "
                   "NVLink SHARP")

    # ---- rounds, or messages as they run

    def _unlike_rounds(self) -> str:
        """Return how messages follow each other where that is not by rounds; ""; it makes no difference."""
        *rest, most = self.fit
        if self.ways == NCCL:
            return ""
        rounds, *others = (sum(item.path_bytes for item in self._costs(most, way)) for way in ("rounds", *AT_ONCE))
        if all(abs(path / rounds - 1) < ALIKE_PATHS for path in others):
            return ""
        nodes = [self._observed(count).nodes for count in rest if count > 1]
        if not nodes or (max(nodes) == 1 < self._observed(most).nodes):
            return IN_TURN  # fewer numbers of processes do not tell them apart
        # One that is right to within noise stays: the other one may be right by chance.
        return IN_PAIRS if UNLIKE < self._held_out(IN_TURN) > self._held_out(IN_PAIRS) else IN_TURN

    def _held_out(self, way: str) -> float:
        """Return the relative error at the largest fitted number of processes of a fit to all others."""
        *rest, most = self.fit
        kept, self.ways = self.ways, (way,)
        error = max(abs(self._step(most, self._seed(seed, rest)) / self.known[most][seed].step_seconds - 1)
                    for seed in self.seeds)
        self.ways = kept
        return error

    def _models(self) -> dict[int, _Seed]:
        return {seed: self._seed(seed, self.fit) for seed in self.seeds}

    # ---- one seed

    def _seed(self, seed: int, fit: Sequence[int]) -> _Seed:
        first = self.known[self.smallest][seed]
        draws = first.steps
        if self.smallest > 1:
            if first.exposed_seconds is None:
                raise UsageError(f"{self.name}: {self.smallest} processes are the fewest, and their communication was "
                                 "not counted: run it with one process, or with a counted algorithm, for example ring")
            share = max(0.0, 1 - first.exposed_seconds / mean(draws))
            draws = tuple(share * value for value in draws)
        evaluations = {count: self.known[count][seed].evaluation_seconds for count in self.fit}
        counts = [count for count in fit if count > 1]
        seconds = [max(LEAST_SECONDS, mean(self.known[count][seed].steps) - self._compute(count, draws))
                   for count in counts]
        # NCCL's ring up to a number of processes and its tree beyond; all others have one way.
        switches = range(len(counts), -1 if len(self.ways) > 1 else len(counts) - 1, -1)
        tried = [self._fitted(counts, [self.ways[0]] * at + [self.ways[-1]] * (len(counts) - at), seconds)
                 for at in switches]
        return _Seed(draws, min(tried, key=lambda item: item[1])[0], first.input_seconds, evaluations)

    def _fitted(self, counts: Sequence[int], ways: Sequence[str], seconds: Sequence[float]) -> tuple[Links, float]:
        """Return links fitted to the seconds of communication, and the largest error, a factor as a logarithm.

        On few numbers of processes rounds and bytes grow nearly alike, so bytes alone are taken if they fit as well.
        """
        costs = [self._costs(count, way) for count, way in zip(counts, ways, strict=True)]
        rows = [_row(item) for item in costs]
        sizes = [_sizes(rows, at) for at in range(len(CLASSES))]
        found = list[tuple[Links, float]]()
        for without in ([known != {0.0} for known in sizes], [_inseparable(known) for known in sizes]):
            used = [[0.0 if not at % 2 and without[at // 2] else value for at, value in enumerate(row)] for row in rows]
            each = fit_robustly(used, seconds, self.least)
            links = LinkCost(alpha=each[0], beta=each[1]), LinkCost(alpha=each[2], beta=each[3])
            found.append((links, max(abs(math.log(max(_seconds(item, links), LEAST_SECONDS) / wanted))
                                     for item, wanted in zip(costs, seconds, strict=True))))
        bytes_alone, free = found
        return bytes_alone if bytes_alone[1] < free[1] + UNLIKE else free

    def _compute(self, count: int, draws: Sequence[float]) -> float:
        """Return the seconds of the slowest of `count` workers."""
        samples = self.first.batch / count if self.scaling == "strong" else self.first.samples
        ratio = formula.computation_ratio(self.measured_shares, samples, self.first.samples)
        return ratio * formula.expected_maximum(draws, max(1.0, count / self.smallest))

    def _step(self, count: int, model: _Seed) -> float:
        return self._compute(count, model.draws) + self._exchange_seconds(count, model) + model.input_seconds

    def _exchange_seconds(self, count: int, model: _Seed) -> float:
        links = self._links(count, model)
        return _seconds(self._cost(count, links), links) if count > 1 else 0.0

    def _links(self, count: int, model: _Seed) -> Links:
        """Return the links of a number of processes: stated ones if it was not fitted."""
        between, within = self.topology.given
        return model.links if count in self.fit else (between or model.links[0], within or model.links[1])

    # ---- what a number of processes needs

    def _batch(self, count: int) -> int:
        return self.first.batch if self.scaling == "strong" else self.first.samples * count

    def _ranks_of_node(self, count: int) -> int:
        """Return the ranks on each node, for a number of processes."""
        return count // self._observed(count).nodes if count in self.known else min(count, self.ranks_per_node)

    def _observed(self, count: int) -> Observed:
        return next(iter(self.known[count].values()))

    def _cost(self, count: int, links: Links) -> Costs:
        """Return the cost of a step's schedules by class of links."""
        return self._costs(count, min(self.ways, key=lambda way: _seconds(self._costs(count, way), links)))

    def _costs(self, count: int, way: str) -> Costs:
        if (count, way) not in self._known_costs:
            between, within = self._one_cost(count, way)
            calls = self.exchange.calls
            self._known_costs[count, way] = (
                ScheduleCost(calls * between.rounds, calls * between.path_bytes, 0),
                ScheduleCost(calls * within.rounds, calls * within.path_bytes, 0))
        return self._known_costs[count, way]

    def _one_cost(self, count: int, way: str) -> Costs:
        """Return the cost of one all-reduce."""
        each, itemsize = self._ranks_of_node(count), self.exchange.itemsize
        if way in NCCL:
            return nccl_cost(way, count, count // each, self.exchange.elements * itemsize)
        nodes = [rank // each for rank in range(count)]
        transfers = self.algorithm.all_reduce(count, self.exchange.elements, itemsize)
        if 1 < each < count or (self.together and each > 1):
            between, within = cost_by_class(transfers, nodes, itemsize, self.together)
        else:  # one class: some algorithms have a formula
            found, none = self.algorithm.cost(count, self.exchange.elements, itemsize), ScheduleCost(0, 0, 0)
            between, within = (found, none) if each == 1 else (none, found)
        if way == "rounds":
            return between, within
        transfers = self.algorithm.all_reduce(count, self.exchange.elements, itemsize)
        paths = shared_path(transfers, nodes, itemsize, self.ratio, self.together, AT_ONCE[way])
        return ScheduleCost(between.rounds, round(paths[0]), 0), ScheduleCost(within.rounds, round(paths[1]), 0)

    def _shares(self) -> dict[int, float]:
        """Return the seconds of computation by samples of a worker, as measured with the smallest number of processes,
        median over seeds.
        """
        found: dict[int, list[float]] = {}
        for item in self.family.trials:
            if item.processes == self.smallest:
                found.setdefault(item.samples, []).append(mean(item.steps) - (item.exposed_seconds or 0.0))
        return {samples: median(values) for samples, values in found.items()}

    def _row(self, count: int) -> ScaleRow:
        models, batch, known = self.models, self._batch(count), self.known.get(count, {})
        nodes = -(-count // self._ranks_of_node(count))
        if why := self._impossible(count) or self._unknown_links(count):
            return ScaleRow(processes=count, nodes=nodes, batch=batch, fitted=False, step=None, measured=None, why=why)
        steps = {seed: self._step(count, model) for seed, model in models.items()}
        speeds = [formula.speed_up(steps[seed], batch, self._step(self.smallest, model), self._batch(self.smallest))
                  for seed, model in models.items()]
        towards = self.target.seconds(batch, steps, {
            seed: model.evaluation_seconds(count) for seed, model in models.items()})
        speed, reached = estimated(speeds), [item.seconds_to_target for item in known.values()]
        moved = self.algorithm.all_reduce(count, self.exchange.elements, self.exchange.itemsize)
        formula_bytes = self.exchange.calls * max(bytes_by_rank(moved, count, self.exchange.itemsize)[0])
        sent = [item.sent_bytes for item in known.values() if item.sent_bytes is not None]
        return ScaleRow(
            processes=count, nodes=nodes, batch=batch, fitted=count in self.fit, step=estimated(list(steps.values())),
            measured=_estimated([item.step_seconds for item in known.values()]),
            compute=median(self._compute(count, model.draws) for model in models.values()),
            communication=median(self._exchange_seconds(count, model) for model in models.values()),
            input=median(model.input_seconds for model in models.values()),
            speed_up=speed, efficiency=speed.value * self.smallest / count,
            path_bytes=sum(item.path_bytes for item in self._cost(count, self._typical())) if count > 1 else 0,
            formula_bytes=formula_bytes, sent_bytes=max(sent) if sent else None,
            busy=_mean([item.busy for item in known.values()]),
            to_target=estimated(list(towards.seconds.values())) if towards.seconds else None,
            measured_target=_estimated([value for value in reached if value is not None])
            if None not in reached else None, epochs=towards.source, why=towards.why)

    def _impossible(self, count: int) -> str:
        if self.scaling == "strong" and self.first.batch % count:
            return f"a batch of {self.first.batch} cannot be divided among {count} processes"
        if count % self._ranks_of_node(count):
            return f"{count} processes do not fill nodes of {self.ranks_per_node}"
        if not self.algorithm.runs("all_reduce", count) and count > 1:
            return f"{self.algorithm.title} has no schedule for {count} processes"
        return ""

    def _unknown_links(self, count: int) -> str:
        """Return which links `count` processes need that were neither observed nor stated."""
        if count == 1 or count in self.fit:
            return ""
        links = self._links(count, self.models[self.seeds[0]])
        for name, seen, given, cost in zip(CLASSES, self.sizes, self.topology.given, self._cost(count, links),
                                           strict=True):
            if cost.rounds and not seen and given is None:
                return (f"{count} processes need links {name}, and no fitted trial used any: state their rate and "
                        f"latency by {OPTIONS[name]}, for example {OPTIONS[name]} 100gbit,5us")
        return ""


def _without_figures(row: ScaleRow) -> ScaleRow:
    """Return a row of a model that does not hold: its step stays next to a measured one, which it is far from."""
    if row.measured is not None:
        return row.model_copy(update={"speed_up": None, "efficiency": None, "to_target": None})
    return ScaleRow(processes=row.processes, nodes=row.nodes, batch=row.batch, fitted=False, step=None, measured=None,
                    why=row.why or "the model does not hold where it was fitted")


def _row(costs: Costs) -> list[float]:
    """Return how often each parameter of the links counts: alpha and beta of each class."""
    return [float(value) for item in costs for value in (item.rounds, item.path_bytes)]


def _sizes(rows: Iterable[Sequence[float]], at: int) -> set[float]:
    """Return the bytes of a round over links of class `at`, by numbers of processes; empty: none used them."""
    return {round(row[2 * at + 1] / row[2 * at], 3) for row in rows if row[2 * at]}


def _inseparable(sizes: set[float]) -> bool:
    """Return True if latency and rate look alike: a ring over 4 and 8 ranks has rounds of 63,366 and 63,368 bytes, and
    noise would decide between them."""
    return bool(sizes) and 0 < max(sizes) < ALIKE * min(sizes)


def _seconds(costs: Costs, links: Links) -> float:
    return plain_sum(link.alpha * cost.rounds + link.beta * cost.path_bytes
                     for cost, link in zip(costs, links, strict=True))


def _estimated(values: Sequence[float]) -> Estimated | None:
    return estimated(values) if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
