"""A trial under an engine whose workers do not train in lock step.

On every rank one thread trains: it takes work from the servers until there is none. The main thread of rank 0 follows
the servers: at every place of the sample grid it takes a snapshot of the weights, evaluates it, logs, decides. No
worker waits for that, but all share the machine. Samples are counted when a server has applied their gradient.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from repro.papers.server.rules import Update
from repro.papers.server.session import ServerSession
from repro.record.log.facts import FinalFacts
from repro.record.log.schema import (
    BlockStart,
    BlockStop,
    ControllerReading,
    EffectiveSettings,
    EvalAccuracy,
    EvalError,
    EvalStart,
    EvalStop,
    FactsGathered,
    Hashes,
    ModelStated,
    Phases,
    RunStart,
    RunStop,
    ServerProtocol,
    Updates,
)
from repro.seams.training import Fed, Job, TrainingParts
from repro.worker.control_counters import read_controller
from repro.worker.evaluation import OwnModel, share_batches
from repro.worker.input.data_audit import DataAudit, Tally
from repro.worker.input.data_order import DataOrder, make_order
from repro.worker.input.trial_input import DirectInput
from repro.worker.report.final_report import log_consumed, log_controller, log_memory_of, log_traffic_of
from repro.worker.report.model_report import describe_model
from repro.worker.serve import dealt_work, sample_grid
from repro.worker.setup import TrialContext
from repro.worker.steps import TrafficLog, write_rank_steps, write_steps
from repro.worker.stop_rule import Ending, Progress, decide, decide_hopeless, decide_steps
from repro.worker.weights import weights_sha256, wide_share


class DealtAudit(DataAudit):
    """Compares what this worker consumed with what the seed has at the places that it was dealt."""

    def __init__(self, parts: TrainingParts, order: DataOrder, job: Job) -> None:
        super().__init__(parts, order, job)
        self._dealt: list[np.ndarray] = []

    def count_dealt(self, step: int, rank: int, consumed: list[Fed]) -> None:
        """Add the micro-batches of one ticket to the tallies.

        Args:
            step: global batch in the seeded order.
            rank: whose micro-batches of it were dealt.
        """
        self.job = replace(self.job, rank=rank)
        self.calls = step * self.job.accumulation
        self._dealt.extend(self._next_start() + np.arange(len(indices)) for indices, _ in consumed)
        self.calls = step * self.job.accumulation
        self.count(consumed)

    def expected_tallies(self, samples: int) -> tuple[Tally, Tally]:
        """Return the tallies (order, draws) that the seed gives for the places that this worker was dealt."""
        order, draws = Tally(), Tally()
        if not self._dealt:
            return order, draws
        positions = np.sort(np.concatenate(self._dealt))
        epochs = positions // self.train_samples
        for epoch in np.unique(epochs).tolist():
            here = positions[epochs == epoch]
            indices = self.order.draw(epoch)[here - epoch * self.train_samples]
            order.add(here, indices)
            self._add_expected_draws(draws, here, indices)
        return order, draws


@dataclass(frozen=True, slots=True)
class Block:
    """The updates between two places of the sample grid."""

    first_step: int
    stop_step: int
    stop_ns: int
    """When its last update had been applied."""
    updates: Sequence[Update]


class AsyncLoop:
    """One rank's training; a step is the time in which the servers apply one global batch."""

    def __init__(self, context: TrialContext) -> None:
        self.context, self.log = context, context.log
        session, parts = context.session, context.parts
        assert isinstance(session, ServerSession) and parts is not None
        self.session, self.parts = session, parts
        trial, job, batch = context.trial, context.job, context.choices.batch.global_
        self.order = make_order(trial, job)
        self.input = DirectInput(context, self.order, parts)
        self.audit = DealtAudit(parts, self.order, job)
        self.each = batch // session.samples_an_update
        """Updates of one global batch."""
        self.progress = Progress()
        self.evaluations = 0
        self.evaluated_ns = self.delay_ns = 0
        """Spent in evaluations; from a snapshot's last update until its value was known."""
        self.last: dict[str, np.ndarray] | None = None
        """Weights of the last snapshot."""
        self.failure: BaseException | None = None
        self.init_peak_bytes: int | None = None

    def run(self) -> None:
        """Train until the target, the budget or divergence ends the trial, then log the final report."""
        session, context = self.session, self.context
        steps = sample_grid(context.choices)
        own = OwnModel(context.trial, context.job, replace(self.parts)) if context.job.rank == 0 else None
        session.synchronize()
        session.traffic()
        self.init_peak_bytes = session.peak_bytes()
        session.reset_peak()
        start_ns = self.log.write(RunStart())
        context.clock.watch.restart(start_ns)
        controller = [read_controller(self.log.recorded_bytes)]
        self.log.write(Hashes(value={"data": self.parts.open_data()}))
        self.input.start(0)
        session.begin(dealt_work(context.choices, session.samples_an_update, context.clock.now))
        session.synchronize()
        worker = threading.Thread(target=self._work, name="repro-worker", daemon=True)
        worker.start()
        last_step = self._lead(steps, own, start_ns) if own is not None else None
        worker.join()
        controller.append(read_controller(self.log.recorded_bytes))
        if self.failure is not None:
            raise self.failure
        session.finish()
        traffic = TrafficLog()
        traffic.add(session.traffic(), training=True)
        session.adopt(self.last)
        self._report(last_step, traffic, controller)

    def _report(
        self, last_step: int | None, traffic: TrafficLog, controller: Sequence[ControllerReading | None]
    ) -> None:
        """Gather the figures of all ranks that are left and log them; all of them take part.

        Args:
            last_step: the end of the last block; None: of a rank that does not follow the servers.
            controller: counters at `run_start` and after this rank's last update.
        """
        context, session, log = self.context, self.session, self.log
        total, peak_bytes = traffic.total(), session.peak_bytes()
        effective = session.effective() | self.input.effective()
        protocol = session.protocol()  # a collective; rank 0 alone has the figures
        if last_step is not None:
            log.write(ServerProtocol(value=protocol | {
                "evaluations": self.evaluations, "evaluation_seconds": self.evaluated_ns / 1e9,
                "evaluation_delay_seconds": self.delay_ns / 1e9 / max(1, self.evaluations),
                "evaluated_updates": last_step * self.each,
            }))
        log_traffic_of(context, total)
        log_controller(context, controller)
        log_memory_of(context, self.init_peak_bytes, peak_bytes)
        log_consumed(context, self.audit, 0)
        if model := describe_model(context):
            log.write(ModelStated(value=model))
        if self.last is not None:
            functions = context.started.functions
            assert functions is not None
            log.write(Hashes(value={"final_weights": weights_sha256(self.last)}))
            # The harness itself evaluated, in one process: no engine's evaluation has to be repeated.
            log.write(FactsGathered(value=FinalFacts(
                ranks=(None,), wide_share=round(wide_share(self.last, context.job.precision), 6),
                optimizer=OwnModel(context.trial, context.job, functions).describe_optimizer(),
            )))
        log.write(EffectiveSettings(value=effective))
        log.flush()

    # ---- the worker

    def _work(self) -> None:
        session = self.session
        try:
            ticket = session.first()
            while ticket >= 0:
                step, rank = session.rules.place(ticket, self.context.job.rank)
                epoch, shares = self.order.micro_batches(step, rank, self.context.job.world,
                                                         self.context.job.accumulation)
                batches = [self.parts.train_batch(epoch, indices) for indices in shares]
                session.backward(batches)
                ticket = session.exchange()
                fed = self.parts.fed() if self.parts.fed is not None else [(indices, None) for indices in shares]
                self.audit.count_dealt(step, rank, list(fed))
            session.leave()
        except BaseException as error:  # raised again by the main thread
            self.failure = error
            if self.context.job.rank == 0:
                with suppress(Exception):  # the first failure is the one to report
                    session.fail()

    # ---- rank 0 follows the servers

    def _lead(self, steps: Sequence[int], own: OwnModel, start_ns: int) -> int:
        """Follow the servers to the end of the run, and end the work; a failure of the own worker comes first."""
        try:
            found = self._follow(steps, own, start_ns)
        except BaseException as error:
            with suppress(Exception):
                self.session.overview.stop()
            raise (self.failure or error) from None
        self.session.overview.stop()
        return found

    def _follow(self, steps: Sequence[int], own: OwnModel, start_ns: int) -> int:
        """Log, evaluate and decide at every place of the grid; return the step after which the last block ends."""
        choices = self.context.choices
        before, stop_ns, ending, logging_ns = 0, start_ns, None, 0
        for step in steps:
            updates = self.session.overview.updates(before * self.each, step * self.each)
            block = Block(before, step, updates[-1].at_ns, updates)
            since = self.context.clock.now()
            self._log_block(block, stop_ns)
            logging_ns = self.context.clock.now() - since
            finite = all(math.isfinite(update.loss) for update in updates)
            self.last = self.session.snapshot(step * self.each)
            if choices.stop.has_target:
                ending = self._judge(block, own, finite)
            else:
                ending = decide_steps(step, self.context.budget_steps, finite)
            before, stop_ns = step, block.stop_ns
            if ending is not None:
                break
        assert ending is not None, "the last block ends the budget"
        at_ns = self.log.write(RunStop(status="success" if ending.outcome == "success" else "aborted",
                                       outcome=ending.outcome, reason=ending.reason,
                                       samples_count=self.context.count_samples(block.stop_step)))
        # What follows the last update is the evaluation of its weights, but for the logging of the block.
        tail = at_ns - block.stop_ns
        logging_ns = min(logging_ns, tail)
        self.log.write(Phases(train=(block.stop_ns - start_ns) / 1e9, eval=(tail - logging_ns) / 1e9,
                              logging=logging_ns / 1e9))
        self.log.flush()
        return block.stop_step

    def _log_block(self, block: Block, start_ns: int) -> None:
        log, updates = self.log, block.updates
        log.write(BlockStart(first_step=block.first_step, steps=block.stop_step - block.first_step), start_ns)
        log.write(BlockStop(samples_count=self.context.count_samples(block.stop_step)), block.stop_ns)
        whole = [updates[index:index + self.each] for index in range(0, len(updates), self.each)]
        ends = [start_ns, *(part[-1].at_ns for part in whole)]
        seconds = [(later - sooner) / 1e9 for sooner, later in pairwise(ends)]
        losses = [sum(update.loss for update in part) / len(part) for part in whole]
        write_steps(log, block.first_step, seconds, [0.0] * len(seconds), losses, block.stop_ns)
        write_rank_steps(log, seconds, seconds, seconds)
        log.write(Updates(
            first=updates[0].applied, worker=[item.worker for item in updates],
            read=[item.read for item in updates], applied=[item.applied for item in updates],
            staleness=[item.applied - item.read for item in updates], ahead=[item.ahead for item in updates],
            rate=[float(f"{item.rate:.9g}") for item in updates],
        ), at_ns=block.stop_ns)
        log.flush()

    def _judge(self, block: Block, own: OwnModel, finite: bool) -> Ending | None:
        context, stop, log = self.context, self.context.choices.stop, self.log
        samples, before = (context.count_samples(step) for step in (block.stop_step, block.first_step))
        epochs = samples / context.workload.train_samples
        begin = log.write(EvalStart(epoch_num=epochs, samples_count=samples))
        assert self.last is not None
        own.load(self.last, self.session.buffers())
        alone = replace(context.job, rank=0, world=1)
        score, count = own.score(share_batches(own.functions, alone, context.workload.eval_samples), stop.metric)
        value = score / count if finite and count else math.nan
        losses = [update.loss for update in block.updates]
        end = log.write(EvalStop(epoch_num=epochs, samples_count=samples))
        self.evaluations += 1
        self.evaluated_ns += end - begin
        self.delay_ns += end - block.stop_ns
        event = EvalAccuracy if stop.direction == "higher" else EvalError
        log.write(event(
            value=value if math.isfinite(value) else None, samples_count=samples, epoch_num=epochs, eval_stop_ns=end,
            metric=stop.metric, phases={"train": 0.0, "eval": (end - block.stop_ns) / 1e9, "logging": 0.0},
            train_loss=sum(losses) / len(losses) if finite else None,
            evaluated=None if count == context.workload.eval_samples else count,
        ))
        log.flush()
        self.progress, ending = decide(stop, self.progress, value, block.stop_step, context.budget_steps)
        return ending or decide_hopeless(context.bar, stop.metric, value, before, samples)

    def close(self) -> None:
        """Close the input, the log and the session, the session also if the log fails."""
        try:
            self.input.close()
            self.log.close()
        finally:
            self.session.close()
