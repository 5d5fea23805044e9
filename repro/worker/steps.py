"""Timed optimizer steps in blocks: their input, timer and losses, their lines in the log, the traffic of the rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from repro.core import devices
from repro.core.devices import on_gpu
from repro.core.events import FLUSH_NS, EventLog
from repro.record.log.schema import BlockStart, BlockStop, Hashes, Operations, RankSteps, StepBlock
from repro.seams.training import Batch
from repro.worker.input.data_audit import DataAudit
from repro.worker.input.trial_input import TrialInput
from repro.worker.kept_steps import make_keeper
from repro.worker.ledger.training import TrainingLedger
from repro.worker.setup import TrialContext, block_steps
from repro.worker.weights import held_or_full, weights_sha256

SECONDS = ("busy_seconds", "exposed_seconds", "overlapped_seconds")
COUNTS = ("collectives", "payload_bytes", "sent_bytes", "received_bytes")
STEPS_A_LINE = 10_000
"""About half a MiB: our readers accept 16 MiB (`events.MAX_LINE`), those of published logs 1 MiB."""
HASHED_STEPS = (1, 10)
"""Steps after which a bitwise trial logs the hash of its weights, in addition to the last (method.md section 5)."""


class TrafficLog:
    """Adds up the readings of a rank's meter, in the meter's format (`Comm.traffic`)."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        self._seconds = dict.fromkeys(SECONDS, 0.0)
        self._training = dict.fromkeys(SECONDS, 0.0)
        self._counted = False

    def add(self, reading: Mapping[str, Any], training: bool = False) -> None:
        """Add a reading of the meter; `training`: it covers training steps only."""
        if not reading:
            return
        self._counted = True
        for line in reading["lines"]:
            known = self._lines.setdefault((line["operation"], line["dtype"]), dict(line) | dict.fromkeys(COUNTS, 0))
            for name in COUNTS:
                # None means not counted; a sum with it is unknown too.
                known[name] = None if None in (known[name], line[name]) else known[name] + line[name]
        for name in SECONDS:
            self._seconds[name] += reading[name]
            self._training[name] += reading[name] if training else 0.0

    def restore(self, total: Mapping[str, Any]) -> None:
        """Continue from the return value of `total` in an earlier attempt."""
        if not total:
            return
        self._counted = True
        self._lines = {(line["operation"], line["dtype"]): dict(line) for line in total["lines"]}
        self._seconds = {name: float(total[name]) for name in SECONDS}
        self._training = dict(total["training"])

    def total(self) -> dict[str, Any]:
        """Return everything (JSON-like, `repro.record.result.results.RankTraffic`); empty if nothing was counted."""
        if not self._counted:
            return {}
        return {"lines": [self._lines[key] for key in sorted(self._lines)], **self._seconds,
                "training": dict(self._training)}


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
        stall = context.choices.stall_seconds
        self.flush_ns = FLUSH_NS if stall is None else min(FLUSH_NS, round(stall * 1e9 / 4))
        """A log that does not grow for `stall_seconds` is that of a hung trial."""
        self.ledger = context.started.ledger
        self.keeper = make_keeper(context)
        self._rates: Sequence[float] = ()
        self._kept: Mapping[int, str] = {}
        self._watched: Collection[int] = ()
        """Of this block: the rates, the steps that are repeated after the trial with the reason, and those after which
        the weights are held."""
        self._first = 0
        """Number of the first step of this block."""
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
        count = block_steps(self.context.choices, self.step)
        log.write(BlockStart(first_step=self.step, steps=count))
        self.traffic.add(session.traffic())
        self.begin_block(count)
        losses = [self.train_step() for _ in range(count)]
        # Before the barrier: the wait for the slowest rank there is not communication of a step.
        self.traffic.add(session.traffic(), training=True)
        session.synchronize()
        log.write(BlockStop(samples_count=self.samples))
        return losses

    def begin_block(self, count: int) -> None:
        """Decide what can be decided before the `count` steps of a block, and start the timer: what runs between two
        kernels of a step runs from cold caches, at several times the cost."""
        first, self._first = self.step, self.step
        self._rates = [
            self.base_rate * self.schedule.factor(step * self.global_batch / self.train_samples, self.max_epochs)
            for step in range(first, first + count)]
        if self.ledger is not None:
            drawn, self._watched = self.ledger.begin_block(first, first + count - 1)
            self._kept = self.keeper.wanted(first, count, drawn) if self.keeper is not None else {}
        self.timer.start()

    def train_step(self) -> Any:
        """Train one step and return its loss: everything in it is timed, and nothing in it is read from the device."""
        step, timer, ledger = self.step, self.timer, self.ledger
        batches = self.input.take(step)
        timer.mark_input()
        rate = self._rates[step - self._first]
        if ledger is None:
            loss = self.session.step(batches, rate)
        else:
            if ledger.is_watching:
                self._watch_weights(ledger)
            ledger.begin(step, batches, rate)
            why = self._kept.get(step)
            loss = self._kept_step(why, batches, rate) if why else self.session.step(batches, rate)
            ledger.end()
        timer.mark_step()
        if ledger is not None:
            if ledger.learning:
                with self.context.clock.watch.phase("logging"):
                    ledger.learn()
                timer.exclude_pause()
            if step in self._watched:
                self._watch_weights(ledger)
        self.input.look_ahead()
        self.step += 1
        if self.hashed and self.step in HASHED_STEPS:
            self._log_weights_hash(self.context.log)
        return loss

    def _watch_weights(self, ledger: TrainingLedger) -> None:
        """Give the ledger the weights that are held after a drawn step and before the next one, off the clock."""
        with self._logging():
            self.traffic.add(self.session.traffic(), training=True)
            with self.session.evaluated():
                ledger.hold(held_or_full(self.session))
            self.session.traffic()  # what was sent for it is none of the trial's
        self.timer.exclude_pause()

    def _kept_step(self, why: str, batches: Sequence[Batch], rate: float) -> Any:
        """Train a step that is repeated after the trial; copies are made off the clock of training, some of them
        between its backward pass and its update."""
        session, keeper, ledger = self.session, self.keeper, self.ledger
        assert keeper is not None and ledger is not None
        own, update, updates = vars(session).get("update"), session.update, 0

        def watched(rate: float) -> None:
            nonlocal updates
            updates += 1
            if updates == 1:
                with self._paused():
                    keeper.end(why)
                    if session.writes_alike:  # else another thread may step
                        ledger.update.begin_update(self._paused, partial(keeper.read_stepped, why))
            update(rate)

        with self._paused():
            keeper.begin(why, self.step, batches)
            if self.step in self._watched:  # all values twice: in one step of a doubling
                ledger.update.begin()
            session.update = watched  # type: ignore[method-assign]
        loss = session.step(batches, rate)
        with self._paused():
            if own is None:
                del session.update
            else:
                session.update = own  # type: ignore[method-assign]
            keeper.end_step(why, loss)
            ledger.update.end(updates)
        return loss

    @contextmanager
    def _paused(self) -> Iterator[None]:
        with self.timer.paused(), self._logging():
            self.traffic.add(self.session.traffic(), training=True)
            yield
            self.session.traffic()

    @contextmanager
    def _logging(self) -> Iterator[None]:
        """Charge the time inside to logging, but not what a GPU has still to do for training: the first copy from it
        waits for all that the host has submitted, which is more the less an engine waits itself.
        """
        devices.wait(self.context.job.device)
        with self.context.clock.watch.phase("logging"):
            yield

    def _log_weights_hash(self, log: EventLog) -> None:
        """Log the hash of the weights; all ranks take part, and the time counts as logging, not as training."""
        self.traffic.add(self.session.traffic(), training=True)
        with self._logging():
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
        if self.ledger is not None:
            self.ledger.compare()
        self.block_seconds.append(seconds)
        self.whole_seconds.append([step + waited for step, waited in zip(seconds, inputs, strict=True)])
        write_steps(log, self.step - len(losses), seconds, inputs, self.losses, self.context.clock.now())
        log.flush_if_due(self.flush_ns)


