"""A torch optimizer in words: its class and the hyper-parameters of its groups, read back from the object."""

from __future__ import annotations

import json

import torch

NOT_OPTIONS = ("params", "lr", "initial_lr", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Keys of a group that do not change the update rule; the rate is set before every step."""
PROGRESS = ("step", "k", "weight_sum", "lr_max", "scheduled_lr", "train_mode")
"""Keys of a group in which pytorch-optimizer and schedulefree count their steps."""

OF_ALL_GROUPS = ("preconditioning_compute_steps",)
"""Attributes in which optimizers of pytorch-optimizer keep an option outside of their groups."""


def class_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the full name of the optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def options_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the different sets of hyper-parameters of all groups, as sorted JSON.

    Engines may split or flatten groups, so neither their number nor their sizes are part of it.
    """
    hidden = {*NOT_OPTIONS, *PROGRESS}
    shared = {key: value for key, value in vars(optimizer).items() if key in OF_ALL_GROUPS}
    groups = {json.dumps({key: value for key, value in group.items() if key not in hidden} | shared, sort_keys=True,
                         default=str) for group in optimizer.param_groups}
    return f"[{', '.join(sorted(groups))}]"
