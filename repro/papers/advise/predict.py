"""Advice from the record of a pilot: predictions with the interval of its seeds, each family of cells by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from repro.comm.cost_model import LinkModel, Sample, fit
from repro.comm.schedule import ScheduleCost
from repro.core.devices import GPU
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.numbers import known_median
from repro.papers.advise.exchange import Estimated, algorithm_of, all_reduces_alone, estimated, exchange_of
from repro.papers.advise.pilot import CONVOLUTIONS, SUFFIX, families_of, samples_of_worker
from repro.papers.advise.pilot import WORKERS as PILOT_WORKERS
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.seams.training import Workload
from repro.suite.planning.cell import Cell

MOST_FULL = 0.6
"""Share of a server's link above which workers queue noticeably."""


def efficiency(overhead: float, workers: int) -> float:
    """Return (1 + R) / (1 + G R): the efficiency of G workers whose overhead grows with each of them (Zou et al. 2017).

    Args:
        overhead: R, overhead of one worker that nothing hides, over its computation.
    """
    return (1 + overhead) / (1 + workers * overhead)


def speed_up(alone: float, together: float, workers: int) -> float:
    """Return how many times as many samples a second `workers` train, each with the samples of one in every step.

    Args:
        alone: seconds of a step of one worker.
        together: seconds of a step of all.
    """
    return workers * alone / together


def shards_by_lemma(parameter_bytes: float, workers: int, bytes_per_second: float, compute: float) -> int:
    """Return ceil(2 S N / (B T)): servers whose links carry all gradients and weights of a step within its computation.

    Zou et al. 2017: each link carries one direction at a time.
    """
    return max(1, math.ceil(2 * parameter_bytes * workers / (bytes_per_second * compute) - 1e-9))


def shards_with_room(parameter_bytes: float, workers: int, bytes_per_second: float, compute: float) -> int:
    """Return ceil(S N / (0.6 B (T + 2 S / B))): servers whose links, in both directions, are at most 60 % full.

    Every worker computes for T, sends S and receives S in turn. With fewer servers workers wait: always where the links
    are full, in queues where they nearly are. 60 % was chosen after suite `server-shards` had run (docs/advise.md).
    """
    alone = compute + 2 * parameter_bytes / bytes_per_second
    return max(1, math.ceil(parameter_bytes * workers / (MOST_FULL * bytes_per_second * alone) - 1e-9))


LEAST_GAIN = 1.1
"""Factor of samples/s below which a doubling of the batch does not pay."""


def stops_paying(batches: Sequence[int], gains: Sequence[tuple[float, float]]) -> tuple[int | None, int | None]:
    """Return the smallest batch of which a doubling gains less than `LEAST_GAIN`, and the first that is open.

    Args:
        batches: ascending.
        gains: the 95 % interval of the factor in samples a second that a doubling of each batch gives, but of the last.

    Returns:
        (stops, open): stops is None if it still pays at the largest batch or a smaller one is open, that is, its
        interval contains `LEAST_GAIN`.
    """
    for batch, (low, high) in zip(batches, gains, strict=False):
        if high < LEAST_GAIN:
            return batch, None
        if low < LEAST_GAIN:
            return None, batch
    return None, None


def largest_batch(batches: Sequence[int], peaks: Sequence[float], available: float) -> int | None:
    """Return the largest power of two times the smallest batch that fits, memory being linear in the batch.

    Args:
        peaks: most memory of a worker at each batch, any unit.
        available: memory for a worker, the same unit.

    Returns:
        None: memory does not grow with the batch, so nothing can be said.
    """
    slope = (peaks[-1] - peaks[0]) / (batches[-1] - batches[0]) if len(batches) > 1 else 0.0
    if slope <= 0:
        return None
    most = batches[0] + (available - peaks[0]) / slope
    return batches[0] * 2 ** int(math.log2(most / batches[0])) if most >= batches[0] else 0


LARGE_ERROR = 0.1
"""Relative error of the fitted steps from which on a caution is given."""