def read_losses(losses: Sequence[Any]) -> list[float]:
    """Return the losses of a block as numbers; those on a GPU are stacked, so that it is read once."""
    if losses and all(hasattr(loss, "detach") and on_gpu(loss.device) for loss in losses):
        import torch

        return [float(loss) for loss in torch.stack([loss.detach().reshape(()) for loss in losses]).tolist()]
    # An engine may return numbers.
    return [float(loss.item() if hasattr(loss, "item") else loss) for loss in losses]


def write_steps(
    log: EventLog, first: int, seconds: Sequence[float], inputs: Sequence[float], losses: Sequence[float],
    end_ns: int,
) -> None:
    """Write the `StepBlock` lines of one block.

    Every line is complete in itself, so that a reader may stop after any of them: it names its first step and has the
    time at which its last step ended, like the only line of a short block.

    Args:
        first: number of the block's first step, from 0.
        end_ns: end of the block on the log's clock, nanoseconds.
    """
    later = sum(seconds) + sum(inputs)
    for part in _lines(len(seconds)):
        last = part.stop >= len(seconds)
        later -= sum(seconds[part]) + sum(inputs[part])
        log.write(partial(_step_block, first + part.start, seconds[part], inputs[part], losses[part]),
                  at_ns=end_ns if last else end_ns - round(later * 1e9))


def _step_block(
    first: int, seconds: Sequence[float], inputs: Sequence[float], losses: Sequence[float]
) -> StepBlock:
    return StepBlock(first=first, seconds=_round_seconds(seconds), input_seconds=_round_seconds(inputs),
                     loss=[loss if math.isfinite(loss) else math.nan for loss in losses])


def write_rank_steps(
    log: EventLog, slowest: Sequence[float], fastest: Sequence[float], whole: Sequence[float]
) -> None:
    """Write the `RankSteps` lines of one block: seconds of the slowest and of the fastest rank, by step.

    Args:
        whole: seconds of the slowest rank with the step's input.
    """
    for part in _lines(len(slowest)):
        log.write(RankSteps(slowest_seconds=_round_seconds(slowest[part]),
                            fastest_seconds=_round_seconds(fastest[part]), whole_seconds=_round_seconds(whole[part])))


def write_operations(log: EventLog, ranks: Sequence[Sequence[float]]) -> None:
    """Write the `Operations` lines: seconds of the slowest and of the fastest rank, by operation.

    Args:
        ranks: seconds of every operation, one list a rank.
    """
    slowest, fastest = ([pick(times) for times in zip(*ranks, strict=True)] for pick in (max, min))
    for part in _lines(len(slowest)):
        log.write(Operations(slowest_seconds=_round_seconds(slowest[part]),
                             fastest_seconds=_round_seconds(fastest[part])))


def _lines(count: int) -> list[slice]:
    """Return the steps of each line; a block without steps has one line too."""
    return [slice(start, start + STEPS_A_LINE) for start in range(0, max(count, 1), STEPS_A_LINE)]


def _round_seconds(seconds: Sequence[float]) -> list[float]:
    """Round to nanoseconds: more digits would only enlarge the log."""
    return [round(value, 9) for value in seconds]
