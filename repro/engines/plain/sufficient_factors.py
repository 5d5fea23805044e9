"""Sufficient-factor broadcasting: fully connected layers gather their factors and rebuild the mean gradient locally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from repro.engines.gradient_plan import LayerCost, Shape, layer_cost
from repro.seams.training import Job

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Tap(torch.autograd.Function):
    """Identity on a layer's outputs that hands their gradient over in the backward pass.

    The weight is an input so that the outputs need a gradient even if nothing before them does. It gets none here.
    """

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, layer: Any) -> Any:
        ctx.save_for_backward(inputs)
        ctx.layer = layer
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        ctx.layer.add(*ctx.saved_tensors, gradient)
        return gradient, None, None, None


class FactorLayer:
    """One nn.Linear that sends factors in place of its weight's gradient; its bias stays with DDP.

    Factors have the type in which the layer computes (bfloat16 under such an autocast); the product is float32.
    """

    def __init__(self, name: str, module: nn.Linear, owner: SufficientFactors) -> None:
        self.name, self.module, self.owner = name, module, owner
        self.open = 0
        """Forward calls whose backward pass has not come yet."""
        self.rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.sent: tuple[Any, torch.Tensor, int] | None = None
        module.forward = self.forward  # type: ignore[method-assign, assignment]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        module = self.module
        outputs = functional.linear(inputs, module.weight.detach(), module.bias)
        if not torch.is_grad_enabled():
            return outputs
        self.open += 1
        tapped: torch.Tensor = _Tap.apply(outputs, inputs.detach(), module.weight, self)  # type: ignore[no-untyped-call]
        return tapped

    def add(self, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        """Keep the factors of one call; after the last one of the step, send all."""
        self.open -= 1
        # What the layer multiplied: autocast had rounded its inputs to the type of its outputs.
        self.rows.append((gradient.detach().flatten(0, -2), inputs.to(gradient.dtype).flatten(0, -2)))
        if self.open == 0 and not self.owner.local:
            self._send()

    def _send(self) -> None:
        rows = sum(len(outputs) for outputs, _ in self.rows)
        flat = torch.cat([*(g.reshape(-1) for g, _ in self.rows), *(x.reshape(-1) for _, x in self.rows)])
        self.rows.clear()
        gathered = flat.new_empty(self.owner.world * flat.numel())
        work = dist.all_gather_into_tensor(gathered, flat, async_op=True)
        self.sent = (work, gathered, rows)

    def finish(self) -> None:
        """Wait for the factors of all ranks and set the weight's mean gradient: the same bits on every rank."""
        assert self.sent is not None, f"{self.name} had no backward pass"
        (work, gathered, rows), self.sent = self.sent, None
        work.wait()
        outputs, world = self.module.out_features, self.owner.world
        parts = gathered.view(world, -1)
        left = parts[:, :rows * outputs].reshape(world * rows, outputs).float()
        right = parts[:, rows * outputs:].reshape(world * rows, -1).float()
        with torch.no_grad():
            self.module.weight.grad = ((left.T @ right) / world).to(self.module.weight.dtype)


class SufficientFactors:
    """The layers of one model that send factors.

    Args:
        force: all fully connected layers; else those whose factors are fewer bytes (`gradient_plan`), with the samples
            of a step as rows: positions, as of tokens, make more of them.
    """

    def __init__(self, model: nn.Module, job: Job, force: bool) -> None:
        self.world, self.local = job.world, False
        modules = dict(model.named_modules())
        shapes = find_shapes(model)
        rows = job.micro_batch * job.accumulation
        self.table = [layer_cost(shape, rows, job.world, job.comm, force) for shape in shapes]
        chosen = [line.shape.name for line in self.table if line.factors]
        self.layers = [FactorLayer(name, _linear(modules[name.rpartition(".")[0]]), self) for name in chosen]
        for layer in self.layers:
            # DDP copies rank 0's weights to all ranks, but not those that it is told to ignore.
            dist.broadcast(layer.module.weight.detach(), src=0)

    @property
    def names(self) -> list[str]:
        """Names of the weights whose gradients are not DDP's."""
        return [layer.name for layer in self.layers]

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Keep factors inside the block; the next backward pass outside of it sends them too."""
        self.local = True
        try:
            yield
        finally:
            self.local = False

    def finish(self) -> None:
        """Set the mean gradients of all layers, in the order in which back-propagation reaches them."""
        for layer in reversed(self.layers):
            layer.finish()


def _linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def find_shapes(model: nn.Module) -> list[Shape]:
    """Return the linear and convolutional layers with a trained weight.

    A weight that several modules share, as of tied embeddings, is left to DDP, and so is the output projection inside
    torch's MultiheadAttention, which is never called.
    """
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    uncalled = {id(module.out_proj) for module in model.modules() if isinstance(module, nn.MultiheadAttention)}
    found = []
    for path, module in model.named_modules():
        if isinstance(module, LAYERS) and module.weight.requires_grad and id(module) not in uncalled:
            outputs = len(module.weight)
            linear = type(module) is nn.Linear and uses[id(module.weight)] == 1
            found.append(Shape(f"{path}.weight" if path else "weight", outputs, module.weight.numel() // outputs,
                               linear))
    return found


def describe(table: list[LayerCost]) -> str:
    """Return the cost table, a layer after the other."""
    return "; ".join(map(str, table))
