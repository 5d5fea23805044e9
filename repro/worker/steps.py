"""Blocks of timed optimizer steps: the input, the timer, the losses, the hashes of a bitwise trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from repro.core.events import EventLog
from repro.record.log.schema import BlockStart, BlockStop, Hashes
from repro.worker.context import TrialContext
from repro.worker.input.data_audit import DataAudit
from repro.worker.input.trial_input import TrialInput
from repro.worker.step_log import write_steps
from repro.worker.traffic_log import TrafficLog
from repro.worker.weights import weights_sha256

HASHED_STEPS = (1, 10)
"""Steps after which a bitwise trial logs the hash of its weights, in addition to the last (method.md section 5)."""


class TimedSteps:
    """Trains blocks of steps and logs each of them; the only part of the worker inside a timed step."""

    def __init__(
        self, context: TrialContext, input_: TrialInput, audit: DataAudit | None, traffic: TrafficLog
    ) -> None:
        self.context, self.input, self.audit, self.traffic = context, input_, audit, traffic
        self.schedule = context.choices.schedule
        self.session, self.timer = context.session, context.clock.timer
        self.train_samples, self.global_batch = context.workload.train_samples, context.choices.batch.global_
        self.base_rate, self.max_epochs = context.choices.rate, context.choices.budget_epochs
        self.hashed = context.choices.determinism == "bitwise"
        self.step = 0
        """Optimizer steps so far."""
        self.losses: list[float] = []
        """This rank's losses of the last logged block."""
        self.block_seconds: list[list[float]] = []
        """Step seconds of this rank, one list a block."""
        self.whole_seconds: list[list[float]] = []
        """The same with the input of each step."""

    @property
    def samples(self) -> int:
        return self.context.count_samples(self.step)

    def train_block(self) -> list[Any]:
        """Train up to the next evaluation or the end of the budget.

        Returns:
            The loss of every step, not yet read from the device.
        """
        session, log = self.session, self.context.log
        count = self.context.block_steps(self.step)
        log.write(BlockStart(first_step=self.step, steps=count))
        self.traffic.add(session.traffic())
        self.timer.start()
        losses = [self.train_step() for _ in range(count)]
        # Before the barrier: the wait for the slowest rank there is not communication of a step.
        self.traffic.add(session.traffic(), training=True)
        session.synchronize()
        log.write(BlockStop(samples_count=self.samples))
        return losses

    def train_step(self) -> Any:
        """Train one step and return its loss: everything in it is timed, and nothing in it is read from the device."""
        timer = self.timer
        batches = self.input.take(self.step)
        timer.mark_input()
        epochs = self.step * self.global_batch / self.train_samples
        loss = self.session.step(batches, self.base_rate * self.schedule.factor(epochs, self.max_epochs))
        timer.mark_step()
        self.input.look_ahead()
        self.step += 1
        if self.hashed and self.step in HASHED_STEPS:
            self._log_weights_hash(self.context.log)
        return loss

    def _log_weights_hash(self, log: EventLog) -> None:
        """Log the hash of the weights; all ranks take part, and the time counts as logging, not as training."""
        self.traffic.add(self.session.traffic(), training=True)
        with self.context.clock.watch.phase("logging"):
            log.write(Hashes(value={f"weights_step_{self.step}": weights_sha256(self.session.weights())}))
        self.traffic.add(self.session.traffic())
        self.timer.exclude_pause()

    def log_block(self, losses: list[Any]) -> None:
        """Read the timer and the losses of a block and log them."""
        log = self.context.log
        seconds, inputs = self.timer.read()
        if self.audit is not None:
            self.audit.count(self.input.consumed())
        self.losses = read_losses(losses)
        self.block_seconds.append(seconds)
        self.whole_seconds.append([step + waited for step, waited in zip(seconds, inputs, strict=True)])
        finite = [loss if math.isfinite(loss) else math.nan for loss in self.losses]
        write_steps(log, self.step - len(losses), seconds, inputs, finite, self.context.clock.now())
        log.flush()


def read_losses(losses: Sequence[Any]) -> list[float]:
    """Return the losses of a block as numbers: tensors are stacked, so that the device is read once."""
    if not losses or not all(hasattr(loss, "detach") for loss in losses):  # an engine may return numbers
        return [float(loss) for loss in losses]
    import torch

    return [float(loss) for loss in torch.stack([loss.detach().reshape(()) for loss in losses]).tolist()]
