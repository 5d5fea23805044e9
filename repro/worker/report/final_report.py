"""The final report, after the clock has stopped: figures that need all ranks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from repro.core.devices import on_gpu
from repro.record.log.facts import RankLedger
from repro.record.log.schema import (
    CompiledLate,
    ControllerCounted,
    ControllerReading,
    ControllerReadings,
    FactsGathered,
    Fed,
    FormulaTraffic,
    Hashes,
    InputWaits,
    LedgerKept,
    MemoryPeaks,
    ModelStated,
    Seeded,
    ServerProtocol,
    StateMemory,
    TrafficCounted,
)
from repro.worker.evaluation import Evaluated
from repro.worker.input.data_audit import DataAudit, add_tallies, draws_sha256
from repro.worker.input.data_order import DataOrder, SampleOrder
from repro.worker.report.expected_traffic import expected_traffic
from repro.worker.report.final_checks import Capture, gather_facts
from repro.worker.report.model_report import describe_model
from repro.worker.setup import TrialContext
from repro.worker.steps import TimedSteps, write_rank_steps
from repro.worker.weights import weights_sha256


def report_final(
    context: TrialContext, steps: TimedSteps, order: DataOrder, capture: Capture, last: Evaluated | None,
    peaks: tuple[int | None, int | None], controller: Sequence[ControllerReading | None],
) -> dict[str, str]:
    """Gather the figures of all ranks and log them; return the effective settings, which end a log. All ranks take
    part.

    Args:
        last: the last evaluation.
        peaks: largest memory of this rank in initialisation and in training, bytes.
        controller: counters at `run_start` and at `run_stop`; empty in a resumed attempt.
    """
    session, log = context.session, context.log
    _log_rank_steps(context, steps)
    if context.parts is not None:
        log.write(InputWaits(value=session.gather(
            waited_and_stepped(steps.block_seconds, steps.whole_seconds, context.choices.stop.warmup))))
    effective = session.effective() | steps.input.effective()
    _log_traffic(context, steps, effective)
    log_controller(context, controller)
    log_memory_of(context, *peaks)
    if states := session.state_memory():
        log.write(StateMemory(value=states))
    if protocol := session.protocol():
        log.write(ServerProtocol(value=protocol))
    weights = session.weights()
    log.write(Hashes(value={"final_weights": weights_sha256(weights)}))
    if context.parts is not None:
        log.write(FactsGathered(value=gather_facts(context, weights, capture, last, steps.input.evaluation_again)))
    if steps.ledger is not None:
        functions, job = context.started.functions, context.job
        if functions is not None and isinstance(order, SampleOrder):  # a stream gives every batch once
            steps.ledger.read_again(functions.train_batch, lambda step: order.micro_batches(
                step, job.rank, job.world, job.accumulation))
        ranks = session.gather(steps.ledger.facts().model_dump())
        log.write(LedgerKept(value=[RankLedger.model_validate(rank) for rank in ranks]))
    if steps.audit is None:
        # An engine without a model consumes no samples.
        log.write(Hashes(value={"data_order": order.sha256()}))
    else:
        log_consumed(context, steps.audit, steps.samples)
    if model := describe_model(context):
        log.write(ModelStated(value=model))
    if context.choices.compile:
        log.write(CompiledLate(value=session.gather(session.compilation())))
    return effective


def waited_and_stepped(
    steps: Sequence[Sequence[float]], whole: Sequence[Sequence[float]], left_out: int
) -> list[float]:
    """Return the seconds that this rank's steps waited for input, and those of the steps themselves.

    Args:
        steps: step seconds, one list a block.
        whole: the same with the input of each step.
        left_out: first steps that do not count: the declared warm-up, in which input workers start.
    """
    stepped, both = (sum([*chain.from_iterable(seconds)][left_out:]) for seconds in (steps, whole))
    return [both - stepped, stepped]


def _log_rank_steps(context: TrialContext, steps: TimedSteps) -> None:
    blocks = context.session.gather([steps.block_seconds, steps.whole_seconds])
    for index in range(len(steps.block_seconds)):
        ranks, whole = (np.asarray([rank[part][index] for rank in blocks]) for part in range(2))
        write_rank_steps(context.log, ranks.max(axis=0).tolist(), ranks.min(axis=0).tolist(),
                         whole.max(axis=0).tolist())


def log_memory_of(context: TrialContext, init_bytes: int | None, peak_bytes: int | None) -> None:
    """Log the largest memory of every rank, in initialisation and in training."""
    ranks = context.session.gather([init_bytes, peak_bytes])
    context.log.write(MemoryPeaks(
        kind="allocated" if on_gpu(context.job.device) else "resident",
        init=[init for init, _ in ranks], training=[training for _, training in ranks],
    ))


def log_controller(context: TrialContext, readings: Sequence[ControllerReading | None]) -> None:
    """Log the counters of every rank; nothing if one of them has none."""
    # Plain data: an engine with servers of its own gathers JSON.
    ranks = context.session.gather([reading.model_dump() if reading else None for reading in readings])
    if all(len(each) == 2 and all(each) for each in ranks):
        context.log.write(ControllerCounted(value=[ControllerReadings.model_validate({"start": start, "stop": stop})
                                                   for start, stop in ranks]))


def _log_traffic(context: TrialContext, steps: TimedSteps, effective: Mapping[str, str]) -> None:
    """Log the traffic of all ranks, and next to it what the algorithm's formula gives for the same collectives."""
    job, traffic = context.job, steps.traffic.total()
    if not log_traffic_of(context, traffic) or job.rank != 0 or not traffic:  # rank 0 writes the log
        return
    sizes = [int(part) for part in effective.get("bucket_bytes", "").split(",") if part.isdecimal()]
    gathers = [line["rows"] * (line["outputs"] + line["inputs"]) for line in context.session.gradient_plan()
               if line["factors"]]
    if expected := expected_traffic(job.comm, job.world, traffic["lines"], sizes, steps.step, gathers):
        context.log.write(FormulaTraffic(value=expected))


def log_traffic_of(context: TrialContext, traffic: Mapping[str, Any]) -> bool:
    """Log the traffic of all ranks; return whether any was counted."""
    traffics = context.session.gather(traffic)
    if any(traffics):
        context.log.write(TrafficCounted(value=[counted or None for counted in traffics]))
    return any(traffics)


def log_consumed(context: TrialContext, audit: DataAudit, samples: int) -> None:
    """Log the hashes that pair trials: the seed's own if the consumed data follow it, else of what was consumed."""
    ranks = context.session.gather(audit.tallies(samples))
    fed, order, drawn, draws = (add_tallies([rank[place] for rank in ranks]) for place in range(4))
    seeded = {"data_order": fed.lanes == order.lanes}
    hashes = {"data_order": audit.order.sha256() if seeded["data_order"] else fed.hex()}
    if audit.parts.draws is not None:
        seeded["augmentation"] = drawn.lanes == draws.lanes
        named = draws_sha256(audit.parts.draws, context.workload.train_samples)
        hashes["augmentation"] = named if seeded["augmentation"] else drawn.hex()
    context.log.write(Hashes(value=hashes))
    context.log.write(Fed(samples=samples, order=fed.hex(), augmentation=drawn.hex(),
                          as_seeded=Seeded.model_validate(seeded)))
