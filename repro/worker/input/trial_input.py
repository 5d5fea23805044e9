"""Input of one rank of a trial: the micro-batches of every step and the batches of every evaluation, in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from repro.seams.training import Batch, Fed, TrainingParts
from repro.worker.evaluation import share_batches
from repro.worker.input.data_order import DataOrder, StreamOrder
from repro.worker.setup import TrialContext


class TrialInput:
    """The input of one rank; this one, for an engine that needs no model, is empty.

    `start` comes after the data are open, `close` after the last batch.
    """

    def start(self, step: int) -> None:
        """Begin at optimizer step `step`; what was looked up until now is forgotten."""

    def take(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of step `step` on the device; inside the timed step.

        Raises:
            TrialError: a sample cannot be read, or an input worker has ended.
        """
        return []

    def look_ahead(self) -> None:
        """Begin to copy what follows to the device, after the engine's step was launched."""

    def evaluation(self) -> Collection[Batch]:
        """Return this rank's share of the evaluation samples, after the last step of a block."""
        return ()

    def consumed(self) -> Sequence[Fed]:
        """Return what the micro-batches taken since the last call were made of, in their order."""
        return ()

    def evaluation_again(self) -> Iterable[Batch]:
        """Return the share of the evaluation samples once more, read again; between blocks or after the last."""
        return ()

    def effective(self) -> dict[str, str]:
        """Return what feeds this rank, read back; empty if the workload looks its batches up on the device."""
        return {}

    def explained(self) -> AbstractContextManager[None]:
        """Inside, the end of an input worker is raised as the `TrialError` that names it."""
        return nullcontext()

    def close(self) -> None:
        """End everything that was started."""


class DirectInput(TrialInput):
    """Looks up or reads every batch when it is needed, by the functions of the workload."""

    def __init__(self, context: TrialContext, order: DataOrder, parts: TrainingParts) -> None:
        self.context, self.order, self.parts = context, order, parts
        self.job = context.job
        self._requested: list[np.ndarray] = []
        """Micro-batches since the last account, for a workload that keeps none itself."""

    def start(self, step: int) -> None:
        self.order.prepare(step)
        self.consumed()

    def take(self, step: int) -> list[Batch]:
        job, train_batch = self.job, self.parts.train_batch
        epoch, shares = self.order.micro_batches(step, job.rank, job.world, job.accumulation)
        if self.parts.fed is None:
            self._requested += shares
        return [train_batch(epoch, indices) for indices in shares]

    def evaluation(self) -> Collection[Batch]:
        return self._share(self.parts)

    def evaluation_again(self) -> Iterable[Batch]:
        # By the functions as they were before the engine started, which may have changed those of the trial.
        return self._share(self.context.started.functions or self.parts)

    def _share(self, parts: TrainingParts) -> Collection[Batch]:
        return share_batches(parts, self.job, self.context.workload.eval_samples)

    def consumed(self) -> Sequence[Fed]:
        if self.parts.fed is not None:
            return self.parts.fed()
        requested, self._requested = self._requested, []
        return [(indices, None) for indices in requested]

    def effective(self) -> dict[str, str]:
        chosen = self.parts.selection() if self.parts.selection else ""
        found = {"selection": chosen} if chosen else {}
        if self.parts.reader is None:
            return found | ({"input_order": self.order.kind} if isinstance(self.order, StreamOrder) else {})
        return found | {"input_workers": "0", "input_ahead": "0", "input_order": self.order.kind}
