"""Finds the first layer whose input, output or gradient differs between a step, or an evaluation, of an engine and the
harness's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from repro.record.result.step_causes import Place
from repro.seams.training import Precision
from repro.seams.workload import tensors_in
from repro.suite.kinds.training import TrainingConfig

if TYPE_CHECKING:
    import torch

ROUNDED = 1e-5
"""Relative difference up to which two tensors are the same, as far as rounding of float32 goes."""
SMALL, NARROW = 1e-3, 0.02
"""Smaller shares of the largest difference in the step are rounding: in float32, and in narrower formats."""
MOST_NUMBERS = 1 << 24
"""Of a tensor that is measured."""
SEED = 20
"""Of the directions on which tensors are projected."""
WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
"""Attributes by which a wrapped layer is one of its wrapper, which has its name."""


@dataclass(slots=True)
class Call:
    """A call of one layer, and the norms and projections of its tensors, on their device."""

    name: str
    kind: str
    """Name of its class."""
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor] = field(default_factory=list)
    """Of the loss with respect to its outputs."""


class LayerTrace:
    """The calls of the layers of a model, in the order in which they end."""

    def __init__(self, model: torch.nn.Module) -> None:
        inner = {".".join(part for part in name.split(".") if part not in WRAPPERS): module
                 for name, module in model.named_modules()}  # of a wrapper and its layer, which follows it, the layer
        self._names = {module: name for name, module in inner.items()}
        self._directions: dict[tuple[int, torch.device], torch.Tensor] = {}
        self.calls: list[Call] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what the layers compute inside this context, forwards and backwards."""
        from torch.nn.modules.module import register_module_forward_hook

        handle = register_module_forward_hook(self._on_forward, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _on_forward(self, module: torch.nn.Module, inputs: Any, named: Any, outputs: Any) -> None:
        if module not in self._names:
            return
        with suppress(Exception):  # where a difference begins is no part of whether there is one
            call = Call(self._names[module], type(module).__name__, self._measured((inputs, named)),
                        self._measured(outputs))
            self.calls.append(call)
            for tensor in tensors_in(outputs):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(partial(self._on_gradient, call))  # type: ignore[no-untyped-call]

    def _on_gradient(self, call: Call, gradient: torch.Tensor) -> None:
        with suppress(Exception):
            call.gradients.extend(self._measured(gradient))

    def _measured(self, value: Any) -> list[torch.Tensor]:
        import torch

        with torch.no_grad():
            flat = [tensor.detach().reshape(-1).float() for tensor in tensors_in(value)
                    if not tensor.is_complex() and tensor.numel() <= MOST_NUMBERS]
            return [torch.stack([torch.linalg.vector_norm(tensor), (tensor * self._direction(tensor)).sum()])
                    for tensor in flat]

    def _direction(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a direction for tensors of this size, whose projections have about the size of the norm."""
        import torch

        key = len(tensor), tensor.device
        if key not in self._directions:
            drawn = torch.randn(len(tensor), generator=torch.Generator().manual_seed(SEED))
            self._directions[key] = drawn.to(tensor.device)
        return self._directions[key]


@contextmanager
def traced(model: torch.nn.Module | None, choices: TrainingConfig) -> Iterator[LayerTrace | None]:
    """Trace the layers of an engine's model; not of a compiled one, which hooks would have compiled again."""
    if model is None or choices.model_options.compile is not None:
        yield None
        return
    layers = LayerTrace(model)
    with layers.watching():
        yield layers


def where_it_begins(
    theirs: LayerTrace, ours: LayerTrace, precision: Precision, *, evaluated: bool = False
) -> Place | None:
    """Return where a step of an engine begins to differ from the harness's own; None if their calls cannot be compared.

    Args:
        evaluated: it is an evaluation, which ends with the outputs of the model.
    """
    small = SMALL if precision.weights == "float32" and not precision.autocast and not precision.tf32 else NARROW
    if evaluated and ours.calls and not theirs.calls:
        return Place(at="model")
    common = {call.name for call in theirs.calls} & {call.name for call in ours.calls}
    one, other = ([call for call in trace.calls if call.name in common] for trace in (theirs, ours))
    if evaluated:  # some engines add passes on ranks with fewer batches
        one, other = (calls[:min(len(one), len(other))] for calls in (one, other))
    if not common or [call.name for call in one] != [call.name for call in other]:
        return None
    turns = [*_turns([*zip(one, other, strict=True)])]
    sizes = [[_apart(mine.outputs, right.outputs) for mine, right in turn] for turn in turns]
    least = max(ROUNDED, small * max((size for turn in sizes for size in turn), default=0.0))
    found = [place for turn, turn_sizes in zip(turns, sizes, strict=True)
             if (place := _forwards(turn, turn_sizes, least)) is not None]
    if found:
        # An evaluation ends with a smaller batch, so only of micro-batches it is said how many differ.
        few = len(found) < len(turns) and not evaluated
        return found[0].model_copy(update={"turns": (len(found), len(turns)) if few else ()})
    if evaluated:
        return Place(at="loss")
    behind = [item for turn in turns for item in _backwards(turn)]
    least = max(ROUNDED, small * max((size for size, _ in behind), default=0.0))
    return next((place for size, place in behind if size > least), Place(at="nowhere")) if behind else None


def first_place(places: Sequence[Place | None], fine: str = "nowhere") -> Place | None:
    """Return where the first rank that differs does, with all such ranks; `fine`: where one that does not differ ends.
    """
    ranks = [rank for rank, place in enumerate(places) if place is not None and place.at != fine]
    if not ranks:
        return places[0]
    found = places[ranks[0]]
    assert found is not None
    some = len(ranks) < len(places) and None not in places
    return found.model_copy(update={"ranks": tuple(ranks)}) if some else found


def _forwards(turn: Sequence[tuple[Call, Call]], sizes: Sequence[float], least: float) -> Place | None:
    """Return the first layer of a micro-batch whose outputs differ by more than `least`."""
    for (mine, right), size in zip(turn, sizes, strict=True):
        if size > least:
            model, its = turn[-1]
            if not model.name and _apart(model.inputs, its.inputs) > least:
                return Place(at="samples")
            changed = _apart(mine.inputs, right.inputs) > least
            return Place(at="input" if changed else "output", layer=mine.name, kind=mine.kind,
                         apart=0.0 if changed else float(f"{size:.2g}"))
    return None


def _turns(pairs: Sequence[tuple[Call, Call]]) -> Iterator[Sequence[tuple[Call, Call]]]:
    """Yield the calls of each micro-batch: that of the model itself is the last to end."""
    ends = [place + 1 for place, (mine, _) in enumerate(pairs) if not mine.name]
    yield from (pairs[begin:end] for begin, end in pairwise(dict.fromkeys([0, *ends, len(pairs)])))


def _backwards(turn: Sequence[tuple[Call, Call]]) -> Iterator[tuple[float, Place]]:
    """Yield how the gradients at the outputs of the layers differ, from the last one on, and what lies behind each.

    They are shares of the gradient at the model's outputs, since losses may be scaled.
    """
    ends = [call.gradients[0][0] for call in turn[-1] if call.gradients]
    if len(ends) < len(turn[-1]) or not all(ends):
        return
    behind = Place(at="loss")
    for mine, right in reversed(turn):
        if mine.gradients and right.gradients:
            yield _apart(*([item / end for item in call.gradients]
                           for call, end in zip((mine, right), ends, strict=True))), behind
            behind = Place(at="backward", layer=mine.name, kind=mine.kind)


def _apart(theirs: Sequence[torch.Tensor], ours: Sequence[torch.Tensor]) -> float:
    """Return the largest relative difference of norms or projections, at most 1; 1 if there are not as many, or one is
    not finite."""
    if len(theirs) != len(ours):
        return 1.0
    numbers = [(mine.tolist(), right.tolist()) for mine, right in zip(theirs, ours, strict=True)]
    found = [abs(mine - right) / max(all_mine[0], all_right[0], 1e-30) for all_mine, all_right in numbers
             for mine, right in zip(all_mine, all_right, strict=True)]
    return max((size if size < 1 else 1.0 for size in found), default=0.0)
