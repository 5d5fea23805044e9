"""One more backward pass after the trial, repeated by the harness: is the gradient still that of the loss?

The gate compares gradients up to step 59. What freezes, rounds or loses them later and stays so shows here; no clock
runs. Gradients are compared by count-sketches (Charikar, Chen and Farach-Colton, 2002), which are linear: the mean over
ranks of their sketches is the sketch of the mean, so nothing of the model's size is sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from repro.core.random_streams import Streams
from repro.record.log.facts import GradientAgain, TensorGradient
from repro.seams.training import Batch
from repro.seams.workload import call_model
from repro.worker.evaluation import OwnModel
from repro.worker.setup import TrialContext

BUCKETS = 64
"""Numbers of a sketch: the norm of a difference is known to about 1 / sqrt(2 x 64), 9 %."""
SHOWN = 5
"""Tensors that are recorded, those that differ most."""
FLOOR = 1e-4
"""Share of the norm of the whole gradient that is added to that of a tensor: one whose true gradient is 0, such as a
bias before a norm, has only rounding."""
SCALE = 2.0**12
"""Factor of the loss of formats that scale it: a small one, which overflows nowhere."""


def gradient_again(context: TrialContext, step: int, batches: Sequence[Batch]) -> GradientAgain:
    """Return how the engine's gradient of a step's batches differs from the harness's own; all ranks take part.

    Args:
        step: the step, from 0, that was dealt `batches`.
    """
    trial, job, session, functions = context.trial, context.job, context.session, context.started.functions
    assert functions is not None
    streams = Streams(trial.master_seed, trial.repeat)
    weights, buffers = session.weights(), session.buffers()
    _seed(streams, job.rank)
    session.backward(batches)
    engine = _sketches(session.gradients(), streams)
    found, problem = np.zeros_like(engine), ""
    try:
        found = _sketches(_own_gradients(OwnModel(trial, job, functions), weights, buffers, batches,
                                         lambda: _seed(streams, job.rank)), streams)
    except (RuntimeError, MemoryError, KeyError) as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
    # Every rank adds as often as the others, also if one of them has failed.
    own = np.asarray(session.total(found.ravel().tolist())).reshape(engine.shape) / job.world
    if problems := [text for text in session.gather(problem) if text]:
        return GradientAgain(step=step, problem=problems[0])
    if not (np.isfinite(engine).all() and np.isfinite(own).all()):
        return GradientAgain(step=step, problem="a gradient is not finite")
    return GradientAgain(step=step, tensors=len(weights), worst=tuple(_differences(sorted(weights), engine, own)))


def _seed(streams: Streams, rank: int) -> None:
    """Let the engine and the harness draw the same masks, from whichever generator."""
    import torch

    seed = streams.seed("last-gradient", rank)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _own_gradients(
    own: OwnModel, weights: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray], batches: Sequence[Batch],
    seed: Callable[[], None],
) -> dict[str, np.ndarray]:
    """Return this rank's gradient of the mean loss over its micro-batches, by name, float32."""
    own.load(weights, buffers)
    model, scale = own.model, SCALE if own.job.precision.loss_scaling else 1.0
    model.train()
    seed()
    for inputs, targets in batches:
        with own.numerics.autocast():
            outputs = call_model(model, own.numerics.inputs(inputs))
        loss = own.functions.loss(own.numerics.outputs(outputs), targets) * (scale / len(batches))
        loss.backward()  # type: ignore[no-untyped-call]
    return {name: np.zeros(tuple(parameter.shape), np.float32) if parameter.grad is None
            else parameter.grad.detach().float().cpu().numpy() / np.float32(scale)
            for name, parameter in model.named_parameters() if name in weights}


def _sketches(gradients: Mapping[str, np.ndarray], streams: Streams) -> np.ndarray:
    """Return the sketch of every tensor [tensors, BUCKETS], by name: an element's bucket and sign are drawn."""
    return np.stack([_sketch(gradients[name].ravel(), streams.generator("gradient-sketch", place))
                     for place, name in enumerate(sorted(gradients))])


def _sketch(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    drawn = generator.integers(0, 2 * BUCKETS, len(values), dtype=np.uint8)
    signed = np.where(drawn & 1, values, -values).astype(np.float64)
    return np.bincount(drawn >> 1, weights=signed, minlength=BUCKETS)


def _differences(names: Sequence[str], engine: np.ndarray, own: np.ndarray) -> list[TensorGradient]:
    """Return the tensors that differ most."""
    norms = np.linalg.norm(own, axis=1)
    apart = np.linalg.norm(engine - own, axis=1) / (norms + FLOOR * float(np.linalg.norm(norms)) + 1e-300)
    ratios = np.sum(engine * own, axis=1) / np.maximum(norms**2, 1e-300)
    return [TensorGradient(name=names[place], apart=float(apart[place]), ratio=float(ratios[place]))
            for place in np.argsort(-apart, kind="stable")[:SHOWN]]