class WorkerRow(Frozen):
    """One number of workers; modelled."""

    workers: int
    step_seconds: float
    speed_up: Estimated
    efficiency: float
    one_server: float | None
    """Efficiency behind one parameter server, (1 + R) / (1 + G R) with R = 2 S / (B T). None, like the next two: the
    fit found no cost of bytes, so the rate of a link is not known."""
    shards_by_lemma: int | None
    shards_with_room: int | None


class BatchRow(Frozen):
    """One batch of a worker; measured, median over seeds."""

    batch: int
    step_seconds: float
    samples_per_second: float
    peak_mib: float | None


class Doubling(Frozen):
    """Gain of a doubling of a worker's batch; measured."""

    batch: int
    gain: Estimated
    """Factor in samples a second."""


class ConvolutionRow(Frozen):
    """Options by which convolutions run in another way, on one worker; measured, medians over seeds."""

    options: str
    """Those that are on; "" none."""
    step_seconds: float
    peak_mib: float | None
    fits: bool
    """Its peak is within the memory for a worker; True if either is not known."""
    chosen: bool
    """The fastest of those that fit."""


class FamilyAdvice(Frozen):
    """The advice for cells that differ only in workers and batch."""

    family: str
    algorithm: str
    """Whose schedule the model takes; "ring, assumed" for the backend's own collectives."""
    step_seconds: float
    """Measured: of one worker."""
    samples: int
    """Of a worker in a step."""
    input_seconds: float
    """Measured: wait for input in a step of one worker."""
    gradient_bytes: int
    """Sent to an all-reduce in a step."""
    counted: bool
    """False: the backend's collectives are not counted, so all gradients in one all-reduce are assumed."""
    all_reduces: int
    """Of a step."""
    alpha: float
    """Fitted: seconds a round."""
    beta: float
    """Fitted: seconds a byte."""
    fit_error: float
    """Largest relative error of the fitted steps."""
    workers: tuple[WorkerRow, ...]
    worth: int
    """Most workers at no less than the asked efficiency; 1: not even two."""
    batches: tuple[BatchRow, ...]
    convolutions: tuple[ConvolutionRow, ...]
    """Empty: the model has no convolutions, or the suite sets how they run."""
    doublings: tuple[Doubling, ...]
    stops_paying: int | None
    """Smallest batch of which a doubling gains less than 10 %; None: it still pays, or is not settled."""
    unsettled: int | None
    """First batch of which the pilot does not settle whether a doubling gains 10 %."""
    train_samples: int
    largest_batch: int | None
    """Largest power of two times the smallest batch that fits, if memory is linear; also above the data's size."""
    available_mib: float | None


class Advice(Frozen):
    """All families of a pilot."""

    suite: str
    pilot: str
    efficiency: float
    """Least efficiency at which workers count as worth it."""
    origin: str
    families: tuple[FamilyAdvice, ...]
    left_out: tuple[str, ...] = ()
    """Cells without advice, with the reason."""
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Seed:
    """The pilot's steps of one seed."""

    alone: float
    links: LinkModel
    error: float


def advise(
    record: Record, pilot: str, efficiency: float, available_mib: float | None, workers: Sequence[int]
) -> Advice:
    """Return the advice that a pilot gives.

    Args:
        efficiency: least efficiency of workers that are worth it, 0 to 1.
        available_mib: memory for one worker; None: not known, so neither is the largest batch.
        workers: numbers of workers to predict.

    Raises:
        UsageError: the record is of no pilot, or a trial without which nothing can be predicted did not end well.
    """
    name = record.plan.suite.suite
    if not name.endswith(SUFFIX):
        raise UsageError(f"{pilot}: is a run of {name!r}, not of a pilot; `repro advise {name}` makes one")
    found, left_out = list[FamilyAdvice](), list[str]()
    for label, cells in families_of(record.plan).items():
        try:
            if reason := unfit(cells):
                raise UsageError(f"{label or 'the suite'}: {reason}")
            found.append(_family(record, label, cells, efficiency, available_mib, workers))
        except UsageError as error:
            left_out.append(str(error))
    if not found:
        raise UsageError(f"no advice: {left_out[0]}")
    origin, cores = record.origin_of(record.plan.cells[0]), record.plan.cores
    shared = [
        f"up to {max(PILOT_WORKERS)} workers of the pilot shared {cores} cores: what they lost to each other counts as "
        "communication here"
    ] if cores < max(PILOT_WORKERS) and record.plan.device == "cpu" else []
    noisy = [
        f"{item.family or 'the fit'}: the fitted steps are up to {100 * item.fit_error:.0f} % off: measure again on a "
        "quiet machine, with more --steps" for item in found if item.fit_error > LARGE_ERROR
    ]
    return Advice(suite=name.removesuffix(SUFFIX), pilot=pilot, efficiency=efficiency, origin=origin,
                  families=tuple(found), left_out=tuple(left_out), cautions=(*shared, *noisy))


