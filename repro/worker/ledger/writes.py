"""Writes into the weights and into what the optimizer keeps, beside its own.

Every operation in place raises the version of its tensor, and all steps of an optimizer write alike often into one. So
a reading after each step shows, without a look at a value, whether anything else wrote into it since the step before.
What is written through `tensor.data` raises no version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class OtherWrites(NamedTuple):
    """Tensors that were written more, or less, often in one step than in others, or replaced."""

    name: str
    """Of the first one."""
    tensors: int
    found: int
    """Writes into all of them."""
    usual: int


class Writes:
    """Counts the writes into the tensors of one optimizer.

    Args:
        model: gives the parameters their names; its trained parameters are watched, too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._own: list[bool] = []
        """The optimizer steps or keeps it; False: an engine's copy for the forward pass."""
        self._total = 0
        self._usual: list[int] = []
        """Writes into each tensor in a step."""
        self._usual_total = -1
        self.forget()

    def forget(self) -> None:
        """Compare the next step with none before it: the harness, or an attempt's start, wrote."""
        self._settled: dict[str, torch.Tensor] = {}
        """Those that were the same objects twice: some rules make others in every step."""
        self._known: dict[str, torch.Tensor] = {}
        self._watched: Mapping[str, torch.Tensor] = {}
        self._tensors: list[torch.Tensor] = []
        """The watched ones."""
        self._versions: list[int] = []
        """After the newest step; empty: nothing to compare with."""

    def begin_block(self) -> OtherWrites | None:
        """Look for the tensors anew, before a block of steps.

        Returns:
            Tensors that were replaced by others since the block before.
        """
        if not self._versions:
            return None
        found = self._find()
        replaced = [name for name, tensor in self._settled.items() if found.get(name) is not tensor]
        settled = {name: tensor for name, tensor in found.items() if self._known.get(name) is tensor}
        if settled.keys() != self._settled.keys() or replaced:
            self._watch(settled)
        self._settled, self._known = settled, found
        return OtherWrites(replaced[0], len(replaced), 0, 0) if replaced else None

    def count(self) -> OtherWrites | None:
        """Take the versions after a step; return the tensors that were not written as often as in other steps."""
        if not self._versions:
            self._known = self._find()
            self._watch(self._known)
            return None
        before, self._versions = self._versions, [tensor._version for tensor in self._tensors]
        total, self._total = self._total, sum(self._versions)
        if self._total - total == self._usual_total:
            return None
        return self._compare([now - was for now, was in zip(self._versions, before, strict=True)])

    def _compare(self, writes: list[int]) -> OtherWrites | None:
        if not self._usual:
            self._usual = writes
        # A step may not use a parameter, and then its optimizer leaves it, and what is kept of it, alone.
        self._usual = [usual or (found if own else 0) for usual, found, own in zip(
            self._usual, writes, self._own, strict=True)]
        self._usual_total = sum(self._usual)
        other = [place for place, (found, usual) in enumerate(zip(writes, self._usual, strict=True))
                 if found not in (0, usual)]
        if not other:
            return None
        found, usual = (sum(counts[place] for place in other) for counts in (writes, self._usual))
        return OtherWrites([*self._watched][other[0]], len(other), found, usual)

    def _watch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        engines = {id(parameter) for parameter in self._model.parameters()} - {id(item) for item in self._stepped()}
        self._watched, self._tensors = tensors, [*tensors.values()]
        self._own = [id(tensor) not in engines for tensor in self._tensors]
        self._usual, self._usual_total = [], -1
        self._versions = [tensor._version for tensor in self._tensors]
        self._total = sum(self._versions)

    def _find(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's parameters, what it keeps of each, and the model's parameters, by name."""
        import torch

        found: dict[str, torch.Tensor] = {name: parameter for name, parameter in self._model.named_parameters()
                                          if parameter.requires_grad}
        known = {id(parameter): name for name, parameter in found.items()}
        for place, parameter in enumerate(self._stepped()):
            name = known.get(id(parameter), f"{FLAT}{place}")
            found[name] = parameter
            kept = self._optimizer.state.get(parameter, {})
            found |= {f"{key} of {name}": value for key, value in kept.items() if isinstance(value, torch.Tensor)}
        return found

    def _stepped(self) -> list[torch.Tensor]:
        """Return the optimizer's parameters."""
        # DeepSpeed empties the groups between two steps.
        return [*{id(item): item for item in (*self._optimizer.state, *(
            item for group in self._optimizer.param_groups for item in group["params"]))}.values()]


FLAT = "flat parameter "
"""Name of an engine's tensor of many parameters, before its number."""


def option_numbers(optimizer: torch.optim.Optimizer, rule: Optimizer) -> dict[str, float]:
    """Return the options of a rule that are numbers, by name and group, as the optimizer has them; not the rate, which
    changes, nor what else a class keeps in its groups."""
    renamed: Mapping[str, str] = getattr(rule, "names", {})
    names, found = {renamed.get(name, name) for name, _ in rule} - {"lr"}, dict[str, float]()
    for place, group in enumerate(optimizer.param_groups):
        of_group = f" of group {place + 1}" if place else ""
        for name in sorted(names & group.keys()):
            values = group[name] if isinstance(group[name], tuple | list) else [group[name]]
            found |= {f"{name}{f'[{index}]' if len(values) > 1 else ''}{of_group}": float(number)
                      for index, number in enumerate(values) if isinstance(number, int | float)}
    return found
