"""One step as the model, the loss and the optimizer saw it, beside the batches that were dealt to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from repro.record.log.facts import Cause
from repro.seams.training import Batch
from repro.seams.workload import tensors_in

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class KeptBatches:
    """The batches dealt to one step, and those that the model and the loss saw."""

    step: int
    dealt: Sequence[Batch]
    inputs: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    versions: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    """Of the tensors that were dealt or seen, and how often each was changed until then."""
    as_dealt: bool = True
    """Every call saw the dealt objects and nothing beside them, so no value need be compared."""

    def keep(self, seen: list[Any], call: Any, *, dealt: bool) -> None:
        """Keep what a call saw.

        Args:
            dealt: it is the object dealt to this call, and nothing beside it.
        """
        seen.append(call)
        if not dealt:
            self.as_dealt = False
            self.note_versions(call)

    def others(self) -> Iterator[tuple[Literal["inputs", "targets"], Unlike]]:
        """Yield which of both were not those dealt, and how; a model, or a loss, that was never called is not watched.
        """
        counts = (0, len(self.dealt))
        if self.as_dealt and len(self.inputs) in counts and len(self.targets) in counts:
            return
        inputs, targets = zip(*self.dealt, strict=True)
        if self.inputs and not same_tensors(self.inputs, inputs):
            yield "inputs", unlike(self.inputs, inputs)
        if self.targets and not same_tensors(self.targets, targets):
            yield "targets", unlike(self.targets, targets)

    def forget_seen(self) -> None:
        if not self.as_dealt:
            self.versions = self.versions[:sum(1 for _ in tensors_in(self.dealt))]
        self.inputs, self.targets = [], []

    def note_versions(self, call: Any) -> None:
        self.versions += [(tensor, tensor._version) for tensor in tensors_in(call)]

    def changed(self) -> Iterator[Literal["inputs", "targets"]]:
        """Yield which of the dealt tensors something has changed in place."""
        other = {id(tensor) for tensor, version in self.versions if tensor._version != version}
        for kind, dealt in zip(("inputs", "targets"), zip(*self.dealt, strict=True), strict=True):
            if any(id(tensor) in other for tensor in tensors_in(dealt)):
                yield kind  # type: ignore[misc]  # a literal

    @property
    def was_changed(self) -> bool:
        """A model or a loss changed tensors in place after they were kept, so nothing can be compared."""
        return any(tensor._version != version for tensor, version in self.versions)


@dataclass(slots=True)
class Step:
    """One step: what its engine was dealt, and what the hooks have seen of it."""

    number: int = 0
    batches: Sequence[Batch] = ()
    rate: float = 0.0
    rate_before: float = 0.0
    inside: bool = False
    """It has begun and not ended."""
    kept: KeptBatches | None = None
    calls: int = 0
    """Of the model."""
    losses: int = 0
    """Calls of the loss."""
    forwarded: int = 0
    """Samples."""
    lost: int = 0
    """Samples of which a loss was computed."""
    updates: int = 0


def same_tensors(seen: Collection[Any], dealt: Collection[Any]) -> bool:
    """Return whether the tensors seen are those dealt, rounded to the type in which they were seen; several calls may
    be one, and one several, if all have the same samples in the same order."""
    import torch

    ours, theirs = ([[*tensors_in(call)] for call in found] for found in (seen, dealt))
    if len(ours) != len(theirs):
        ours, theirs = _joined(ours), _joined(theirs)
    return [len(call) for call in ours] == [len(call) for call in theirs] and all(
        one is other or (one.shape == other.shape and torch.equal(*map(torch.nan_to_num, (one, other.to(one)))))
        for call, mate in zip(ours, theirs, strict=True) for one, other in zip(call, mate, strict=True))


class Unlike(NamedTuple):
    """The difference between tensors that were seen and those dealt."""

    cause: Cause = ""
    found: float = 0.0
    """The factor ("multiple"), or the samples that differ ("some")."""
    wanted: float = 0.0
    """All samples ("some")."""


def unlike(seen: Collection[Any], dealt: Collection[Any]) -> Unlike:
    """Return the difference of the first tensor that is not the same in the calls seen and in those dealt."""
    with suppress(Exception):  # what it is like is no part of whether it differs
        ours, theirs = (_joined([[*tensors_in(call)] for call in found])[0] for found in (seen, dealt))
        if len(ours) == len(theirs):
            return next((_unlike(one, other) for one, other in zip(ours, theirs, strict=True)
                         if one.shape != other.shape or not same_tensors([one], [other])), Unlike())
    return Unlike()


def _unlike(seen: torch.Tensor, dealt: torch.Tensor) -> Unlike:
    import torch

    if seen.shape != dealt.shape:
        return Unlike("shape")
    if not seen.ndim:
        return Unlike()
    one, other = (tensor.detach().cpu().reshape(len(tensor), -1) for tensor in (seen, dealt.to(seen)))
    if one.is_floating_point() and torch.equal(one, other.bfloat16().to(one)):
        return Unlike("narrow")
    wide, right = one.double(), other.double()
    factor = float((wide * right).sum() / (right * right).sum().clamp_min(1e-300))
    left = float((wide - factor * right).norm())
    if one.is_floating_point() and factor and one.numel() >= LEAST and left < 1e-3 * float((wide - right).norm()):
        return Unlike("multiple", factor)
    rows, known = ([row.tobytes() for row in tensor.float().numpy()] for tensor in (one, other))
    if len(set(known)) == len(known):  # alike ones, as of labels, would fit by chance
        if Counter(rows) == Counter(known):
            return Unlike("order")
        if set(rows) < set(known):
            return Unlike("repeated")
    return Unlike("some", sum(row != right_row for row, right_row in zip(rows, known, strict=True)), len(rows))


LEAST = 8
"""Numbers from which on they are no multiple by chance."""


def _joined(calls: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Return calls as one call, whose tensors have the samples of all; as they are if they cannot be joined."""
    import torch

    try:
        return [[torch.cat(tensors) for tensors in zip(*calls, strict=True)]]
    except (RuntimeError, ValueError):  # unlike shapes, or numbers of tensors
        return [[*call] for call in calls]
