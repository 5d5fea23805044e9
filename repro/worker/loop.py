"""A trial from `run_start` to `run_stop` on one rank: blocks of timed steps, evaluations, the stop rule."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from repro.core.errors import CheckpointError, CheckpointRefused
from repro.core.events import EventLog
from repro.record.checkpoint import Resumption, Saving
from repro.seams.training import Batch, Job, Session, TrainingParts, Workload
from repro.suite.model import Trial
from repro.worker.clock import Stopwatch, step_timer
from repro.worker.data_audit import Account, draws_sha256, total
from repro.worker.data_order import SampleOrder
from repro.worker.expected_traffic import expected_traffic
from repro.worker.step_log import write_rank_steps, write_steps
from repro.worker.traffic_log import TrafficLog

EVAL_BATCH = 512
"""Samples per forward pass of an evaluation and rank."""
HASHED_STEPS = (1, 10)
"""Steps after which a bitwise trial writes down the hash of its weights, as after the last (method.md section 5)."""


class Loop:
    """A trial from `run_start` to `run_stop` on one rank."""

    def __init__(
        self, trial: Trial, job: Job, session: Session, parts: TrainingParts | None, order: SampleOrder, log: EventLog,
        virtual: Callable[[], int] | None, saving: Saving | None = None, resumed: Resumption | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.trial, self.choices, self.job = trial, trial.choices, job
        self.session, self.parts, self.order, self.log = session, parts, order, log
        self.now: Callable[[], int] = virtual or now
        self.saving, self.resumed = saving, resumed
        self.watch = Stopwatch(self.now)
        self.timer = step_timer(job.device, virtual)
        workload = trial.choices.workload.get(Workload)
        self.train_samples, self.eval_samples = workload.train_samples, workload.eval_samples
        self.step, self.hits, self.established, self.evaluations = 0, 0, False, 0
        self.peak_bytes: int | None = None
        self.traffic = TrafficLog()
        self.account = Account(
            parts, order, job.rank, job.world, job.accumulation, trial.choices.batch.global_, self.train_samples
        ) if parts is not None else None
        self.hashed = trial.choices.determinism == "bitwise"
        self.losses: list[float] = []
        self.own_steps: list[list[float]] = []

    def run(self) -> None:
        """Train until the target, the budget or divergence ends it, then report what takes all ranks to know."""
        if self.resumed is not None:
            self.go_on(self.resumed)
        else:
            self.session.synchronize()
            self.session.traffic()  # what came before is not the run's
            self.watch.restart(self.log.start("run_start"))
            self.open_data()
        verdict = ""
        while not verdict:
            with self.watch.phase("train"):
                steps, losses = self.block()
            with self.watch.phase("logging"):
                self.log_block(steps, losses)
            with self.watch.phase("eval"):
                value = self._evaluate()
            verdict = self._verdict(value)
            if not verdict and self.saving is not None and self.saving.due(self.evaluations):
                self.checkpoint(self.saving)
        phases = self.watch.seconds()
        status = "success" if verdict == "success" else "aborted"
        self.log.stop("run_stop", status=status, reason=verdict if status == "aborted" else "",
                      samples_count=self.samples)
        self.log.emit("x_phases", phases)
        self.traffic.add(self.session.traffic())
        self._report(self.traffic.total())

    def checkpoint(self, saving: Saving) -> None:
        """Write down all that a later attempt needs to go on from here; between blocks, on the clock."""
        self.traffic.add(self.session.traffic())
        with self.watch.phase("checkpoint"):
            began = self.now()
            said = self._save(saving)
        self.traffic.add(self.session.traffic())
        self.log.emit("x_checkpoint", {"step": self.step, "seconds": (self.now() - began) / 1e9, **said})

    def _save(self, saving: Saving) -> dict[str, Any]:
        state, wall_ms = self.state(), time.time() * 1e3
        why = saving.fresh(self.step, self.session.state_bytes())
        if self.session.total([float(bool(why))])[0]:
            return {"skipped": why}
        log = self.log.text()

        def write() -> None:
            own = self.session.save(saving.folder.aside(self.step))
            saving.write_own(self.step, {"loop": state, "session": own}, log)

        def keep() -> None:
            saving.keep(self.step, self.samples, state["watch"]["at_ns"], wall_ms)

        # All ranks hear how each part went: nobody goes on to a timed step while rank 0 still writes.
        if why := self._failed(write) or self._failed(keep):
            saving.drop()
            return {"skipped": why}
        return {"bytes": saving.size}

    def _failed(self, part: Callable[[], None]) -> str:
        """Do this rank's part of a checkpoint; why any rank could not do its own, "" where all could."""
        why = ""
        try:
            part()
        except CheckpointError as error:
            why = f"{error} ({self.saving.room()})" if self.saving is not None else str(error)
        if not self.session.total([float(bool(why))])[0]:
            return ""
        return next(str(one) for one in self.session.gather(why) if one)

    def state(self) -> dict[str, Any]:
        """Where this rank stands (JSON-like); rates, order and augmentation follow from the step and the seed."""
        return {
            "step": self.step, "hits": self.hits, "established": self.established, "evaluations": self.evaluations,
            "own_steps": self.own_steps, "traffic": self.traffic.total(), "peak_bytes": self._peak(),
            "account": self.account.state() if self.account else None, "watch": self.watch.state(),
        }

    def _peak(self) -> int | None:
        """Largest memory of this rank, in this attempt and in those that it goes on from."""
        peaks = [peak for peak in (self.peak_bytes, self.session.peak_bytes()) if peak is not None]
        return max(peaks, default=None)

    def go_on(self, resumed: Resumption) -> None:
        """Become what the checkpoint says; the clock has run on meanwhile."""
        own = resumed.own(self.job.rank if self.parts is not None else 0)  # rank 0 alone writes invented figures
        self.open_data()
        try:
            self.session.load(resumed.path, own["session"])
            self._restore(own["loop"])
            lost = self.watch.resume(own["loop"]["watch"])
        except CheckpointRefused:
            raise
        except CheckpointError as error:
            raise CheckpointRefused(str(error)) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            name = type(error).__name__
            raise CheckpointRefused(f"checkpoint {resumed.path.name}: holds something else than this trial wrote "
                                    f"({name}: {str(error)[:100]})") from error
        self.session.synchronize()
        self.session.traffic()
        self.log.emit("x_resumed", {"attempt": resumed.checkpoint.attempt, "step": self.step, "samples": self.samples,
                                    "lost_seconds": lost, "clock": resumed.clock})
        self.log.flush()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.step, self.hits, self.established = state["step"], state["hits"], state["established"]
        self.evaluations, self.own_steps = state["evaluations"], state["own_steps"]
        self.peak_bytes = state["peak_bytes"]
        self.traffic.restore(state["traffic"])
        if self.account is not None:
            self.account.restore(state["account"])

    def open_data(self) -> None:
        """Read the training data; the clock is running."""
        if self.parts is not None:
            self.log.emit("x_hashes", {"data": self.parts.open_data()})

    @property
    def samples(self) -> int:
        return self.step * self.choices.batch.global_

    @property
    def budget(self) -> int:
        """Steps that the declared epochs allow, rounded up."""
        return math.ceil(self.choices.stop.max_epochs * self.train_samples / self.choices.batch.global_)

    def block(self) -> tuple[int, list[Any]]:
        """Steps up to the next evaluation: CEIL(E / global batch), fewer where the budget ends."""
        grid = math.ceil(self.choices.evaluate_every / self.choices.batch.global_)
        count = min(grid, self.budget - self.step)
        self.log.start("block_start", first_step=self.step, steps=count)
        losses = []
        self.traffic.add(self.session.traffic())
        self.timer.start()
        for _ in range(count):
            batches, rate = self._feed()
            self.timer.fed()
            losses.append(self.session.step(batches, rate))
            self.timer.stepped()
            self.step += 1
            if self.hashed and self.step in HASHED_STEPS:
                self._hash_weights()
        # Before the barrier: waiting there for the slowest rank is no communication of a step.
        self.traffic.add(self.session.traffic(), training=True)
        self.session.synchronize()
        self.log.stop("block_stop", samples_count=self.samples)
        return count, losses

    def _feed(self) -> tuple[list[Batch], float]:
        choices, job = self.choices, self.job
        rate = choices.rate * choices.schedule.factor(self.samples / self.train_samples, choices.stop.max_epochs)
        if self.parts is None:
            return [], rate
        epoch, shares = self.order.shares(self.step, job.rank, job.world, job.accumulation)
        if self.account is not None:
            self.account.asks(shares)
        return [self.parts.train_batch(epoch, indices) for indices in shares], rate

    def _hash_weights(self) -> None:
        """Write the weights' hash down; all ranks take part, and what it takes is logging, not training."""
        self.traffic.add(self.session.traffic(), training=True)
        with self.watch.phase("logging"):
            self.log.emit("x_hashes", {f"weights_step_{self.step}": weights_sha256(self.session.weights())})
        self.traffic.add(self.session.traffic())
        self.timer.resumed()

    def log_block(self, count: int, losses: list[Any]) -> None:
        """Read the timer and the losses of a block, and write them down."""
        seconds, inputs = self.timer.read()
        if self.account is not None:
            self.account.settle()
        self.losses = [float(loss) for loss in losses]
        self.own_steps.append(seconds)
        finite = [loss if math.isfinite(loss) else None for loss in self.losses]
        write_steps(self.log, self.step - count, seconds, inputs, finite, self.now())
        self.log.flush()

    def _evaluate(self) -> float:
        """The metric over all evaluation samples, the same on every rank; NaN when any rank's loss is not finite."""
        epoch = self.samples / self.train_samples
        self.log.start("eval_start", epoch_num=epoch, samples_count=self.samples)
        total, count = self.session.evaluate(self._eval_batches(), self.choices.stop.metric)
        bad = float(not all(math.isfinite(loss) for loss in self.losses))
        loss = sum(self.losses) / len(self.losses)
        everyone = self.session.total([total, float(count), bad, loss if not bad else 0.0])
        if self.parts is not None:
            assert everyone[1] == self.eval_samples, f"{everyone[1]} of {self.eval_samples} evaluation samples"
        value = float("nan") if everyone[2] else everyone[0] / everyone[1]
        self.evaluations += 1
        stop_ns = self.log.stop("eval_stop", epoch_num=epoch, samples_count=self.samples)
        self.log.emit(
            "eval_accuracy" if self.choices.stop.direction == "higher" else "eval_error",
            value if math.isfinite(value) else None, samples_count=self.samples, epoch_num=epoch,
            phases=self.watch.seconds(), eval_stop_ns=stop_ns, metric=self.choices.stop.metric,
            train_loss=None if everyone[2] else everyone[3] / self.job.world,
        )
        return value

    def _eval_batches(self) -> Iterable[Batch]:
        if self.parts is None:
            return
        mine = np.arange(self.job.rank, self.eval_samples, self.job.world)
        for start in range(0, len(mine), EVAL_BATCH):
            yield self.parts.eval_batch(mine[start:start + EVAL_BATCH])

    def _verdict(self, value: float) -> str:
        """"" to go on, "success", or why the trial ends without it; the same on every rank."""
        stop = self.choices.stop
        if not math.isfinite(value):
            return f"diverged: loss is not finite at step {self.step}"
        hit = value >= stop.target if stop.direction == "higher" else value <= stop.target
        self.hits = self.hits + 1 if hit else 0
        self.established = self.established or self.hits >= stop.confirm_evals
        spent = self.step >= self.budget
        if self.established and (stop.design == "stop_at_target" or spent):
            return "success"
        return f"missed: {stop.metric} {value:.4f} after {stop.max_epochs:g} epochs" if spent else ""

    def _report(self, traffic: dict[str, Any]) -> None:
        """After the clock has stopped: what only all ranks together know."""
        session = self.session
        blocks = session.gather(self.own_steps)
        for index in range(len(self.own_steps)):
            ranks = np.asarray([rank[index] for rank in blocks])
            write_rank_steps(self.log, ranks.max(axis=0).tolist(), ranks.min(axis=0).tolist())
        effective = session.effective()
        traffics = session.gather(traffic)
        if any(traffics):
            self.log.emit("x_traffic", traffics)
            if expected := self._expected(traffics[self.job.rank], effective):
                self.log.emit("x_formula", expected)
        self.log.emit("x_peak_bytes", session.gather(self._peak()))
        weights = session.weights()
        self.log.emit("x_hashes", {"final_weights": weights_sha256(weights)})
        self._report_fed()
        self.log.emit("x_effective", effective)
        self.log.flush()

    def _expected(self, traffic: dict[str, Any], effective: Mapping[str, str]) -> dict[str, Any] | None:
        """What the algorithm's formula gives for the same collectives; reckoned where it is written."""
        if self.job.rank != 0 or not traffic:
            return None
        sizes = [part for part in effective.get("bucket_bytes", "").split(",") if part.isdecimal()]
        return expected_traffic(self.job.comm, self.job.world, traffic["lines"], [int(size) for size in sizes],
                                self.step)

    def _report_fed(self) -> None:
        """The hashes that pair trials: the seed's own where all that was fed is what the seed says, else another."""
        if self.account is None:
            self.log.emit("x_hashes", {"data_order": self.order.sha256()})  # an engine that invents is fed nothing
            return
        ranks = self.session.gather(self.account.sums(self.samples))
        fed, order, drawn, draws = (total([rank[place] for rank in ranks]) for place in range(4))
        seeded = {"data_order": fed.lanes == order.lanes}
        hashes = {"data_order": self.order.sha256() if seeded["data_order"] else fed.hex()}
        if self.parts is not None and self.parts.draws is not None:
            seeded["augmentation"] = drawn.lanes == draws.lanes
            named = draws_sha256(self.parts.draws, self.train_samples)
            hashes["augmentation"] = named if seeded["augmentation"] else drawn.hex()
        self.log.emit("x_hashes", hashes)
        self.log.emit("x_fed", {"samples": self.samples, "order": fed.hex(), "augmentation": drawn.hex(),
                                "as_seeded": seeded})

    def close(self) -> None:
        try:
            self.log.close()
        finally:
            self.session.close()


def weights_sha256(weights: Mapping[str, np.ndarray]) -> str:
    """Hash of names, shapes and little-endian float32 bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