def unfit(cells: Sequence[Cell]) -> str:
    """Return why no advice can come from a family of cells, whatever they measure; "" if it can."""
    choices = cells[0].training
    if not all_reduces_alone(cells[0]):
        return (f"engine {choices.engine.kind} does not send gradients by all-reduce alone; advice is for engines that "
                "do: ddp, and deepspeed of stage 0")
    alone = [samples_of_worker(cell) for cell in cells if cell.choices.processes == 1]
    if not alone:
        return "one worker cannot run here, so nothing can be compared with it"
    if not any(cell.choices.processes > 1 and samples_of_worker(cell) == min(alone) for cell in cells):
        return "neither two nor three workers can run here, so communication is not known"
    return ""


def _family(
    record: Record, label: str, cells: Sequence[Cell], efficiency: float, available: float | None,
    workers: Sequence[int],
) -> FamilyAdvice:
    share = min(samples_of_worker(cell) for cell in cells)
    variants = {_switched_on(cell): cell for cell in cells if cell.choices.processes == 1
                and samples_of_worker(cell) == share}
    cells = [cell for cell in cells if not _switched_on(cell)]
    by_shape = {(cell.choices.processes, samples_of_worker(cell)): _ended(record, cell, label) for cell in cells}
    alone = by_shape[1, share]
    algorithm, assumed = algorithm_of(cells[0])
    stop = cells[0].training.stop
    assert stop.steps is not None and stop.warmup is not None, "a pilot's steps are fixed"
    sent = exchange_of(next(iter(alone.values())), cells[0], stop.steps + stop.warmup, label or cells[0].label)

    def cost(workers: int) -> ScheduleCost:
        return sent.cost(algorithm, workers)

    together = {count: found for (count, samples), found in by_shape.items() if count > 1 and samples == share}
    seeds = [_seed(repeat, alone, together, cost) for repeat in alone if all(repeat in of for of in together.values())]
    if not seeds:
        counts = ", ".join(map(str, (1, *sorted(together))))
        raise UsageError(f"{label or 'the suite'}: no seed ended well with all of {counts} workers")
    middle = LinkModel(median(seed.links.alpha for seed in seeds), median(seed.links.beta for seed in seeds))
    step = median(seed.alone for seed in seeds)
    rows = tuple(_workers(count, seeds, cost(count), step, sent.size, middle) for count in workers)
    worth = max([row.workers for row in rows if row.efficiency >= efficiency], default=1)
    by_batch = {samples: found for (count, samples), found in sorted(by_shape.items()) if count == 1}
    batches = tuple(_batch(samples, found) for samples, found in by_batch.items())
    peaks = [row.peak_mib for row in batches if row.peak_mib is not None]
    sizes = [row.batch for row in batches]
    doublings = _doublings(by_batch)
    stops, unsettled = stops_paying(sizes, [(item.gain.low or 0.0, item.gain.high or math.inf) for item in doublings])
    return FamilyAdvice(
        family=label, algorithm=f"{algorithm.title}{', assumed' if assumed else ''}", step_seconds=step, samples=share,
        input_seconds=median(item.input_wait_seconds or 0.0 for item in alone.values()), gradient_bytes=sent.size,
        counted=sent.counted, all_reduces=sent.calls, alpha=middle.alpha, beta=middle.beta,
        fit_error=max(seed.error for seed in seeds),
        workers=rows, worth=worth, batches=batches,
        convolutions=_convolutions({name: _ended(record, cell, label) for name, cell in variants.items()}, available),
        doublings=doublings, stops_paying=stops, unsettled=unsettled,
        train_samples=cells[0].training.workload.get(Workload).train_samples,
        largest_batch=largest_batch(sizes, peaks, available)
        if available is not None and len(peaks) == len(sizes) else None,
        available_mib=available,
    )


