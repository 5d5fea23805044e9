"""Loss, metric and parts that all language models share."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.nn import functional

from repro.core.random_streams import Streams
from repro.seams.training import Batch, TrainingParts
from repro.workloads.classification import initialised
from repro.workloads.reading import InProcess
from repro.workloads.tokens.model import Gpt, Shape
from repro.workloads.tokens.windows import WindowReader


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of a token in nats; outputs [n, t, vocabulary], targets [n, t]."""
    return functional.cross_entropy(outputs.float().flatten(0, 1), targets.flatten())


def summed_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over samples of their mean loss of a token: all samples have the same number of tokens."""
    return loss(outputs, targets) * len(targets)


def training_parts(reader: WindowReader, shape: Shape, tokens: int, streams: Streams, device: str) -> TrainingParts:
    """Return the parts of a GPT of this shape.

    Args:
        tokens: different tokens that occur, at most `shape.vocabulary`.
    """
    in_process = InProcess(reader, device)
    return TrainingParts(
        model=initialised(partial(Gpt, shape), streams),
        loss=loss,
        scores={"val_loss": summed_loss},
        train_batch=in_process.train_batch,
        eval_batch=in_process.eval_batch,
        synthetic_batch=partial(synthetic, shape.context, tokens, device),
        open_data=reader.open,
        fed=in_process.fed,
        reader=reader,
    )


def synthetic(length: int, tokens: int, device: str, samples: int) -> Batch:
    """Return random tokens, identical in every call."""
    inputs, targets = np.random.default_rng(0).integers(tokens, size=(2, samples, length))
    # Two tensors, not two views of one: torch.compile distinguishes them, and batches that are read are none.
    return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
