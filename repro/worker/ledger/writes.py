"""Writes into the weights, and into what the optimizer keeps of them, beside its own; options that change.

Every operation in place raises the version of its tensor, and all steps of an optimizer write alike often into one. So
a reading after a block of steps shows, without a look at a value, whether anything else wrote into it in one of them.
What is written through `tensor.data` raises no version; in kept steps values are compared, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Others(NamedTuple):
    """Tensors that were written more often in a block than its steps write, or that were replaced; or an option."""

    name: str
    """Of the option, or of the first tensor."""
    tensors: int = 1
    found: float = 0.0
    """Writes into all of the tensors; the option."""
    wanted: float = 0.0


@dataclass(slots=True)
class _Watched:
    """One tensor, and how often it had been written at the newest reading."""

    name: str
    tensor: torch.Tensor
    own: bool
    """The optimizer steps or keeps it; False: an engine's copy for the forward pass."""
    local: torch.Tensor | None = field(init=False)
    """The part of a divided tensor (`DTensor`) on this rank."""
    version: int = field(init=False)
    usual: int = field(default=0, init=False)
    """Writes of a step; 0: not known yet, or none."""

    def __post_init__(self) -> None:
        self.local = getattr(self.tensor, "_local_tensor", None)
        self.version = self.read()

    def read(self) -> int:
        """Return how often it was written in place."""
        return self.tensor._version + (self.local._version if self.local is not None else 0)


LEARNED = 3
"""Steps with an update, one after another, that tell how often a step writes: one may have another write in it."""
STEPPED = "stepped tensor "
"""Name of a tensor that the optimizer steps in place of parameters of the model, before its number."""


class Writes:
    """Counts the writes into the tensors of one optimizer.

    Args:
        model: gives the parameters their names; its trained parameters are watched, too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._watched: list[_Watched] = []
        self._left = LEARNED
        self._values: list[tuple[_Watched, int]] = []
        """Sums of their bits, within one step."""

    @property
    def learning(self) -> bool:
        """`learn` is to be called after each step."""
        return self._left > 0

    def forget(self) -> None:
        """Keep no tensor."""
        self._watched, self._left = [], LEARNED

    def learn(self, *, updated: bool) -> None:
        """Read the versions after a step.

        What another tensor takes the place of meanwhile is not watched, nor what the optimizer does not use.
        """
        if not updated:
            self.forget()
            return
        found = self._find([*self._model.named_parameters()])
        if self._left < LEARNED:
            kept = {id(item.tensor): item for item in self._watched}
            found = [item for item in found if id(item.tensor) in kept]
            for item in found:
                before = kept[id(item.tensor)]
                writes = item.version - before.version
                item.usual = min(before.usual, writes) if before.usual and writes else before.usual or writes
        self._watched, self._left = found, self._left - 1
        if not self._left:
            self._watched = [item for item in found if item.usual or not item.own]

    def begin_again(self) -> None:
        """Take the versions as they are: a forward pass of an evaluation may write."""
        for item in self._watched:
            item.version = item.read()

    def replaced(self) -> Others | None:
        """Return the tensors that others have taken the place of; they are watched no longer."""
        named = [*self._model.named_parameters()]
        now = {id(item.tensor) for item in self._find(named)} | {id(item) for _, item in named}
        gone = [item for item in self._watched if id(item.tensor) not in now]
        self._watched = [item for item in self._watched if id(item.tensor) in now]
        return Others(gone[0].name, len(gone)) if gone else None

    def others(self, steps: int) -> Others | None:
        """Return the tensors that were written more often since the newest reading than so many steps write."""
        more = list[tuple[str, int, int]]()
        for item in self._watched:
            writes, most, item.version = (now := item.read()) - item.version, item.usual * steps, now
            if writes > most:  # fewer are none: a step may leave a parameter, and what is kept of it, alone
                more.append((item.name, writes, most))
        if not more:
            return None
        return Others(more[0][0], len(more), sum(writes for _, writes, _ in more), sum(most for *_, most in more))

    def hold(self) -> None:
        """Add up what the optimizer steps and keeps, for `changed`."""
        self._values = [(item, _sum_of_bits(item.tensor)) for item in self._watched if item.own]

    def changed(self) -> Others | None:
        """Return the tensors that are other ones since `hold`, by whichever way they were written."""
        found = [item.name for item, bits in self._values if _sum_of_bits(item.tensor) != bits]
        return Others(found[0], len(found)) if found else None

    def _find(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[_Watched]:
        """Return the model's trained parameters, the optimizer's, and what it keeps of each.

        Args:
            named: the parameters of the model: a walk through its modules costs more than all else here.
        """
        import torch

        names = {id(parameter): name for name, parameter in named}
        # DeepSpeed empties the groups between two steps; some rules keep other things beside what they keep of tensors.
        kept = {item: state for item, state in self._optimizer.state.items() if isinstance(item, torch.Tensor)}
        stepped = {id(item): item for item in (*kept, *(
            item for group in self._optimizer.param_groups for item in group["params"]))}
        found = [_Watched(name, item, own=False)
                 for name, item in named if item.requires_grad and id(item) not in stepped]
        for place, (key, parameter) in enumerate(stepped.items()):
            name, state = names.get(key, f"{STEPPED}{place}"), kept.get(parameter)
            found.append(_Watched(name, parameter, own=True))
            found += [_Watched(f"{what} of {name}", value, own=True)
                      for what, value in (state.items() if isinstance(state, Mapping) else ())
                      if isinstance(value, torch.Tensor)]
        return found


class GroupOptions(NamedTuple):
    """The options of the update rule that one group of an optimizer had at the start."""

    group: dict[str, Any]
    read: Callable[[Mapping[str, Any]], Any]
    """Returns them of a group as it is now."""
    values: Any
    numbers: Mapping[str, float]

    def other(self) -> Others:
        """Return the first number that differs."""
        now = _numbers(self.group, self.group.keys())
        return next((Others(name, 1, now[name], wanted) for name, wanted in self.numbers.items()
                     if now.get(name, wanted) != wanted), Others("options"))


def options_of_groups(optimizer: torch.optim.Optimizer) -> dict[int, GroupOptions]:
    """Return the options of the optimizer's groups now, by identity, because DeepSpeed steps one group at a time; not
    the rate, which changes, nor what counts their steps."""
    from repro.engines.plain.state import NOT_OPTIONS, PROGRESS

    found = dict[int, GroupOptions]()
    for group in getattr(optimizer, "param_groups", ()):  # an engine of a plug-in may have another kind
        numbers = _numbers(group, group.keys() - {*NOT_OPTIONS, *PROGRESS})
        if own := sorted({name.partition("[")[0] for name in numbers}):
            read = itemgetter(*own)
            found[id(group)] = GroupOptions(group, read, read(group), numbers)
    return found


def _numbers(group: Mapping[str, Any], names: Collection[str]) -> dict[str, float]:
    found = dict[str, float]()
    for name in sorted(names):
        values = group[name] if isinstance(group[name], tuple | list) else [group[name]]
        found |= {f"{name}{f'[{index}]' if len(values) > 1 else ''}": float(number)
                  for index, number in enumerate(values) if isinstance(number, int | float)}
    return found


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor, dense."""
    mine = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return mine.detach().to_dense() if mine.is_sparse else mine.detach()


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Return the sum of a tensor's elements, each read as an integer of its size: a copy would need memory of a device
    whose largest use is a figure of the trial."""
    import torch

    mine = local(tensor)
    return int(mine.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[mine.element_size()]).sum())
