"""Evaluations: the metric over all evaluation samples, identical on every rank, and by the harness's own model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.record.log.schema import EvalAccuracy, EvalError, EvalStart, EvalStop
from repro.seams.training import Batch, Job, TrainingParts, Workload
from repro.seams.workload import WholeSet, call_model, not_additive
from repro.suite.model import Trial
from repro.worker.setup import TrialContext


def share_indices(job: Job, eval_samples: int) -> Iterator[np.ndarray]:
    """Yield the batches of a rank's share: every world-th of the first `eval_samples` evaluation samples."""
    own = np.arange(job.rank, eval_samples, job.world)
    for start in range(0, len(own), job.eval_batch):
        yield own[start:start + job.eval_batch]


class ShareBatches(Collection[Batch]):
    """A rank's share of an evaluation, in batches that are made when they are reached.

    Args:
        read: returns the batches of the samples that it is given.
    """

    def __init__(self, read: Callable[[Iterator[np.ndarray]], Iterable[Batch]], job: Job, eval_samples: int) -> None:
        self.read, self.job, self.eval_samples = read, job, eval_samples

    def __len__(self) -> int:
        return sum(1 for _ in share_indices(self.job, self.eval_samples))

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.read(share_indices(self.job, self.eval_samples)))

    def __contains__(self, batch: object) -> bool:
        return False


def share_batches(parts: TrainingParts, job: Job, eval_samples: int) -> ShareBatches:
    """Return a rank's share, looked up by the functions of the workload."""
    return ShareBatches(lambda wanted: map(parts.eval_batch, wanted), job, eval_samples)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation, over all ranks."""

    number: int
    """From 1."""
    samples: int
    """Training samples until then."""
    value: float
    """NaN if the loss of any rank was not finite."""


class Evaluator:
    """Evaluates the session's model, each rank on its share of the samples, and logs the value.

    Args:
        batches: returns this rank's share of the evaluation samples.
    """

    def __init__(self, context: TrialContext, batches: Callable[[], Collection[Batch]]) -> None:
        self.context, self.batches = context, batches
        self.eval_samples = context.workload.eval_samples
        self.train_samples = context.workload.train_samples
        self.evaluations = 0
        """Evaluations so far."""
        self.last: Evaluated | None = None

    def evaluate(self, samples: int, losses: Sequence[float]) -> float:
        """Return the metric; NaN if the loss of any rank is not finite.

        Args:
            samples: training samples of all ranks so far.
            losses: this rank's losses since the last evaluation.
        """
        context, stop = self.context, self.context.choices.stop
        epochs = samples / self.train_samples
        context.log.write(EvalStart(epoch_num=epochs, samples_count=samples))
        value, train_loss, counted = self._score(losses)
        self.evaluations += 1
        self.last = Evaluated(self.evaluations, samples, value)
        stop_ns = context.log.write(EvalStop(epoch_num=epochs, samples_count=samples))
        event = EvalAccuracy if stop.direction == "higher" else EvalError
        context.log.write(event(
            value=value if math.isfinite(value) else None, samples_count=samples, epoch_num=epochs,
            phases=context.clock.watch.seconds(), eval_stop_ns=stop_ns, metric=stop.metric, train_loss=train_loss,
            evaluated=None if counted == self.eval_samples else counted,
        ))
        return value

    def _score(self, losses: Sequence[float]) -> tuple[float, float | None, float]:
        """Return (metric over all ranks, mean training loss of all ranks, evaluated samples).

        NaN and None if any rank's loss is not finite. An evaluation of too few samples is logged with their number,
        which makes the trial invalid: it would lose them again if it ran again.
        """
        session = self.context.session
        score, count = session.evaluate(self.batches(), self.context.choices.stop.metric)
        bad = float(not all(math.isfinite(loss) for loss in losses))
        loss = sum(losses) / len(losses)
        scores, counts, bads, mean_losses = session.total([score, float(count), bad, loss if not bad else 0.0])
        counted = counts if self.context.parts is not None else float(self.eval_samples)
        if bads or not counts:
            return math.nan, None, counted
        return scores / counts, mean_losses / self.context.job.world, counted


class OwnModel:
    """A model built again from the trial's seed.

    Args:
        functions: the workload's functions as they were before the engine started.
    """

    def __init__(self, trial: Trial, job: Job, functions: TrainingParts) -> None:
        from repro.engines.plain.numerics import Numerics

        self.job, self.functions = job, functions
        self.workload = trial.training.workload.get(Workload)
        self.model = self.workload.build(Streams(trial.master_seed, trial.repeat), job.device).model
        self.numerics = Numerics(job.precision, job.device, job.model.channels_last)
        self.numerics.prepare(self.model)
        self.numerics.cast_parameters(self.model)
        self.model.to(job.device)
        if job.model.channels_last:  # which elements random layers drop depends on it
            import torch

            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's overloads

    def load(self, weights: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray]) -> None:
        """Copy weights, rounded to the type of the model's, and buffers into the model."""
        import torch

        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in weights:
                    parameter.copy_(torch.from_numpy(weights[name]).view_as(parameter))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(torch.from_numpy(buffers[name]).view_as(buffer))

    def loss(self, batch: Batch, numbers: AbstractContextManager[Any] | None = None) -> Any:
        """Return the mean loss of a micro-batch; `numbers`: in another format than the trial's."""
        inputs, targets = batch
        with numbers or self.numerics.autocast():
            outputs = call_model(self.model, self.numerics.inputs(inputs))
        return self.functions.loss(self.numerics.outputs(outputs), targets)

    def score(self, batches: Iterable[Batch], metric: str, training: bool = False) -> tuple[float, int]:
        """Return the sum of `metric` over `batches`, and the number of samples; `training`: in training mode.

        Raises:
            TrialError: the metric is no sum over samples.
        """
        import torch

        total, samples, own, score = 0.0, 0, None, self.functions.scores[metric]
        if isinstance(score, WholeSet) and isinstance(batches, ShareBatches):
            own = sum(len(share) for share in share_indices(batches.job, batches.eval_samples))
            # Of all samples, in no need of the other ranks.
            batches = ShareBatches(batches.read, replace(batches.job, rank=0, world=1), batches.eval_samples)
        self.model.train(training)
        if isinstance(score, WholeSet):
            score.forget()
        with torch.no_grad():
            for inputs, targets in batches:
                with self.numerics.autocast():
                    outputs = self.numerics.outputs(call_model(self.model, self.numerics.inputs(inputs)))
                if not samples and (why := not_additive(score, outputs, targets)):
                    raise TrialError(f"metric {metric}: {why}")
                total += float(score(outputs, targets))
                samples += len(targets)
        if isinstance(score, WholeSet):
            samples = samples if own is None else own
            return score.value() * samples, samples
        return total, samples

    def describe_optimizer(self) -> dict[str, str]:
        """Return class and hyper-parameters of the requested optimizer, built for this model."""
        from repro.engines.plain.state import class_of, options_of

        named = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        optimizer = self.job.optimizer.build(named)
        return {"optimizer": class_of(optimizer), "optimizer_options": options_of(optimizer)}
