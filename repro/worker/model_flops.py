"""Arithmetic of a model: the floating-point operations of its forward pass, counted on the meta device.

Nothing is computed and nothing allocated there. Attention is taken apart into matrix products on the meta device, so it
is counted; on the processor torch's counter finds nothing in its fused kernel.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from repro.core.errors import one_line
from repro.seams.training import TrainingParts
from repro.seams.workload import call_model, map_tensors

if TYPE_CHECKING:
    import torch

SAMPLES = 2
"""Samples of the counted batch: batch norm in training needs more than one."""


def meta_twin(model: torch.nn.Module) -> torch.nn.Module | str:
    """Return a copy of the model on the meta device, before an engine changes it; or why there is none."""
    import torch

    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {
        id(item): torch.nn.Parameter(torch.empty_like(item, device="meta"), item.requires_grad)
        if isinstance(item, torch.nn.Parameter) else torch.empty_like(item, device="meta") for item in tensors}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # a model may hold anything; a figure for readers must not end a trial
        return f"the model cannot be copied: {one_line(str(error))}"


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
