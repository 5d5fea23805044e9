"""Writes into the weights, and into what the optimizer keeps of them, beside its own.

Every operation in place raises the version of its tensor, and all steps of an optimizer write alike often into one. So
a reading after a block of steps shows, without a look at a value, whether anything else wrote into it in one of them.
What is written through `tensor.data` raises no version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from repro.seams.training import Optimizer

if TYPE_CHECKING:
    import torch


class OtherWrites(NamedTuple):
    """Tensors that were written more often in a block than its updates write, or replaced."""

    name: str
    """Of the first one."""
    tensors: int
    found: int
    """Writes into all of them."""
    wanted: int


class _Watched(NamedTuple):
    """One tensor, and how often it had been written at the newest reading."""

    tensor: torch.Tensor
    version: int
    own: bool
    """The optimizer steps or keeps it; False: an engine's copy for the forward pass, written in every step."""
    usual: int = 0
    """Writes of a step."""


FLAT = "flat parameter "
"""Name of an engine's tensor of many parameters, before its number."""


class Writes:
    """Counts the writes into the tensors of one optimizer.

    Args:
        model: gives the parameters their names; its trained parameters are watched, too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._watched: dict[str, _Watched] = {}
        self.learning = True
        """`learn` is to be called after each step."""

    def forget(self) -> None:
        """Keep no tensor, and count from the next step on."""
        self._watched, self.learning = {}, True

    def learn(self, *, updated: bool) -> None:
        """Read the versions after a step; from two steps with an update, one after another, follows what is usual.

        A tensor that the second one replaced, or that the optimizer did not use in it, is not watched.
        """
        before, self._watched = self._watched, self._find() if updated else {}
        if before and updated:
            found = {name: new._replace(usual=new.version - old.version) for name, new in self._watched.items()
                     if (old := before.get(name)) is not None and old.tensor is new.tensor}
            self._watched = {name: item for name, item in found.items() if item.usual or not item.own}
            self.learning = False

    def begin_again(self) -> None:
        """Take the versions as they are: something that may write did."""
        self._watched = {name: item._replace(version=item.tensor._version) for name, item in self._watched.items()}

    def replaced(self) -> OtherWrites | None:
        """Return the tensors that others have replaced; they are watched no longer."""
        if self.learning:
            return None
        now = self._find()
        names = [name for name, item in self._watched.items() if name not in now or now[name].tensor is not item.tensor]
        for name in names:
            del self._watched[name]
        return OtherWrites(names[0], len(names), 0, 0) if names else None

    def others(self, steps: int, updates: int) -> OtherWrites | None:
        """Return the tensors that were written more often since the newest reading than these steps write."""
        before = self._watched
        self.begin_again()
        found = {name: (item.version - old.version, old.usual * (updates if old.own else steps))
                 for (name, item), old in zip(self._watched.items(), before.values(), strict=True)
                 if _is_other(old, item.version - old.version, steps, updates)}
        if not found:
            return None
        return OtherWrites(next(iter(found)), len(found), *map(sum, zip(*found.values(), strict=True)))

    def _find(self) -> dict[str, _Watched]:
        """Return the model's parameters, the optimizer's, and what it keeps of each, by name."""
        import torch

        parameters = {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        names = {id(parameter): name for name, parameter in parameters.items()}
        # DeepSpeed empties the groups between two steps.
        stepped = {id(item): item for item in (*self._optimizer.state, *(
            item for group in self._optimizer.param_groups for item in group["params"]))}
        found = {name: _Watched(item, item._version, own=id(item) in stepped) for name, item in parameters.items()}
        for place, (key, parameter) in enumerate(stepped.items()):
            name = names.get(key, f"{FLAT}{place}")
            kept = {f"{what} of {name}": value for what, value in self._optimizer.state.get(parameter, {}).items()
                    if isinstance(value, torch.Tensor)}
            found |= {each: _Watched(value, value._version, own=True)
                      for each, value in ({name: parameter} | kept).items()}
        return found


def _is_other(item: _Watched, found: int, steps: int, updates: int) -> bool:
    """Return whether so many writes are others. Fewer are not: a step may leave a parameter, and what is kept of it,
    alone."""
    most = item.usual * (updates if item.own else steps)
    return found > most or bool(found and found % item.usual)


class GroupOptions(NamedTuple):
    """The options of the update rule that one group of an optimizer had at the start."""

    read: Callable[[Mapping[str, Any]], Any]
    """Returns them of a group as it is now."""
    values: Any
    numbers: Mapping[str, float]

    def other(self, group: Mapping[str, Any]) -> tuple[str, float, float]:
        """Return the name of the first number that differs, the one found and the one wanted."""
        now = _numbers(group, group.keys())
        return next(((name, now[name], wanted) for name, wanted in self.numbers.items()
                     if now.get(name, wanted) != wanted), ("options", 0.0, 0.0))


def options_of_groups(optimizer: torch.optim.Optimizer, rule: Optimizer) -> list[GroupOptions]:
    """Return the options of a rule as the optimizer's groups have them now; not the rate, which changes, nor what else
    a class keeps in its groups."""
    renamed, fixed = (getattr(rule, name, {}) for name in ("names", "fixed"))
    names, found = {*(renamed.get(name, name) for name, _ in rule), *fixed} - {"lr"}, list[GroupOptions]()
    for group in optimizer.param_groups:
        if own := sorted({name.partition("[")[0] for name in _numbers(group, names & group.keys())}):
            read = itemgetter(*own)
            found.append(GroupOptions(read, read(group), _numbers(group, own)))
    return found


def _numbers(group: Mapping[str, Any], names: Collection[str]) -> dict[str, float]:
    found = dict[str, float]()
    for name in sorted(names):
        values = group[name] if isinstance(group[name], tuple | list) else [group[name]]
        found |= {f"{name}{f'[{index}]' if len(values) > 1 else ''}": float(number)
                  for index, number in enumerate(values) if isinstance(number, int | float)}
    return found
