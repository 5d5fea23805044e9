"""A trial from `run_start` to `run_stop` on one rank: steps, evaluation, stop rule, checkpoint, in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from repro.record.folder.checkpoint import Resumption
from repro.record.log.schema import (
    CheckpointWritten,
    ControllerReading,
    EffectiveSettings,
    Hashes,
    Phases,
    ResumedFrom,
    RunStart,
    RunStop,
    StepsRepeated,
)
from repro.record.result.result_warnings import Resumed
from repro.worker.checkpoints import CheckpointWriter, refuse_foreign_state, save_checkpoint
from repro.worker.clock import Stamp, kernel_ns
from repro.worker.control_counters import read_controller
from repro.worker.evaluation import Evaluator
from repro.worker.input.data_audit import DataAudit
from repro.worker.input.data_order import make_order
from repro.worker.input.pipeline import make_input
from repro.worker.report.final_checks import Capture
from repro.worker.report.final_report import report_final
from repro.worker.report.steps_after import steps_after
from repro.worker.setup import TrialContext
from repro.worker.steps import TimedSteps, TrafficLog
from repro.worker.stop_rule import Ending, Progress, decide, decide_hopeless, decide_steps


class Loop:
    """Coordinates the parts of one rank's training and decides nothing itself."""

    def __init__(
        self, context: TrialContext, writer: CheckpointWriter | None, resumed: Resumption | None = None
    ) -> None:
        self.context, self.writer, self.resumed = context, writer, resumed
        self.session, self.log, self.watch = context.session, context.log, context.clock.watch
        trial, job = context.trial, context.job
        self.order = make_order(trial, job)
        self.input = make_input(context, self.order)
        self.audit = DataAudit(context.parts, self.order, job) if context.parts is not None else None
        self.traffic = TrafficLog()
        self.steps = TimedSteps(context, self.input, self.audit, self.traffic)
        self.evaluator = Evaluator(context, self.input.evaluation)
        self.capture = Capture(context)
        self.progress = Progress()
        self.began = Stamp(None, 0, None)
        """When the clock started, in this attempt."""
        self.known_peak_bytes: int | None = None
        """Largest memory before the last reset, in this attempt and in those that it resumes."""
        self.init_peak_bytes: int | None = None
        """Largest memory before the run started."""
        self.controller: list[ControllerReading | None] = []
        """This rank's counters of the controller at `run_start` and at `run_stop`; empty in a resumed attempt."""

    def run(self) -> None:
        """Train until the target, the budget or divergence ends the trial, then log the final report."""
        with self.input.explained():
            self._train()
            peak_bytes = self.peak_bytes()
            with self.session.evaluated():  # the final weights are those of the last evaluation
                effective = report_final(self.context, self.steps, self.order, self.capture, self.evaluator.last,
                                         (self.init_peak_bytes, peak_bytes), self.controller)
            if (again := steps_after(self.context, self.steps)) is not None:
                self.log.write(StepsRepeated(value=again))
            self.log.write(EffectiveSettings(value=effective))
            self.log.flush()

    def _train(self) -> None:
        if self.resumed is not None:
            self.resume(self.resumed)
        else:
            self.start()
        ending = None
        while ending is None:
            ending = self.run_block()
            if ending is None and self.writer is not None and self.evaluator.evaluations % self.writer.every == 0:
                self.save(self.writer)
        self.stop(ending)
        if self.steps.ledger is not None:
            self.steps.ledger.stop()
        self.traffic.add(self.session.traffic())

    def start(self) -> None:
        """Start the clock and read the data."""
        self.log.flush()  # so that none is due while the clock of a short trial runs
        self.session.synchronize()
        self.session.traffic()  # drops what was counted before the run
        self.init_peak_bytes = self.session.peak_bytes()
        self.session.reset_peak()
        self.controller = [read_controller(self.log.recorded_bytes)]
        self.began = Stamp.of(lambda: self.log.write(RunStart()))
        self.watch.restart(self.began.at)
        self.open_data()
        self.input.start(self.steps.step)
        if self.steps.ledger is not None:
            self.steps.ledger.start()

    def open_data(self) -> None:
        """Read the training data; the clock is running."""
        if self.steps.ledger is not None:
            self.steps.ledger.open_data()
        if self.context.parts is not None:
            self.log.write(Hashes(value={"data": self.context.parts.open_data()}))

    def run_block(self) -> Ending | None:
        """Train one block of steps, evaluate if there is a target, decide."""
        before = self.steps.samples
        with self.watch.phase("train"):
            losses = self.steps.train_block()
        with self.watch.phase("logging"):
            self.steps.log_block(losses)
        stop = self.context.choices.stop
        if not stop.has_target:
            with self.watch.phase("logging"):
                infinite = self.session.total([float(not all(map(math.isfinite, self.steps.losses)))])[0]
            return decide_steps(self.steps.step, self.context.budget_steps, finite=not infinite)
        value = self.evaluate()
        first = not self.progress.hits
        self.progress, ending = decide(stop, self.progress, value, self.steps.step, self.context.budget_steps)
        if first and self.progress.hits and ending is None:  # a last evaluation is repeated anyway
            with self.uncounted():
                self.capture.keep_crossing(self.evaluator.last)
        return ending or decide_hopeless(self.context.bar, stop.metric, value, before, self.steps.samples)

    def evaluate(self) -> float:
        """Evaluate; at a drawn evaluation keep the weights, which counts as logging."""
        ledger, drawn = self.steps.ledger, self.evaluator.evaluations + 1 in self.capture.drawn
        if drawn:
            with self.uncounted():
                self.capture.before()
                if ledger is not None:
                    ledger.hold_state()
        with self.watch.phase("eval"):
            value = self.evaluator.evaluate(self.steps.samples, self.steps.losses)
        if drawn and self.evaluator.last is not None:
            with self.uncounted():
                self.capture.after(self.evaluator.last)
                if self.steps.keeper is not None:
                    self.steps.keeper.follows_evaluation = True
                if ledger is not None:
                    ledger.hold_state()
        return value

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Charge the time inside to logging; what is sent or held inside is no traffic or memory of the trial."""
        self.traffic.add(self.session.traffic())
        self.known_peak_bytes = self.peak_bytes()
        with self.watch.phase("logging"):
            yield
        self.session.reset_peak()
        self.session.traffic()

    def stop(self, ending: Ending) -> None:
        """Stop the clock and log how the trial ended."""
        before, (phases, at_ns) = kernel_ns(), self.watch.stop()
        stopped = Stamp(before, at_ns, kernel_ns())
        self.log.write(RunStop(status="success" if ending.outcome == "success" else "aborted", outcome=ending.outcome,
                               reason=ending.reason, samples_count=self.steps.samples), at_ns)
        logged = Stamp.of(lambda: self.log.write(Phases.model_validate(phases)))
        if (ledger := self.steps.ledger) is not None:
            for stamp in (stopped, logged):  # the clock of the phases, and that which stamps evaluations
                ledger.compare_clocks(*self.began.counted(stamp))
        if self.controller:
            self.controller.append(read_controller(self.log.recorded_bytes))
        self.log.flush()  # what follows needs memory, and may be ended

    def save(self, writer: CheckpointWriter) -> None:
        """Write a checkpoint and log its size and duration."""
        self.traffic.add(self.session.traffic())
        with self.watch.phase("checkpoint"):
            start_ns = self.context.clock.now()
            written = save_checkpoint(self.context, writer, self.steps.step, self.state())
        self.traffic.add(self.session.traffic())
        seconds = (self.context.clock.now() - start_ns) / 1e9
        self.log.write(CheckpointWritten(step=self.steps.step, seconds=seconds, **written))

    def state(self) -> dict[str, Any]:
        """This rank's state (JSON-like); rates, order and augmentation follow from the step and the seed."""
        return {
            "step": self.steps.step, "hits": self.progress.hits, "established": self.progress.established,
            "evaluations": self.evaluator.evaluations, "own_steps": self.steps.block_seconds,
            "whole_steps": self.steps.whole_seconds, "traffic": self.traffic.total(), "peak_bytes": self.peak_bytes(),
            "init_peak_bytes": self.init_peak_bytes,
            "account": self.audit.state() if self.audit else None, "watch": self.watch.state(),
            "ledger": self.steps.ledger.state() if self.steps.ledger else None,
        }

    def peak_bytes(self) -> int | None:
        """Largest memory of this rank, in this attempt and in those that it resumes."""
        peaks = [peak for peak in (self.known_peak_bytes, self.session.peak_bytes()) if peak is not None]
        return max(peaks, default=None)

    def resume(self, resumed: Resumption) -> None:
        """Load a checkpoint; the clock has been running since it was written.

        Raises:
            CheckpointRefused: the checkpoint is damaged or of something else.
        """
        own = resumed.own(self.context.job.rank if self.context.parts is not None else 0)  # without a model one writes
        self.open_data()
        with refuse_foreign_state(resumed.path.name):
            self.session.load(resumed.path, own["session"])
            self.restore(own["loop"])
            lost_seconds = self.watch.resume(own["loop"]["watch"])
        self.input.start(self.steps.step)
        self.session.synchronize()
        self.session.traffic()
        self.session.reset_peak()  # what the second start and the checkpoint needed is no memory of training
        self.began = Stamp.of(lambda: self.log.write(ResumedFrom(value=Resumed(
            attempt=resumed.checkpoint.attempt, step=self.steps.step, samples=self.steps.samples,
            lost_seconds=lost_seconds, clock=resumed.clock,
        ))))
        self.log.flush()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned in an earlier attempt, except for the stopwatch."""
        self.steps.step, self.steps.block_seconds = state["step"], state["own_steps"]
        self.steps.whole_seconds = state["whole_steps"]
        self.progress = Progress(state["hits"], state["established"])
        self.evaluator.evaluations = state["evaluations"]
        self.known_peak_bytes, self.init_peak_bytes = state["peak_bytes"], state["init_peak_bytes"]
        self.traffic.restore(state["traffic"])
        if self.audit is not None:
            self.audit.restore(state["account"])
        if self.steps.ledger is not None:
            self.steps.ledger.restore(state["ledger"])
            self.steps.ledger.start()

    def close(self) -> None:
        """Close the input, the log and the session, the session also if the log fails."""
        try:
            self.input.close()
            self.log.close()
        finally:
            if self.steps.ledger is not None:
                self.steps.ledger.close()
            self.session.close()
