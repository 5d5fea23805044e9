"""Sufficient-factor broadcasting: fully connected layers gather their factors and rebuild the mean gradient locally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from repro.core.errors import TrialError
from repro.engines.plain.ddp_session import DdpSession
from repro.engines.plain.state import RandomStates
from repro.papers.wait_free.gradient_plan import Shape, plan_layers
from repro.seams.training import Batch, Job, TrainingParts

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
        self.rows: list[torch.Tensor] = []
        """Factors [rows, M + N] of this step's calls: outputs' gradient beside inputs."""
        self.sent: tuple[Any, torch.Tensor] | None = None
        self.mean = torch.empty_like(module.weight, dtype=torch.float32)
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
        """Keep the factors of one call; after the last one of the step, send all in one message."""
        self.open -= 1
        # What the layer multiplied: autocast had rounded its inputs to the type of its outputs.
        pair = gradient.detach().flatten(0, -2), inputs.to(gradient.dtype).flatten(0, -2)
        self.rows.append(torch.cat(pair, 1))
        if self.open == 0 and not self.owner.local:
            flat = self.rows[0] if len(self.rows) == 1 else torch.cat(self.rows)
            self.rows.clear()
            gathered = flat.new_empty(self.owner.world * len(flat), flat.shape[1])
            self.sent = dist.all_gather_into_tensor(gathered, flat, async_op=True), gathered

    def finish(self) -> None:
        """Wait for the factors of all ranks and set the weight's mean gradient: the same bits on every rank."""
        assert self.sent is not None, f"{self.name} had no backward pass"
        (work, gathered), self.sent = self.sent, None
        work.wait()
        # Halves of every row, which the product reads where they lie: no copy in float32.
        rows, outputs = gathered.float(), self.module.out_features
        left, right = rows[:, :outputs], rows[:, outputs:]
        torch.addmm(self.mean, left.T, right, beta=0, alpha=1 / self.owner.world, out=self.mean)
        self.module.weight.grad = self.mean.to(self.module.weight.dtype)


class SufficientFactors:
    """The layers of one model that send factors.

    Args:
        force: all fully connected layers; else those whose factors are fewer bytes (`gradient_plan`).
        run: one forward pass of `model` on a micro-batch, which shows the rows that every layer sees.
    """

    def __init__(self, model: nn.Module, job: Job, force: bool, run: Callable[[], None]) -> None:
        self.world, self.local = job.world, False
        self.table = plan_layers(find_shapes(model, run, job.accumulation), job.world, job.comm, force)
        self.layers = [FactorLayer(line.name, cast(nn.Linear, model.get_submodule(line.name.rpartition(".")[0])), self)
                       for line in self.table if line.factors]
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


def find_shapes(model: nn.Module, run: Callable[[], None], accumulation: int) -> list[Shape]:
    """Return the linear and convolutional layers with a trained weight, and the rows that they see in a step.

    A weight that several modules share, as of tied embeddings, is left to DDP, and so is one of a module that is never
    called, as the output projection inside torch's MultiheadAttention.

    Args:
        run: one forward pass on a micro-batch.
        accumulation: micro-batches of a step.
    """
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    found: dict[str, Shape] = {}

    def look(name: str, module: nn.Module, inputs: Any, outputs: torch.Tensor) -> None:
        shape = found[name]
        linear = type(module) is nn.Linear and uses[id(module.weight)] == 1
        found[name] = replace(
            shape, linear=linear, rows=shape.rows + accumulation * (outputs.numel() // shape.outputs),
            factor_itemsize=outputs.element_size())

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if isinstance(module, LAYERS) and module.weight.requires_grad:
                name, outputs = f"{path}.weight" if path else "weight", len(module.weight)
                found[name] = Shape(name, outputs, module.weight.numel() // outputs, linear=False,
                                    itemsize=module.weight.element_size())
                hooks.callback(module.register_forward_hook(partial(look, name)).remove)
        run()
    return [*found.values()]


class FactorSession(DdpSession):
    """DDP with layers that send sufficient factors.

    Args:
        force: all fully connected layers send them; else those that then send fewer bytes.
        options: of `DdpSession`.
    """

    def __init__(self, parts: TrainingParts, job: Job, broadcast_buffers: bool, force: bool, **options: Any) -> None:
        self.force = force
        if parts.unlike_samples:
            raise TrialError("sufficient_factors need samples of one shape, which this workload does not have")
        super().__init__(parts, job, broadcast_buffers, **options)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        self.factors = SufficientFactors(model, self.job, self.force, self._look)
        if not any(line.linear for line in self.factors.table):
            raise TrialError("sufficient_factors would have no effect: the model has no nn.Linear with a weight "
                             "of its own; remove them")
        if {*self.factors.names} == {name for name, _ in self.trained()}:
            raise TrialError("sufficient_factors leave DDP no parameter: the model has weights of nn.Linear alone; "
                             "add a bias, or use sufficient_factors: none")
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
            model, self.factors.names)
        return super().wrap(model)

    def _look(self) -> None:
        """Run one forward pass that leaves no trace: neither random numbers nor running statistics."""
        drawn = RandomStates(self.job.device)
        inputs, _ = self.parts.synthetic_batch(self.job.micro_batch)
        self.model.eval()
        self.forward(inputs)  # with gradients: without them torch's encoder layers take a path around their parts
        self.model.train()
        drawn.restore()

    def gradient_plan(self) -> list[dict[str, Any]]:
        return [line.model_dump() for line in self.factors.table]

    def factor_layers(self) -> int:
        return len(self.factors.layers)

    @contextmanager
    def local(self) -> Iterator[None]:
        with super().local(), self.factors.accumulating():
            yield

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        loss = super().backward(batches)
        self.factors.finish()
        return loss

    def close(self) -> None:
        del self.factors
        super().close()
