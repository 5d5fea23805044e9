"""The update rules, a class each: its options, and the torch optimizer that they are arguments of.

`Rule.build` passes every option to the class that `rule` names, but weight decay, which groups of parameters have.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from repro.core.devices import on_gpu
from repro.core.machine import why_missing
from repro.seams.plugin import Rows, Setting
from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch

Beta = Annotated[float, Field(ge=0, lt=1)]
Decay = Literal["all", "weights"]
"""`weights`: no decay on parameters of fewer than two dimensions (biases, scales and shifts of norms)."""
OF_GROUPS = ("weight_decay", "decay", "adapt")
"""Options that parameter groups carry out."""


class Rule(Optimizer):
    """An update rule whose options are arguments of one class."""

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo")
    writes_alike: ClassVar[bool] = True
    rule: ClassVar[str]
    """The class as "module:name"; its module is imported when an optimizer is built."""
    package: ClassVar[str] = ""
    """Package of the extra `optimizers` that has the class; "": torch, or this project."""
    names: ClassVar[Mapping[str, str]] = {}
    """Option -> argument of the class, where their names differ."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Arguments that are no options."""
    fuses: ClassVar[Literal["no", "foreach", "whole", "divided"]] = "no"
    """The class takes `foreach` and `fused` (`kernels`), or `foreach` alone; divided: torch knows its fused kernel also
    on tensors that are divided over the ranks."""

    lr: float = Field(gt=0, description="learning rate at the reference batch, before scaling rule and schedule")

    def unsupported(self, setting: Setting) -> str | None:
        module = self.rule.partition(":")[0]
        return setting.lacks(lambda: why_missing("optimizers", self.package, module)) if self.package else None

    def groups(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> list[dict[str, Any]]:
        """Return the parameter groups."""
        options = dict(self)
        return decay_groups(named_parameters, options["decay"], options["weight_decay"])

    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        module, _, name = self.rule.partition(":")
        groups = self.groups(named_parameters)
        options = {self.names.get(key, key): value for key, value in self if key not in OF_GROUPS}
        made: Any = getattr(importlib.import_module(module), name)(
            groups, **options, **self.fixed, **self.chosen_kernels(groups))
        if self.evaluates_other_weights:
            made.train()
        found: torch.optim.Optimizer = made
        return found

    def chosen_kernels(self, groups: list[dict[str, Any]]) -> dict[str, bool]:
        """Return those arguments of the class that choose kernels."""
        if self.fuses == "no":
            return {}
        chosen = kernels(groups, self.fuses == "divided")
        return {"foreach": any(chosen.values())} if self.fuses == "foreach" else chosen


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


def kernels(groups: list[dict[str, Any]], on_divided: bool) -> dict[str, bool]:
    """Return `foreach` and `fused` for torch's optimizers, the same in every engine that can run them.

    By default torch chooses by the parameters it gets, so an engine that flattens them would use other kernels than one
    that does not. On a GPU the fused kernel needs one launch per group in every engine; on a CPU the plain loop does
    the same arithmetic for flattened and separate parameters.

    Args:
        on_divided: the fused kernel also runs on tensors that FSDP divides. Without, a few launches per group do the
            same arithmetic in steps.
    """
    first = groups[0]["params"][0]
    if not on_gpu(first.device):
        return {"foreach": False, "fused": False}
    fused = on_divided or not hasattr(first, "device_mesh")  # of DTensor, which is not imported for this
    return {"foreach": not fused, "fused": fused}


class Sgd(Rule):
    """v <- momentum v + g + weight_decay w;  w <- w - lr v  (nesterov: w - lr (g + weight_decay w + momentum v)).

    No dampening. Weight decay is the L2 term added to the gradient (after clipping).
    """

    rule = "torch.optim:SGD"
    fixed: ClassVar[Mapping[str, Any]] = {"dampening": 0.0}
    fuses = "whole"
    linear = True

    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Sgd:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self


class AdamW(Rule):
    """`torch.optim.AdamW`: bias-corrected moments; decay multiplies the weights by 1 - lr x weight_decay.

    Of Loshchilov and Hutter (2019).
    """

    rule = "torch.optim:AdamW"
    fuses = "divided"

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay: Decay = "all"


class Adam(AdamW):
    """`torch.optim.Adam`: bias-corrected moments; weight decay is the L2 term added to the gradient (AdamW: not).

    Of Kingma and Ba (2015).
    """

    rule = "torch.optim:Adam"

    weight_decay: float = Field(0.0, ge=0)


class RmsProp(Rule):
    """`torch.optim.RMSprop`: s <- alpha s + (1 - alpha) g^2;  v <- momentum v + g / (sqrt(s) + eps);  w <- w - lr v.

    Of Tieleman and Hinton (2012). Weight decay is the L2 term added to the gradient.
    """

    rule = "torch.optim:RMSprop"
    fuses = "foreach"

    alpha: float = Field(0.99, ge=0, lt=1, description="share of the mean square that a step keeps")
    momentum: float = Field(0.0, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"


class Lion(Rule):
    """`pytorch_optimizer.Lion`: w <- w - lr (sign(beta1 m + (1 - beta1) g) + weight_decay w), m with beta2.

    Of Chen et al. (2023).
    """

    rule = "pytorch_optimizer:Lion"
    package = "pytorch-optimizer"
    fixed: ClassVar[Mapping[str, Any]] = {"weight_decouple": True}
    fuses = "foreach"

    betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"


class Shampoo(Rule):
    """`pytorch_optimizer.Shampoo`: w <- w - lr L^(-1/4) G R^(-1/4), L and R the sums of G G^T and G^T G.

    Of Gupta, Koren and Singer (2018). A tensor of k dimensions has k such sums, each to the power -1/(2k). Without
    momentum: the library's adds preconditioned gradients to raw ones, which the paper does not. Weight decay is the L2
    term added to the gradient.
    """

    rule = "pytorch_optimizer:Shampoo"
    package = "pytorch-optimizer"
    names: ClassVar[Mapping[str, str]] = {"roots_every": "preconditioning_compute_steps"}
    whole_tensors: ClassVar[bool] = True
    on_rows: ClassVar[Rows] = "none"
    writes_alike: ClassVar[bool] = False
    starts_from_zero: ClassVar[bool] = False
    # Rounding of a sum, 1e-7 of its largest eigenvalue, is a tenth of the smallest, `matrix_eps`; a root has a quarter.
    rounding: ClassVar[float] = 0.03

    matrix_eps: float = Field(1e-6, gt=0, description="multiple of the identity that every sum starts from")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"
    roots_every: int = Field(1, ge=1, description="steps from one computation of the roots to the next; before the "
                                                  "first one the weights do not move")


class Soap(Rule):
    """`pytorch_optimizer.SOAP`: Adam in the eigenbasis of Shampoo's factors; vectors by Adam alone.

    Of Vyas et al. (2024). The first step only measures the factors and leaves the weights as they are. Where a factor
    has equal eigenvalues (a first gradient of low rank has many of 0), rounding decides the basis, and with it the
    update.
    """

    rule = "pytorch_optimizer:SOAP"
    package = "pytorch-optimizer"
    names: ClassVar[Mapping[str, str]] = {"basis_every": "precondition_frequency",
                                          "largest_dimension": "max_precondition_dim"}
    whole_tensors: ClassVar[bool] = True
    on_rows: ClassVar[Rows] = "none"
    writes_alike: ClassVar[bool] = False
    starts_from_zero: ClassVar[bool] = False
    # Eigenvectors of equal eigenvalues are any basis of their space. Measured: up to 0.9 of an update.
    rounding: ClassVar[float] = 1.5

    betas: tuple[Beta, Beta] = (0.95, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay: Decay = "all"
    basis_every: int = Field(10, ge=1, description="steps from one eigenbasis to the next")
    largest_dimension: int = Field(10_000, ge=1, description="dimensions that are larger get no factor")


class _ScheduleFree(Rule):
    """Averaging in place of a schedule (Defazio et al., 2024).

    Meant for a constant rate, if with a warm-up. Batch norm's statistics stay those of the weights in training.
    """

    package = "schedulefree"
    fixed: ClassVar[Mapping[str, Any]] = {"foreach": False}
    evaluates_other_weights: ClassVar[bool] = True
    moves_at_rate_zero: ClassVar[bool] = True
    writes_alike: ClassVar[bool] = False
    starts_from_zero: ClassVar[bool] = False


class ScheduleFreeSgd(_ScheduleFree):
    """`schedulefree.SGDScheduleFree`: gradients at a mixture of fast weights and their average, which is evaluated."""

    rule = "schedulefree:SGDScheduleFree"

    momentum: float = Field(0.9, gt=0, lt=1, description="share of the average in the weights of training")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"


class ScheduleFreeAdamW(_ScheduleFree):
    """`schedulefree.AdamWScheduleFree`: gradients at a mixture of fast weights and their average, which is evaluated.
    """

    rule = "schedulefree:AdamWScheduleFree"

    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="share of the average in the weights of training, and "
                                                               "of the mean square that a step keeps")
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"

    @field_validator("betas")
    @classmethod
    def _has_an_average(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] == 0:
            raise ValueError("the first of betas must be above 0: the evaluated average cannot be found without it")
        return value


class _Layerwise(Rule):
    """A rule that scales the rate of each weight tensor by its norm, for large batches.

    The paper's formula, in float32 in every precision. By default biases and norms have neither decay nor a scaled
    rate.
    """

    preload = (*Rule.preload, "repro.optimizers.updates")
    whole_tensors: ClassVar[bool] = True

    def groups(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> list[dict[str, Any]]:
        parameters, options = [parameter for _, parameter in named_parameters], dict(self)
        groups = [{
            "params": [parameter for parameter in parameters if (parameter.ndim <= 1) is vectors],
            "weight_decay": options["weight_decay"] if options["decay"] == "all" or not vectors else 0.0,
            "adapt": options["adapt"] == "all" or not vectors,
        } for vectors in (False, True)]
        return [group for group in groups if group["params"]]


class Lars(_Layerwise):
    """LARS: the rate of each weight tensor times trust |w| / (|g| + weight_decay |w|), inside of the momentum.

    Of You, Gitman and Ginsburg (2017).
    """

    rule = "repro.optimizers.updates:Lars"
    moves_at_rate_zero: ClassVar[bool] = True

    momentum: float = Field(0.9, ge=0, lt=1)
    trust: float = Field(0.001, gt=0, description="trust coefficient: the size of a change relative to the weights'")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "weights"
    adapt: Decay = Field("weights", description="tensors whose rate is scaled; weights: not those of fewer than two "
                                                "dimensions (biases, scales and shifts of norms)")


class Lamb(_Layerwise):
    """LAMB: the update of AdamW, scaled for each weight tensor to the length of the weights.

    Of You et al. (2020).
    """

    rule = "repro.optimizers.updates:Lamb"

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay: Decay = "weights"
    adapt: Decay = Field("weights", description="tensors whose update is scaled; weights: not those of fewer than two "
                                                "dimensions (biases, scales and shifts of norms)")
