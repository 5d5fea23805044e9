"""One rank in the parity gate: ten steps, every tensor of them measured and recorded."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repro.core import fence
from repro.core.random_streams import Streams
from repro.seams.training import Batch, Job, Session, TrainingParts, Workload
from repro.suite.model import Trial
from repro.worker.data_order import SampleOrder
from repro.worker.parity import Trace
from repro.worker.setup import RankPlace, make_job, start_session

MAX_EVAL_SAMPLES = 2048
"""Largest number of evaluation samples over all ranks: all of a small data set, enough of a large one."""


def main(folder: str, payload: Mapping[str, Any]) -> None:
    """Run the steps and write trace<rank>.json in `folder`: the entry point of every rank."""
    rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    trial = Trial.model_validate(payload["trial"])
    job = make_job(trial.choices, RankPlace(rank, world, local_rank))
    session, parts = start_session(trial, job, float(payload.get("disturbance", 0.0)))
    assert parts is not None
    try:
        trace = record_trace(trial, session, parts, job, int(payload["steps"]))
        fence.write_bytes(Path(folder, f"trace{rank}.json"), trace.model_dump_json().encode())
    finally:
        session.close()


def record_trace(trial: Trial, session: Session, parts: TrainingParts, job: Job, steps: int) -> Trace:
    """Train `steps` steps at the full rate and measure every tensor in each of them."""
    choices, rank, world = trial.choices, job.rank, job.world
    workload = choices.workload.get(Workload)
    parts.open_data()
    order = SampleOrder(Streams(trial.master_seed, trial.repeat), workload.train_samples, choices.batch.global_)
    fed: list[tuple[str, ...]] = []
    losses: list[float] = []
    gradients: dict[str, list[tuple[float, float]]] = {}
    weights: dict[str, list[tuple[float, float]]] = {}
    for step in range(steps):
        epoch, shares = order.micro_batches(step, rank, world, choices.batch.accumulation)
        # Another epoch and another rate every step reveal an engine or workload that mishandles either.
        batches = [parts.train_batch(epoch + step % 3, indices) for indices in shares]
        fed.append(tuple(bytes_sha256(batch) for batch in batches))
        loss = session.backward(batches)
        losses.append(session.total([float(loss)])[0] / world)
        _append_measures(gradients, session.gradients())
        session.update(choices.rate * (1 - 0.05 * step))
        _append_measures(weights, session.weights())
    own = np.arange(rank, min(workload.eval_samples, MAX_EVAL_SAMPLES), world)
    total, count = session.evaluate([parts.eval_batch(own)], choices.stop.metric)
    scores = session.total([total, float(count)])
    return Trace(
        rank=rank, fed=tuple(fed), loss=tuple(losses), evaluation=scores[0] / scores[1],
        gradients={name: tuple(values) for name, values in gradients.items()},
        weights={name: tuple(values) for name, values in weights.items()},
        buffers={name: measure(name, array) for name, array in session.buffers().items()},
        effective=session.effective(),
    )


def _append_measures(into: dict[str, list[tuple[float, float]]], tensors: Mapping[str, np.ndarray]) -> None:
    for name, array in tensors.items():
        into.setdefault(name, []).append(measure(name, array))


def measure(name: str, array: np.ndarray) -> tuple[float, float]:
    """Return (L2 norm, projection on a random direction that depends only on the name), in double precision."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    direction = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(flat.size)
    return float(np.linalg.norm(flat)), float(flat @ direction)


def bytes_sha256(batch: Batch) -> str:
    """Hash a micro-batch's inputs and targets as they are on the device."""
    digest = hashlib.sha256()
    for part in batch:
        digest.update(np.ascontiguousarray(part.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()[:16]
