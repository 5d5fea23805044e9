"""The optimizer of offloaded state: DeepSpeed's Adam for CPUs where it has the same update rule."""

from __future__ import annotations

from typing import Any

import torch

from repro.engines.plain.optimizer_options import class_of, options_of
from repro.engines.zero import extension

HYPER = ("lr", "betas", "eps", "weight_decay")
KERNEL = "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam"


def for_host(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return DeepSpeed's Adam with the groups of `optimizer`; other optimizers than AdamW unchanged."""
    if type(optimizer) is not torch.optim.AdamW:
        return optimizer
    extension.load()
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    groups = [{"params": group["params"], **{name: group[name] for name in HYPER}} for group in optimizer.param_groups]
    made: torch.optim.Optimizer = DeepSpeedCPUAdam(groups, adamw_mode=True)
    return made


def describe(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return update rule and hyper-parameters in torch's names, and the code that computes them."""
    found = {"optimizer": class_of(optimizer), "optimizer_options": options_of(optimizer)}
    if found["optimizer"] != KERNEL or not optimizer.adam_w_mode:  # type: ignore[attr-defined]
        return found
    groups: list[dict[str, Any]] = [{"params": [torch.zeros(1)], **{name: group[name] for name in HYPER}}
                                    for group in optimizer.param_groups]
    same = torch.optim.AdamW(groups)
    return {"optimizer": class_of(same), "optimizer_options": options_of(same), "optimizer_kernel": KERNEL}
