"""One rank in the parity gate: it takes the gate's steps, and every tensor of them is measured and recorded."""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from repro.core.files import write_text
from repro.core.random_streams import Streams
from repro.record.log.facts import Apart, StepAgain
from repro.seams.training import Batch, Job, Workload
from repro.seams.workload import WholeSet, map_tensors
from repro.suite.kinds.training_options import GateOptions
from repro.suite.model import Trial
from repro.worker.evaluation import OwnModel, share_batches
from repro.worker.gate.difference import OWN_EVALUATION_TOLERANCE, compare_number
from repro.worker.gate.model import ScaledLoss, make_plain, prepare
from repro.worker.gate.trace import AGED_STEPS, Evaluation, Fed, Kind, Measure, Step, Trace, measured_steps
from repro.worker.input.data_order import SampleOrder
from repro.worker.ledger.training import resting
from repro.worker.memory import naming_out_of_memory
from repro.worker.report.layer_trace import traced
from repro.worker.report.own_step import Begun, Found, OwnStep
from repro.worker.report.score_difference import SAME_SCORE, like_score, where_score_differs
from repro.worker.report.steps_after import fits, has_an_update
from repro.worker.serve import serve
from repro.worker.setup import RankPlace, Started, make_job, read_trial, start_session, warm_up
from repro.worker.weights import describe_held, wide_share


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Run the steps and write trace<rank>.json in `folder`: the entry point of every rank."""
    trial, place = read_trial(payload)
    with naming_out_of_memory(trial.training, in_gate=True):
        if place.rank >= place.world:
            cut = int(payload.get("ranks_of_candidates", 1))
            serve(trial, place, payload.get("disturbance", 0), lambda parts: prepare(parts, cut, "cpu"))
            return
        trace = _run(trial, place, payload)
    write_text(Path(folder, f"trace{place.rank}.json"), trace.model_dump_json())


def _run(trial: Trial, place: RankPlace, payload: Mapping[str, Any]) -> Trace:
    job = make_job(trial.training, place, payload.get("cache"))
    cut = int(payload.get("ranks_of_candidates", 1))
    started = start_session(trial, job, payload.get("disturbance", 0), lambda parts: prepare(parts, cut, job.device),
                            watched=cut == 1)
    assert started.parts is not None
    try:
        if trial.training.warmup_steps:  # the reference has none: what a warm-up leaves behind must show
            warm_up(started.session, started.parts, job, trial.training)
        kind: Kind = payload["kind"]
        return Recorder(trial, job, started, cut).record(kind, measured_steps(kind, float(payload["least_share"])))
    finally:
        if started.ledger is not None:
            started.ledger.close()
        started.session.close()


class Recorder:
    """Trains one session through the steps of the gate and measures it.

    Args:
        turns: micro-batches of this process that are one of each candidate's ranks; 1 for a candidate.
    """

    def __init__(self, trial: Trial, job: Job, started: Started, turns: int) -> None:
        assert started.parts is not None and started.functions is not None
        self.trial, self.job, self.turns = trial, job, turns
        self.session, self.parts, self.functions = started.session, started.parts, started.functions
        assert isinstance(started.functions.loss, ScaledLoss)
        self.loss = started.functions.loss
        self.ledger = started.ledger
        """Sees what a candidate is fed, for words about what differs."""
        if self.ledger is not None:
            self.ledger.open_data()
        self.parts.open_data()
        workload = trial.training.workload.get(Workload)
        self.eval_samples = min(workload.eval_samples, (trial.training.gate or GateOptions()).eval_samples)
        self.order = SampleOrder(
            Streams(trial.master_seed, trial.repeat), workload.train_samples, trial.training.batch.global_)
        self.offset = max(0, workload.train_samples // trial.training.batch.global_ - PASS_END)
        self.measures = Measures()
        self.weights: dict[str, np.ndarray] = {}
        self.fed: list[Fed] = []
        self.moved_between: tuple[int, str] | None = None
        """First step before which the weights are not those after the step before it, and a tensor."""
        self._newest = 0
        """The newest measured step."""
        self.losses: list[float] = []
        self._optimizer: dict[str, str] = {}
        self.own: OwnStep | None = None
        """Repeats the measured steps of a candidate, for words about what differs; None: of the reference, or there is
        no memory for it."""
        self._keeps_up = True
        """The optimizer of `own` took all steps so far: it takes those whose gradient is known."""
        self._apart: list[Apart] = []
        self._again: list[StepAgain] = []

    def record(self, kind: Kind, steps: Sequence[Step]) -> Trace:
        """Take all steps and return what was measured."""
        self.weights = self.session.weights()
        if self.turns == 1 and not self.session.total([float(not fits(self.job, self.weights))])[0]:
            self.own = OwnStep(self.session, self.trial, self.job, self.functions)
            if self.own.model is not None:
                make_plain(self.own.model.model, self.functions)
        initial = self.measures.of(self.weights.items())
        facts: dict[str, Any] = {}
        before = [step for step in steps if step.before_evaluation]
        for index, step in enumerate(before):
            if kind == "fp32" and index and step.number > before[index - 1].number + 1:
                facts |= self._age(before[index - 1].number)
            self._measure_step(step)
        evaluations = [self._evaluate(before[-1].number, self.eval_samples)]
        facts["buffers"] = self.measures.of(self.session.buffers().items())
        for step in steps[len(before):]:
            self._measure_step(step)
        # Fewer samples: a sum that is left over from the first evaluation cannot be right by chance.
        evaluations.append(self._evaluate(steps[-1].number, max(1, self.eval_samples // 2)))
        facts |= self._describe_ranks()
        evaluations = self._placed(evaluations)
        return Trace(
            rank=self.job.rank, steps=tuple(step.number for step in steps), fed=tuple(self.fed),
            loss=tuple(self._mean(self.losses)), initial=initial, gradients=self.measures.series("gradient"),
            weights=self.measures.series("weight"), updates=self.measures.series("update"),
            effective=self.session.effective(), evaluations=tuple(evaluations), optimizer=self._optimizer,
            again=tuple(self._again), ledger=self.ledger and self.ledger.facts(), moved_between=self.moved_between,
            **facts,
        )

    def _batches(self, number: int, ragged: bool = False) -> list[Batch]:
        job, index = self.job, number - 1 + self.offset
        epoch, shares = self.order.micro_batches(index, job.rank, job.world, job.accumulation)
        if ragged:
            whole = len(shares) - self.turns
            shares = [*shares[:whole], *(indices[:(len(indices) + 1) // 2] for indices in shares[whole:])]
        # Another epoch and another rate every step reveal an engine or workload that mishandles either.
        return [self.parts.train_batch(epoch + index % 3, indices) for indices in shares]

    def _measure_step(self, step: Step) -> None:
        batches, rate = self._batches(step.number, step.ragged), self.trial.training.rate * step.share
        self.fed.append(tuple(batch_hashes(batch) for batch in batches))
        follows, self._newest = step.number == self._newest + 1, step.number
        # Some rules move weights at rate 0, so that the step behind those is left out.
        if self.turns == 1 and follows and (moved := self._moved()) and self.moved_between is None:
            self.moved_between = step.number, moved
        self.loss.factor, self.loss.whole = step.factor, self.job.micro_batch if step.ragged else 0
        with self._watched(step.number, batches, rate, step.ragged):
            gradients = self._backward(batches, None if step.split else rate)
            self._keeps_up &= step.split
            self.measures.add("gradient", gradients.items())
            if step.split:
                self.session.update(rate)
        before, self.weights = self.weights, self.session.weights()
        if self.own is not None:
            if self._apart and self._keeps_up and has_an_update(self.trial.training):
                self._apart += self.own.compare_update(before, gradients, self.weights, rate)
            self._again.append(self.own.repeated(step.number, self._apart))
        self.measures.add("weight", self.weights.items())
        self.measures.add("update", ((name, array - before.pop(name)) for name, array in self.weights.items()))

    @contextmanager
    def _watched(self, number: int, batches: Sequence[Batch], rate: float, ragged: bool = False) -> Iterator[None]:
        """Let the ledger see the step inside this context, if its micro-batches are full; `number` from 1."""
        if self.ledger is None or ragged:
            if self.ledger is not None:
                self.ledger.begin(number - 1, batches, rate)  # a rate may be that of the step before
            yield
            return
        self.ledger.start()  # what the harness itself does between two steps is not counted
        self.ledger.begin_block(number - 1, number - 1)
        self.ledger.begin(number - 1, batches, rate)
        yield
        self.ledger.end()
        self.ledger.stop()
        self.ledger.compare()

    def _backward(self, batches: Sequence[Batch], rate: float | None) -> dict[str, np.ndarray]:
        """Return the mean gradient of a step, and note how a candidate's, or its loss, differs from the harness's own.

        Args:
            rate: of a step that is not split, which gives no gradient; its update is made.
        """
        session, own = self.session, self.own
        train = session.backward if rate is None else lambda batches: session.step(batches, rate)
        if own is None:
            self.losses.append(float(train(batches)))
            return session.gradients() if rate is None else {}
        begun = Begun(dict(self.weights), own.buffers(session.buffers()),
                      map_tensors(batches, lambda tensor: tensor.clone()), lambda: None)
        with traced(self.parts.model, self.trial.training) as layers:
            self.losses.append(float(train(batches)))
        gradients = session.gradients() if rate is None else {}
        self._apart = own.compare_gradient(
            begun, Found(self.losses[-1], gradients, session.buffers(), layers)) or []
        return gradients

    def _age(self, last: int) -> dict[str, Any]:
        self._keeps_up = False
        if self.own is not None:
            self.own.newest = {}
        losses, fed = list[float](), list[Fed]()
        for number in range(last + 1, last + 1 + AGED_STEPS):
            batches = self._batches(number)
            fed.append(tuple(batch_hashes(batch) for batch in batches))
            with self._watched(number, batches, 0.0):
                losses.append(float(self.session.step(batches, 0.0)))
        moved = "" if self.job.optimizer.moves_at_rate_zero else self._moved()
        return {"aged_loss": tuple(self._mean(losses)), "aged_fed": tuple(fed), "moved_at_rate_zero": moved}

    def _moved(self) -> str:
        """Return the first tensor whose weights differ from those at the last measured step."""
        now = self.session.weights()
        return next((name for name in now if not _equal(now[name], self.weights[name])), "")

    def _evaluate(self, step: int, samples: int) -> Evaluation:
        """Evaluate by the engine and, with the weights that it reports, by the harness's own model."""
        metric, job = self.trial.training.gate_metric, self.job
        before, buffers = resting(self.parts.model), self.session.buffers()
        theirs = self.session.evaluate(share_batches(self.parts, job, samples), metric)
        moved, left_resting = self._moved(), resting(self.parts.model) - before
        now = self.session.buffers()
        stirred = next((name for name in buffers if not _equal(buffers[name], now[name])), "")
        weights = self.weights
        if job.optimizer.evaluates_other_weights:
            with self.session.evaluated():
                weights = self.session.weights()
        own = OwnModel(self.trial, job, self.functions)

        def score(training: bool = False) -> tuple[float, int]:
            own.load(weights, self.session.buffers())
            return own.score(share_batches(self.functions, job, samples), metric, training)

        def other(training: bool = False) -> tuple[float, int]:
            with suppress(Exception):  # some models cannot be evaluated in training mode
                return score(training)
            return 0.0, 0

        ours = score()
        sums = self.session.total([theirs[0], float(theirs[1]), ours[0], float(ours[1])])
        self._optimizer = own.describe_optimizer()
        value, right = sums[0] / sums[3], sums[2] / sums[3]  # the harness's own count is the divisor of both
        like = ""
        if abs(value - right) > SAME_SCORE * abs(right):
            like = like_score(self.session, value, ours, {"training": other(training=True)}, int(sums[3]))
        return Evaluation(step=step, value=value, own=right, like=like, moved=moved,
                          stirred=stirred, resting=left_resting, counted=int(sums[1]), samples=int(sums[3]))

    def _placed(self, evaluations: list[Evaluation]) -> list[Evaluation]:
        """Return the evaluations, those that differ with where they begin to; another one is made, at the end."""
        choices, job, metric = self.trial.training, self.job, self.trial.training.gate_metric
        differ = [item.own is not None and bool(compare_number(
            "evaluation", item.step, item.value, item.own, OWN_EVALUATION_TOLERANCE)) for item in evaluations]
        # Of a score of the whole set the harness evaluates all samples on each rank.
        whole = isinstance(self.functions.scores.get(metric), WholeSet) and job.world > 1
        if self.turns > 1 or whole or not any(self.session.gather(any(differ))):
            return evaluations
        own = OwnModel(self.trial, job, self.functions)
        with self.session.evaluated():
            own.load(self.session.weights(), self.session.buffers())
        samples = self.eval_samples
        place = where_score_differs(choices, self.session, (self.parts.model, own.model), (
            lambda: self.session.evaluate(share_batches(self.parts, job, samples), metric),
            lambda: own.score(share_batches(self.functions, job, samples), metric)))
        return [item.model_copy(update={"place": place}) if differs else item
                for item, differs in zip(evaluations, differ, strict=True)]

    def _describe_ranks(self) -> dict[str, Any]:
        held, precision = self.session.held(), self.job.precision
        facts: dict[str, Any] = {"wide_share": wide_share(self.weights, precision)}
        if held is None:
            return facts
        found = describe_held(held, self.weights, precision.weights)
        return facts | {"parts": found.parts, "held": found.sha256, "different": found.different,
                        "first_different": found.first}

    def _mean(self, losses: Sequence[float]) -> list[float]:
        return [total / self.job.world for total in self.session.total(losses)]


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    # Looking for NaN takes several times as long.
    return np.array_equal(one, other) or np.array_equal(one, other, equal_nan=True)


