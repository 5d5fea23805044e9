"""What a training does in a few of its steps, seen by torch's hooks and written for `repro gate`, one file a rank.

The first line states how the training is wrapped and what it starts from; then there is one line for each traced step.
Steps in between cost one comparison, and after the last one all hooks are gone. Dropout is set to 0 while tracing:
masks depend on how many processes draw them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from repro.callbacks import pieces
from repro.callbacks.pieces import Piece
from repro.callbacks.sketch import Sketcher

MOST_ROWS = 1 << 16
"""Samples of one call above which none is hashed."""
RATES = ("dropout", "dropout_p", "attention_dropout")
"""Names under which layers keep a rate of dropout that they hand to a function."""


def trace(model: nn.Module, optimizer: Any, scaler: Any, wanted: Mapping[str, Any]) -> None:
    """Record the steps of a training that begins now.

    Args:
        model: what the loop calls, or the bare model in it.
        optimizer: what the loop steps; None: that of DeepSpeed's engine.
        scaler: torch's GradScaler, if the loop has one.
        wanted: folder, steps (from 1), and ulp: relative size of a disturbance of the weights, 0 for none.
    """
    Recorder(pieces.chain(pieces.outermost(model)), optimizer, scaler, wanted)


class Recorder:
    """Hooks of one training."""

    def __init__(
        self, modules: Sequence[nn.Module], optimizer: Any, scaler: Any, wanted: Mapping[str, Any]
    ) -> None:
        self._outer, self._bare, self._engine = modules[0], modules[-1], pieces.engine_of(modules)
        if optimizer is None and self._engine is not None:
            optimizer = self._engine.optimizer
        self._scaler = scaler if scaler is not None else getattr(optimizer, "scaler", None)
        self._optimizer = pieces.innermost_optimizer(optimizer)
        self._steps = frozenset(wanted["steps"])
        self._rank = torch.distributed.get_rank() if _distributed() else 0
        # Processes that do not know each other have one rank and several files.
        name = f"rank{self._rank}-{os.getpid()}.jsonl"
        try:
            self._file = Path(wanted["folder"], name).open("x", encoding="utf-8")  # noqa: SIM115  # for the training
        except FileExistsError:
            raise RuntimeError("watch.trace was called twice in this process: trace the one model that is compared"
                               ) from None
        self._step, self._seen, self._inside = 1, _Seen(), 0
        self._undo: list[Callable[[], object]] = []
        self._sketcher = Sketcher()
        header = {"rank": self._rank, "world": torch.distributed.get_world_size() if _distributed() else 1,
                  "wrapper": pieces.wrapper_of(modules), "chain": [type(each).__name__ for each in modules],
                  "optimizer": type(self._optimizer).__name__, "torch": torch.__version__, "problem": ""}
        try:
            if not isinstance(self._optimizer, torch.optim.Optimizer):
                raise TypeError(f"its optimizer is of {type(self._optimizer).__name__}, not of torch.optim.Optimizer")
            self._pieces: list[Piece] = list(pieces.pieces_of(modules[-1]))
            if not self._pieces:
                raise TypeError("no tensor of the model is trained")
        except (TypeError, AttributeError) as error:
            self._write(header | {"problem": str(error)})
            self._file.close()
            return
        self._held = [piece for piece in self._pieces if piece.place.count]
        if wanted["ulp"]:
            self._disturb(wanted["ulp"])
        params = pieces.names_of(modules[-1])
        self._write(header | {
            "shapes": {name: list(getattr(param, "ds_shape", param.shape)) for name, param in params.items()
                       if param.requires_grad},
            "frozen": [name for name, param in params.items() if not param.requires_grad],
            "formats": {"weights": pieces.types_of([piece.weights() for piece in self._held]),
                        "model": pieces.types_of([getattr(param, "ds_tensor", param) for param in params.values()])},
            "dropout": _without_dropout(modules[-1]),
            "deepspeed": pieces.deepspeed_facts(self._engine) if self._engine is not None else None,
            "initial": self._measure((piece.place, piece.weights()) for piece in self._held),
            "untrained": self._measure(pieces.untrained_of(modules[-1]))})
        self._attach()

    def _attach(self) -> None:
        # Frameworks turn autocast on around the forward pass of the bare model: a layer sees it.
        layer = next(module for module in self._bare.modules() if not any(module.children()))
        # Lightning calls no forward of its module unless DDP wraps it: what its first layer is fed is seen either way.
        is_lightning = "LightningModule" in {kind.__name__ for kind in type(self._bare).__mro__}
        called = layer if is_lightning else self._outer
        # Before the hook by which FSDP 2 casts what the model is fed.
        self._undo.append(called.register_forward_pre_hook(self._on_forward, prepend=True, with_kwargs=True).remove)
        stored = _type_of(layer)
        self._undo.append(layer.register_forward_pre_hook(lambda *_: self._on_layer(layer, stored)).remove)
        self._undo.append(self._optimizer.register_step_pre_hook(self._on_clipped).remove)
        backward = torch.autograd.backward

        def with_loss(tensors: Any, *args: Any, **named: Any) -> None:
            backward(tensors, *args, **named)
            self._on_backward(tensors)

        torch.autograd.backward = with_loss  # Tensor.backward looks it up at each call
        self._undo.append(lambda: setattr(torch.autograd, "backward", backward))
        if self._engine is None:
            self._undo.append(self._optimizer.register_step_post_hook(self._on_stepped).remove)
            return
        step, engine = self._engine.step, self._engine

        def engine_step(*args: Any, **named: Any) -> Any:
            boundary = engine.is_gradient_accumulation_boundary()
            if boundary and self._traced:
                self._read_gradients()
                self._before_update()
            found = step(*args, **named)
            if boundary:
                self._on_updated()
            return found

        engine.step = engine_step  # its optimizer may update group by group
        self._undo.append(lambda: engine.__dict__.pop("step", None))

    @property
    def _traced(self) -> bool:
        return self._step in self._steps

    # ---- hooks

    def _on_forward(self, _: nn.Module, args: Any, named: Any) -> None:
        if not self._traced or not torch.is_grad_enabled():
            return
        self._seen.calls.append(_fed(args, named))
        self._seen.random = _random_state(self._held)
        self._seen.resting |= {".".join(part for part in name.split(".") if part not in pieces.INSIDE)
                               for name, module in self._bare.named_modules() if not module.training}

    def _on_layer(self, layer: nn.Module, stored: str) -> None:
        device = self._held[0].weights().device.type if self._traced and self._held else ""
        if not device or not torch.is_grad_enabled():
            return
        if torch.is_autocast_enabled(device):
            self._seen.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        elif _type_of(layer) != stored:  # FSDP 2 casts the weights that it gathers
            self._seen.autocast = _type_of(layer)

    def _on_backward(self, roots: Any) -> None:
        root = roots if torch.is_tensor(roots) else next(iter(roots), None)
        if not self._traced or root is None or root.numel() != 1:
            return
        seen = self._seen
        seen.draws = seen.draws or not (seen.random is None or torch.equal(seen.random, _random_state(self._held)))
        seen.loss.append(float(root.detach()))
        self._seen.scale = self._loss_scale()
        if self._engine is None:
            self._read_gradients()

    def _on_clipped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._engine is None:
            self._inside += 1  # torch calls the hooks again if a rule's step calls that of its base class
        if not self._traced or self._inside > 1:
            return
        if self._engine is None:
            self._before_update()
        self._read_updated(optimizer)

    def _on_stepped(self, *_: Any) -> None:
        self._inside -= 1
        if not self._inside:
            self._on_updated()

    def _on_updated(self) -> None:
        if self._traced:
            seen = self._seen
            if not seen.clipped:  # a closure took the backward pass inside the step (Lightning)
                self._read_updated(self._optimizer)
            update = self._measure((piece.place, piece.weights().detach().reshape(-1).float() - before)
                                   for piece, before in zip(self._held, seen.before, strict=True))
            state = [value for values in self._optimizer.state.values() for value in values.values()
                     if torch.is_tensor(value) and value.ndim]
            self._write({"step": self._step, "fed": [call[0] for call in seen.calls],
                         "kinds": seen.calls[0][1] if seen.calls else [], "resting": sorted(seen.resting),
                         "autocast": seen.autocast, "draws": seen.draws, "loss": seen.loss, "scale": seen.scale,
                         "groups": seen.groups, "settings": seen.settings, "gradient": seen.gradient,
                         "clipped": seen.clipped, "weights": seen.weights, "update": update,
                         "state": pieces.types_of([pieces.local_of(value) for value in state])})
        self._seen = _Seen()
        self._step += 1
        if self._step > max(self._steps):
            self._close()

    # ---- reading

    def _read_gradients(self) -> None:
        found = ((piece.place, piece.gradient()) for piece in self._held)
        self._seen.gradient = self._measure((place, pieces.dense(grad)) for place, grad in found if grad is not None)

    def _read_updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Read gradients and settings of a step of the optimizer; ZeRO takes one for each group."""
        seen, found = self._seen, list(pieces.updated_pieces(self._held, optimizer))
        seen.clipped |= self._measure((place, grad) for place, grad, _ in found)
        for place, _, group in found:
            stated = {name: plain for name, value in group.items() if (plain := _plain(value)) is not None}
            if stated not in seen.groups:
                seen.groups.append(stated)
            seen.settings[place.name] = seen.groups.index(stated)

    def _before_update(self) -> None:
        self._seen.before = [piece.weights().detach().reshape(-1).float().clone() for piece in self._held]
        self._seen.weights = self._measure(zip((piece.place for piece in self._held), self._seen.before, strict=True))

    def _loss_scale(self) -> float:
        if self._scaler is not None and self._scaler.is_enabled():
            return float(self._scaler.get_scale())
        return float(getattr(getattr(self._engine, "optimizer", None), "loss_scale", 1.0) or 1.0)

    def _measure(self, parts: Iterable[tuple[Any, torch.Tensor]]) -> dict[str, dict[str, Any]]:
        with torch.no_grad():
            return self._sketcher.measure(parts)

    def _disturb(self, size: float) -> None:
        """Change every weight by `size`, relative, up or down by the sign of its element: alike on all ranks."""
        with torch.no_grad():
            for piece in self._pieces:
                own = [(piece.place, piece.weights())] if piece.place.count else []
                for place, values in [*own, *(copy() for copy in piece.copies)]:
                    change = self._sketcher.signs_of(place, values.device).view(values.shape).float() * size
                    values.add_((values.float() * change).to(values.dtype))

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _close(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._file.close()


class _Seen:
    """Measurements of the step that runs."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        self.loss: list[float] = []
        self.scale, self.autocast, self.draws = 1.0, "", False
        self.resting: set[str] = set()
        self.random: torch.Tensor | None = None
        """State of the generator before the last call."""
        self.groups: list[dict[str, Any]] = []
        self.settings: dict[str, int] = {}
        self.gradient: dict[str, Any] = {}
        self.clipped: dict[str, Any] = {}
        self.weights: dict[str, Any] = {}
        self.before: list[torch.Tensor] = []


def _fed(args: Any, named: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a hash of each sample in a call of the model, over all of its tensors, and the kinds of these.

    What an `attention_mask` leaves out is no part of a sample: how far one is padded depends on the others in its call.
    """
    leaves = tree_leaves((args, dict(sorted(named.items()))))
    tensors = [pieces.dense(leaf.detach()).cpu().contiguous() for leaf in leaves if torch.is_tensor(leaf) and leaf.ndim]
    if not tensors:
        return [], []
    rows, mask = len(tensors[0]), named.get("attention_mask")
    kept = (mask == 1).cpu().numpy() if torch.is_tensor(mask) and mask.ndim == 2 and bool(
        ((mask == 0) | (mask == 1)).all()) else None  # not one whose numbers are added
    arrays = [(tensor.float() if tensor.is_floating_point() else tensor).numpy() for tensor in tensors
              if len(tensor) == rows]
    hashes = [hashlib.blake2b(b"".join((array[row][kept[row]] if kept is not None and array.shape[:2] == kept.shape
                                        else array[row]).tobytes() for array in arrays), digest_size=6).hexdigest()
              for row in range(rows if rows <= MOST_ROWS else 0)]
    return hashes, [f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape[1:])}" for tensor in tensors]


