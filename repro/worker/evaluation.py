"""Evaluations: the metric over all evaluation samples, identical on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from repro.seams.training import Batch
from repro.worker.context import TrialContext

EVAL_BATCH = 512
"""Samples per forward pass of an evaluation and rank."""


class Evaluator:
    """Evaluates the session's model, each rank on its share of the samples, and logs the value."""

    def __init__(self, context: TrialContext) -> None:
        self.context = context
        self.eval_samples = context.workload.eval_samples
        self.train_samples = context.workload.train_samples
        self.evaluations = 0
        """Evaluations so far."""

    def evaluate(self, samples: int, losses: Sequence[float]) -> float:
        """Return the metric; NaN if the loss of any rank is not finite.

        Args:
            samples: training samples of all ranks so far.
            losses: this rank's losses since the last evaluation.
        """
        context, stop = self.context, self.context.choices.stop
        position = {"epoch_num": samples / self.train_samples, "samples_count": samples}
        context.log.start("eval_start", **position)
        value, train_loss = self._score(losses)
        self.evaluations += 1
        stop_ns = context.log.stop("eval_stop", **position)
        context.log.emit(
            "eval_accuracy" if stop.direction == "higher" else "eval_error",
            value if math.isfinite(value) else None, samples_count=samples, epoch_num=position["epoch_num"],
            phases=context.clock.watch.seconds(), eval_stop_ns=stop_ns, metric=stop.metric, train_loss=train_loss,
        )
        return value

    def _score(self, losses: Sequence[float]) -> tuple[float, float | None]:
        """(metric over all ranks, mean training loss of all ranks); NaN and None if any rank's loss is not finite."""
        session = self.context.session
        score, count = session.evaluate(self._batches(), self.context.choices.stop.metric)
        bad = float(not all(math.isfinite(loss) for loss in losses))
        loss = sum(losses) / len(losses)
        scores, counts, bads, mean_losses = session.total([score, float(count), bad, loss if not bad else 0.0])
        if self.context.parts is not None:
            assert counts == self.eval_samples, f"{counts} of {self.eval_samples} evaluation samples"
        if bads:
            return math.nan, None
        return scores / counts, mean_losses / self.context.job.world

    def _batches(self) -> Iterable[Batch]:
        """Yield this rank's share: every world-th evaluation sample."""
        parts, job = self.context.parts, self.context.job
        if parts is None:
            return
        own = np.arange(job.rank, self.eval_samples, job.world)
        for start in range(0, len(own), EVAL_BATCH):
            yield parts.eval_batch(own[start:start + EVAL_BATCH])