def _doublings(rates: Mapping[int, Mapping[int, Result]]) -> tuple[Doubling, ...]:
    """Return what each doubling gives, from trials by batch and seed; a larger step counts as so many doublings."""
    found = []
    for small, large in pairwise(sorted(rates)):
        gains = [(large / step_of(rates[large][repeat]) * step_of(item) / small) ** (1 / math.log2(large / small))
                 for repeat, item in rates[small].items() if repeat in rates[large]]
        if gains:
            found.append(Doubling(batch=small, gain=estimated(gains)))
    return tuple(found)


def _ended(record: Record, cell: Cell, label: str) -> dict[int, Result]:
    found = {item.repeat: item for item in record.of_cell(cell.cell_id)
             if meaning(item.status).completed and item.steps}
    if not found:
        raise UsageError(f"{label or 'the pilot'}: no trial of {cell.label} ended well; its record says why")
    return found


def _seed(
    repeat: int, alone: Mapping[int, Result], together: Mapping[int, Mapping[int, Result]],
    cost: Callable[[int], ScheduleCost],
) -> _Seed:
    one = step_of(alone[repeat])
    steps = {count: step_of(found[repeat]) for count, found in together.items()}
    samples = [Sample(cost(count), max(seconds - one, 1e-6)) for count, seconds in steps.items()]
    links = fit(samples)
    error = max(abs((one + links.seconds(cost(count))) / seconds - 1) for count, seconds in steps.items())
    return _Seed(one, links, error)


def step_of(item: Result) -> float:
    assert item.steps is not None
    return item.steps.median_seconds + (item.input_wait_seconds or 0.0)


def _switched_on(cell: Cell) -> str:
    """Return the options of convolutions that the pilot has switched on in a cell, which are factors of it."""
    return ", ".join(name for name in CONVOLUTIONS[GPU] if name in cell.factors and getattr(cell.choices, name))


def _convolutions(found: Mapping[str, Mapping[int, Result]], available: float | None) -> tuple[ConvolutionRow, ...]:
    if len(found) < 2:
        return ()
    rows = []
    for options, trials in found.items():
        row = _batch(1, trials)
        fits = available is None or row.peak_mib is None or row.peak_mib <= available
        rows.append(ConvolutionRow(options=options, step_seconds=row.step_seconds, peak_mib=row.peak_mib, fits=fits,
                                   chosen=False))
    best = min((row for row in rows if row.fits), key=lambda row: row.step_seconds, default=None)
    return tuple(row.model_copy(update={"chosen": row is best}) for row in rows)


def _workers(
    count: int, seeds: Sequence[_Seed], cost: ScheduleCost, step: float, size: int, links: LinkModel
) -> WorkerRow:
    predicted = [speed_up(seed.alone, seed.alone + seed.links.seconds(cost), count) for seed in seeds]
    found, rate, known = estimated(predicted), links.bytes_per_second, links.beta > 0
    return WorkerRow(
        workers=count, step_seconds=count * step / found.value, speed_up=found, efficiency=found.value / count,
        one_server=efficiency(2 * size / (rate * step), count) if known else None,
        shards_by_lemma=shards_by_lemma(size, count, rate, step) if known else None,
        shards_with_room=shards_with_room(size, count, rate, step) if known else None,
    )


def _batch(samples: int, found: Mapping[int, Result]) -> BatchRow:
    seconds = median(step_of(item) for item in found.values())
    return BatchRow(batch=samples, step_seconds=seconds, samples_per_second=samples / seconds,
                    peak_mib=known_median(item.training_peak_mib for item in found.values()))