PASS_END = 2
"""Steps of the gate before the pass over the data ends, where there are as many: readers start a new pass there."""
BLOCK = 1 << 16
"""Numbers that are measured at a time: their float64 copies stay in a processor's cache."""


class Measures:
    """Series of measures by kind (gradient, weight, update) and tensor."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, list[dict[str, Measure]]] = defaultdict(list)
        self._directions: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def add(self, kind: str, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
        """Append the measures of one step; tensors are taken one by one."""
        self._steps[kind].append(self.of(tensors))

    def series(self, kind: str) -> dict[str, Any]:
        """Return name -> measures of all steps; None for a step in which the tensor was not measured."""
        steps = self._steps[kind]
        return {name: tuple(step.get(name) for step in steps) for name in dict.fromkeys(chain.from_iterable(steps))}

    def of(self, tensors: Iterable[tuple[str, np.ndarray]]) -> dict[str, Measure]:
        """Return the measures of some tensors."""
        return {name: self._measure(name, array) for name, array in tensors}

    def _measure(self, name: str, array: np.ndarray) -> Measure:
        flat = array.reshape(-1)
        known = self._directions.get(name)
        if known is None or len(known[1]) != -(-flat.size // BLOCK) or len(known[0]) != min(flat.size, BLOCK):
            known = self._directions[name] = draw_direction(name, flat.size)
        direction, factors = known[0].astype(np.float64), known[1]
        squares = projection = 0.0
        for number, factor in enumerate(factors):
            block = flat[number * BLOCK:(number + 1) * BLOCK].astype(np.float64)
            squares += float(block @ block)
            projection += float(factor * (block @ direction[:block.size]))
        return squares**0.5, projection


def draw_direction(name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random direction that depends only on the name: [at most BLOCK] float32, and a factor for each block.

    A factor is 1 for the first block and 0.5 to 1.5, of either sign, for each other one, so that blocks that are
    exchanged show. One direction for all blocks keeps memory and time independent of a tensor's size.
    """
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    direction = generator.standard_normal(min(size, BLOCK), dtype=np.float32)
    blocks = -(-size // BLOCK)
    factors = (0.5 + generator.random(blocks)) * generator.choice([-1.0, 1.0], blocks)
    factors[:1] = 1.0
    return direction, factors


def batch_hashes(batch: Batch) -> tuple[str, str]:
    """Hash a micro-batch's inputs and its targets as they are on the device."""
    inputs, targets = hashlib.sha256(), hashlib.sha256()
    _update(inputs, batch[0])
    _update(targets, batch[1])
    return inputs.hexdigest()[:16], targets.hexdigest()[:16]


def _update(digest: Any, value: Any) -> None:
    """Add a tensor, or every tensor of a dict, list or tuple, with its name or place."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}:".encode())
            _update(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _update(digest, item)
    elif hasattr(value, "detach"):
        import torch

        # Bytes, because numpy has no bfloat16.
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    else:
        digest.update(repr(value).encode())
