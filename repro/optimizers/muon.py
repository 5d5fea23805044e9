"""Muon (Jordan et al., 2024) for hidden matrices, AdamW for everything else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from repro.core.errors import UsageError
from repro.optimizers.rules import Beta, Decay, decay_groups, kernels
from repro.seams.plugin import Rows, Setting
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


def _too_old() -> str | None:
    found = version("torch")
    if tuple(map(int, found.split(".")[:2])) >= (2, 9):
        return None
    return f"torch has Muon since version 2.9, and torch {found} is installed"


class Muon(Optimizer):
    """`torch.optim.Muon` for hidden matrices, `torch.optim.AdamW` for embeddings, the head, kernels and vectors.

    Muon takes tensors of two dimensions, so convolutional kernels are AdamW's. Which tensors each of them has stands in
    `optimizer_options` of a record.
    """

    preload = ("torch", "torch._dynamo", "repro.optimizers.updates")
    whole_tensors: ClassVar[bool] = True
    writes_alike: ClassVar[bool] = True
    on_rows: ClassVar[Rows] = "backend"
    # Five products of bfloat16 (2^-9 each) multiply a direction without gradient by up to 3.4445^5 = 485. Measured:
    # 0.03 for rounding of the gradient, 0.2 for other sums (rows apart), 0.23 for a gradient of rank 2.
    rounding: ClassVar[float] = 0.3

    lr: float = Field(gt=0, description="learning rate of Muon at the reference batch, before scaling and schedule")
    momentum: float = Field(0.95, ge=0, lt=1)
    nesterov: bool = True
    newton_schulz_steps: int = Field(5, ge=1, lt=100)
    adjust: Literal["original", "match_rms_adamw"] = Field(
        "original", description="factor of the rate by a matrix's shape; match_rms_adamw: a rate of AdamW then fits")
    hidden: tuple[str, ...] | None = Field(
        None, min_length=1, description="patterns of names (blocks.*.weight) of the matrices for Muon; null: those in "
                                        "numbered blocks, or without such blocks all but the first and the last")
    adamw_lr: float | None = Field(None, gt=0, description="learning rate of AdamW; null: that of Muon")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    decay: Decay = Field("all", description="tensors of AdamW with decay")

    def unsupported(self, setting: Setting) -> str | None:
        if self.hidden is None and setting.hidden_matrices is False:
            return (f"the model of {setting.workload} has no hidden matrix (two dimensions, not of the first or last "
                    "layer), so that AdamW alone would train it; use adamw")
        return setting.lacks(_too_old)

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        import torch

        from repro.optimizers.updates import Joined

        named = list(named_parameters)
        chosen = hidden_names([(name, parameter.ndim) for name, parameter in named], self.hidden)
        if not chosen:
            raise UsageError("optimizer muon: the model has no hidden matrix (two dimensions, not of the first or last "
                             "layer), so that AdamW alone would train it; name matrices in `hidden`, or use adamw")
        matrices = [(name, parameter) for name, parameter in named if name in chosen]
        others = [(name, parameter) for name, parameter in named if name not in chosen]
        muon = torch.optim.Muon(
            [{"params": [parameter for _, parameter in matrices], **_shown("muon", matrices)}], lr=self.lr,
            momentum=self.momentum, nesterov=self.nesterov, ns_steps=self.newton_schulz_steps,
            adjust_lr_fn=self.adjust, weight_decay=self.weight_decay,
        )
        if not others:
            return Joined([muon])
        groups = decay_groups(others, self.decay, self.weight_decay)
        names = {id(parameter): name for name, parameter in others}
        share = (self.adamw_lr or self.lr) / self.lr
        for group in groups:
            group |= _shown("adamw", [(names[id(item)], item) for item in group["params"]]) | {"rate_share": share}
        adamw = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps,
                                  **kernels(groups, on_divided=True))
        return Joined([muon, adamw])


def _shown(rule: str, named: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, Any]:
    """Return what a group says of itself in a record: how many names have each form, numbers written as `*`."""
    forms = Counter(re.sub(r"(?<![A-Za-z_])\d+", "*", name) for name, _ in named)  # blocks.*.widen.weight -> 4
    return {"rule": rule, "tensors": dict(sorted(forms.items()))}


NUMBERED = re.compile(r"(?:^|\.)[A-Za-z_]\w*\.\d+\.\w+\.")
"""A module in a numbered block: `blocks.0.widen.`, `encoder.layers.11.attention.`."""


def hidden_names(named: Sequence[tuple[str, int]], patterns: Sequence[str] | None) -> set[str]:
    """Return the names of the hidden matrices.

    Args:
        named: names and numbers of dimensions of all trained parameters, in the model's order.
        patterns: of names, as a shell's; None: matrices in numbered blocks, which have neither embeddings nor the head;
            in a model without such blocks all but the first and the last tensor of at least two dimensions.
    """
    matrices = [name for name, dimensions in named if dimensions == 2]
    if patterns is not None:
        return {name for name in matrices if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if blocks := {name for name in matrices if NUMBERED.search(name)}:
        return blocks
    layers = [name for name, dimensions in named if dimensions >= 2]
    return set(matrices) - {*layers[:1], *layers[-1:]}
