"""The update of a kept step: what the optimizer steps and keeps may change in the optimizer's own steps only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from repro.record.log.facts import NoteKind
from repro.worker.ledger.writes import Others, Writes

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class UpdateWatch:
    """Compares values within a kept step, by torch's hooks on one optimizer.

    Args:
        optimizer: of the trial; None, or that of a plug-in without hooks: nothing is seen.
        writes: gives its tensors; None: they are not compared.
        note: takes what contradicts the ledger: a kind, the numbers found and wanted, and the tensors.
    """

    def __init__(
        self, optimizer: Any, writes: Writes | None, note: Callable[[NoteKind, float, float, Others | None], None]
    ) -> None:
        self._optimizer, self._writes, self._note = optimizer, writes, note
        self._held = False
        """The values of this step are compared."""
        self._handles: list[RemovableHandle] = []

    def begin(self) -> None:
        """Look at the values before a step in which they are compared; off the clock, as all of this."""
        self._held = True
        self._hold()

    def begin_update(self, paused: Callable[[], AbstractContextManager[None]], read: Callable[[], None]) -> None:
        """Look into the optimizer's steps from now on.

        Args:
            paused: returns a context whose time is not the step's.
            read: called before each of them; an update may have several.
        """
        def before(_: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
            with paused():
                read()
                self._compare()
                if any(map(callable, (*args, *named.values()))):
                    self._note("closure", 0, 0, None)

        def after(*_: Any) -> None:
            with paused():
                self._hold()

        if hasattr(self._optimizer, "register_step_pre_hook"):
            first = self._optimizer.register_step_post_hook(after)
            self._optimizer._optimizer_step_post_hooks.move_to_end(first.id, last=False)  # before those of others
            self._handles = [self._optimizer.register_step_pre_hook(before), first]

    def end(self, updates: int) -> None:
        """Compare once more, behind the step.

        Args:
            updates: how often it called `Session.update`.
        """
        if updates != 1:
            self._note("own step", updates, 1, None)
        self._compare()
        self._held = False
        self.close()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hold(self) -> None:
        if self._held and self._writes is not None:
            self._writes.hold()

    def _compare(self) -> None:
        if self._held and self._writes is not None and (changed := self._writes.changed()) is not None:
            self._note("changed", 0, 0, changed)
