"""Parameter groups with and without weight decay, and the kernels that update them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Decay = Literal["all", "weights"]
"""`weights`: no decay on parameters of fewer than two dimensions (biases, scales and shifts of norms)."""


def decay_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], decay: Decay, weight_decay: float
) -> list[dict[str, Any]]:
    """Return one parameter group, or one with decay and one without; none is empty, the order is the model's."""
    parameters = [parameter for _, parameter in named_parameters]
    if decay == "all":
        return [{"params": parameters, "weight_decay": weight_decay}]
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def kernels(groups: list[dict[str, Any]]) -> dict[str, bool]:
    """Return `foreach` and `fused` for torch's optimizers, the same in every engine.

    By default torch chooses by the parameters it gets, so an engine that flattens them would use other kernels than one
    that does not. On a GPU the fused kernel needs one launch per group in every engine; on a CPU the plain loop does
    the same arithmetic for flattened and separate parameters.
    """
    return {"foreach": False, "fused": bool(groups[0]["params"][0].is_cuda)}


def adapted_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], decay: Decay, weight_decay: float, adapt: Decay
) -> list[dict[str, Any]]:
    """Return groups with `weight_decay` and `adapt` (their rates are scaled by norms), none of them empty."""
    parameters = [parameter for _, parameter in named_parameters]
    groups = [{
        "params": [parameter for parameter in parameters if (parameter.ndim <= 1) is vectors],
        "weight_decay": weight_decay if decay == "all" or not vectors else 0.0,
        "adapt": adapt == "all" or not vectors,
    } for vectors in (False, True)]
    return [group for group in groups if group["params"]]
