"""Facts about a trial's model for the log: size, arithmetic, and the stated peak of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.core import devices
from repro.core.errors import one_line
from repro.record.environment.gpus import stated_peak
from repro.record.result.parts import Model
from repro.seams.training import TrainingParts
from repro.seams.workload import call_model, map_tensors
from repro.worker.setup import TrialContext

if TYPE_CHECKING:
    import torch


SAMPLES = 2
"""Samples of the counted batch: batch norm in training needs more than one."""


def forward_flops(twin: torch.nn.Module, parts: TrainingParts) -> float | str:
    """Return the operations of the forward pass of one sample, two for each multiplication with its addition; or why
    they cannot be counted.

    Matrix products and convolutions are counted, attention with all positions, masked or not; not what is computed
    element by element.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    try:
        inputs = map_tensors(parts.synthetic_batch(SAMPLES)[0], lambda tensor: tensor.to("meta"))
        twin.train()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            call_model(twin, inputs)
    except Exception as error:  # as above
        return f"the forward pass cannot be counted: {one_line(str(error))}"
    found = counter.get_total_flops() / SAMPLES
    return float(found) if found else "the forward pass has no matrix product or convolution that can be counted"


UNLIKE = "training samples differ in shape in the course of a trial, so their operations are not counted"


def describe_model(context: TrialContext) -> Model | None:
    """Return the model's size and arithmetic on rank 0, None on the others.

    All ranks take part. Counting is arithmetic on shapes, done after the clock has stopped.
    """
    names = context.session.gather(devices.name_of(context.job.device))
    parts, twin = context.parts, context.started.twin
    if parts is None or twin is None:
        return None
    flops = twin if isinstance(twin, str) else UNLIKE if parts.unlike_samples else forward_flops(twin, parts)
    precision = context.job.precision
    number_format = "tf32" if precision.tf32 else precision.autocast or precision.weights
    peak, why = None, ""
    if not devices.on_gpu(context.job.device):
        why = "no peak is stated for a processor"
    elif isinstance(flops, str):
        why = flops
    elif len(set(names)) > 1:
        why = f"ranks ran on different devices: {', '.join(sorted(set(names)))}"
    elif (peak := stated_peak(names[0], number_format)) is None:
        why = f"no stated peak of {names[0]} for {number_format} is known"
    return Model(
        parameters=0 if isinstance(twin, str) else sum(item.numel() for item in twin.parameters()),
        forward_flops=None if isinstance(flops, str) else flops,
        tokens_per_sample=context.workload.tokens_per_sample, device=names[0],
        peak_flops=peak.flops if peak else None, peak_source=f"{number_format}, {peak.source}" if peak else "", why=why,
    )