def _random_state(held: Sequence[Piece]) -> torch.Tensor:
    """Return the state of the generator from which layers draw."""
    device = held[0].weights().device if held else torch.device("cpu")
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _type_of(layer: nn.Module) -> str:
    """Return the type of the layer's first weight; "" if it has none."""
    return next((str(param.dtype).removeprefix("torch.") for param in layer.parameters(recurse=False)), "")


def _without_dropout(model: nn.Module) -> dict[str, float]:
    """Set the rates of dropout layers, and those that layers hand to functions, to 0; return those that were not."""
    found = {}
    for name, module in model.named_modules():
        rates = ("p",) if isinstance(module, nn.modules.dropout._DropoutNd) else RATES
        for attribute in rates:
            rate = getattr(module, attribute, None)
            if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate <= 1:
                try:
                    setattr(module, attribute, 0.0)
                except AttributeError:  # it is computed; what it is computed from may be set
                    continue
                found[name if attribute == "p" else f"{name}.{attribute}"] = float(rate)
    return found


def _plain(value: Any) -> Any:
    """Return a setting that is a number, or several numbers; None: it is something else."""
    if torch.is_tensor(value) and value.numel() == 1:
        return float(value)
    numbers = value if isinstance(value, tuple | list) else [value]
    return value if all(isinstance(item, bool | int | float) for item in numbers) else None


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
