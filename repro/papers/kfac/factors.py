"""The layers that K-FAC preconditions, and their Kronecker factors: sums over a step, means over ranks, averages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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


class Factors:
    """A and G of every layer in float32, in one piece of memory, so that one collective carries all of them.

    With n samples in a step and loss l the mean of the samples' losses l_i, A is the mean of a a^T over samples and
    positions, G the mean over samples of the sum over positions of g g^T, g the gradient of l_i by the layer's output.
    Each is independent of how the samples are divided over ranks and micro-batches. G (x) A is then the layer's block
    of the empirical Fisher matrix of one sample, positions taken as independent (Grosse and Martens, 2016).

    Args:
        accumulation: forward passes of a step on this rank.
    """

    def __init__(self, layers: Sequence[Layer], device: torch.device, accumulation: int) -> None:
        self.layers, self.accumulation = layers, accumulation
        self.sizes = [rows for layer in layers for rows in layer.sizes]
        total = sum(rows**2 for rows in self.sizes)
        self.averages = torch.zeros(total, device=device)
        """Running averages, A and G of the first layer first."""
        self.updates = 0
        """Steps that are part of the averages."""
        self._sums = torch.zeros_like(self.averages)
        self._parts = self._views(self._sums)
        self._calls = [0] * len(layers)

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(flat, [rows**2 for rows in self.sizes])
        return [piece.view(rows, rows) for piece, rows in zip(pieces, self.sizes, strict=True)]

    def matrices(self) -> list[torch.Tensor]:
        """Return views of the running averages: A and G of the first layer, then of the second."""
        return self._views(self.averages)

    def add_inputs(self, place: int, inputs: torch.Tensor) -> None:
        """Add the inputs of one call of layer number `place`."""
        rows = self.layers[place].input_rows(inputs)
        self._parts[2 * place].addmm_(rows.T, rows, alpha=1 / len(rows))
        self._calls[place] += 1

    def add_gradient(self, place: int, gradient: torch.Tensor) -> None:
        """Add the gradient of the step's loss by the output of one call.

        The step's loss on this rank is the mean over micro-batches of the mean over samples.
        """
        rows, samples = self.layers[place].output_rows(gradient), len(gradient)
        # g = samples x accumulation x gradient, and the mean of g g^T divides by samples x accumulation.
        self._parts[2 * place + 1].addmm_(rows.T, rows, alpha=samples * self.accumulation)

    def update(self, average: Callable[[torch.Tensor], None], decay: float, scale: float) -> None:
        """Take the sums of the step into the running averages, and clear them.

        The k-th update weighs the past by min(1 - 1/k, decay) (Martens and Grosse, 2015): the first one sets the
        averages. A step whose loss scale was too large, or that diverged, leaves them as they are, on all ranks alike.

        Args:
            average: replaces its argument by the mean over the ranks.
            scale: factor of the loss.
        """
        for place, calls in enumerate(self._calls):
            self._parts[2 * place].div_(max(calls, 1))
            self._parts[2 * place + 1].div_(scale**2)
        average(self._sums)
        if bool(torch.isfinite(self._sums).all()):
            self.updates += 1
            self.averages.lerp_(self._sums, 1 - min(1 - 1 / self.updates, decay))
        self._sums.zero_()
        self._calls = [0] * len(self.layers)
