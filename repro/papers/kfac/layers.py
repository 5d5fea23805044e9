"""The layers that K-FAC preconditions: their inputs and output gradients as rows, their gradients as one matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


@dataclass(frozen=True, slots=True)
class Layer:
    """A Linear, Conv1d or Conv2d of the model, its weight and bias as one matrix [outputs, inputs]."""

    module: nn.Module
    weight: str
    """Name of the parameter."""
    bias: str | None
    """None: it has none, or none that is trained."""
    inputs: int
    """Columns of the matrix: weights of one output, and one more for a bias."""
    outputs: int

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of A and of G."""
        return self.inputs, self.outputs

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs

    def input_rows(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [samples x positions, inputs] float32: what one output at one position is a product with.

        Positions are those of a convolution's output (its inputs unfolded: Grosse and Martens, 2016), or all dimensions
        of a Linear's input between the first and the last. A bias has the input 1.
        """
        values = inputs.detach().float()
        if isinstance(self.module, CONVOLUTIONS):
            rows = _patches(self.module, values).transpose(1, 2).flatten(0, 1)
        else:
            rows = values.reshape(-1, values.shape[-1])
        return functional.pad(rows, (0, 1), value=1.0) if self.bias else rows

    def output_rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return [samples x positions, outputs] float32 of the gradient of the layer's output."""
        values = gradient.detach().float()
        if isinstance(self.module, CONVOLUTIONS):
            return values.flatten(2).transpose(1, 2).flatten(0, 1)
        return values.reshape(-1, values.shape[-1])

    def matrix(self, gradients: Mapping[str, torch.Tensor | None]) -> torch.Tensor | None:
        """Return the gradient [outputs, inputs] float32; None: a part of it is missing."""
        found = [gradients[name] for name in (self.weight, self.bias) if name]
        parts = [part.float().reshape(self.outputs, -1) for part in found if part is not None]
        return torch.cat(parts, dim=1) if len(parts) == len(found) else None

    def write(self, matrix: torch.Tensor, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Copy a matrix [outputs, inputs] into the gradients of weight and bias."""
        weight = gradients[self.weight]
        assert weight is not None
        weight.copy_((matrix[:, :-1] if self.bias else matrix).reshape(weight.shape))
        if self.bias and (bias := gradients[self.bias]) is not None:
            bias.copy_(matrix[:, -1])


def _patches(module: nn.Conv1d | nn.Conv2d, values: torch.Tensor) -> torch.Tensor:
    """Return [samples, channels x kernel, positions]."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    values = functional.pad(values, module._reversed_padding_repeated_twice, mode=mode)
    if isinstance(module, nn.Conv2d):
        return functional.unfold(values, module.kernel_size, module.dilation, stride=module.stride)
    return functional.unfold(values.unsqueeze(2), (1, *module.kernel_size), (1, *module.dilation),
                             stride=(1, *module.stride))


def find_layers(model: nn.Module, largest: int) -> list[Layer]:
    """Return the layers of `model` in its order.

    Left out are grouped convolutions, whose inputs are no one matrix; layers whose weight is not trained, or belongs to
    another module too; and the output projection inside torch's MultiheadAttention, which is never called.

    Args:
        largest: most inputs or outputs.
    """
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    uncalled = {id(module.out_proj) for module in model.modules() if isinstance(module, nn.MultiheadAttention)}
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.Linear, *CONVOLUTIONS)) or id(module) in uncalled:
            continue
        if getattr(module, "groups", 1) > 1 or uses[id(module.weight)] > 1 or not module.weight.requires_grad:
            continue
        prefix, bias = f"{path}." if path else "", module.bias
        with_bias = bias is not None and bias.requires_grad and uses[id(bias)] == 1
        outputs = len(module.weight)
        inputs = module.weight.numel() // outputs + with_bias
        if max(inputs, outputs) <= largest:
            found.append(Layer(module, f"{prefix}weight", f"{prefix}bias" if with_bias else None, inputs, outputs))
    return found
