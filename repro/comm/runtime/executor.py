"""Run a compiled program over a flat tensor on a wire."""

from __future__ import annotations

from collections.abc import Callable

import torch

from repro.comm.runtime.program import Do, Program
from repro.comm.runtime.wire import Pending, Wire

Reduce = Callable[[torch.Tensor, torch.Tensor], object]
"""(mine, received): reduce `received` into `mine`."""

REDUCTIONS: dict[str, Reduce] = {
    "sum": lambda mine, received: mine.add_(received),
    "avg": lambda mine, received: mine.add_(received),
    "product": lambda mine, received: mine.mul_(received),
    "max": lambda mine, received: torch.maximum(mine, received, out=mine),
    "min": lambda mine, received: torch.minimum(mine, received, out=mine),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)


class LinkBroken(Exception):
    """The link to `peer` failed or timed out."""

    def __init__(self, peer: int, cause: BaseException) -> None:
        super().__init__(f"link to rank {peer}: {cause}")
        self.peer, self.cause = peer, cause


def execute(program: Program, flat: torch.Tensor, wire: Wire, reduce: Reduce) -> None:
    """Run one rank's part of a collective.

    Raises:
        LinkBroken: a message could not be sent or did not arrive; names the rank at the other end.
    """
    slots = torch.split(wire.scratch(program.slots * program.slot_elements, flat), max(1, program.slot_elements))
    pending: list[Pending | None] = [None] * program.messages
    peer = wire.rank
    try:
        for do, index, peer, start, stop, slot in program.instructions:
            if do == Do.SEND:
                pending[index] = wire.send(flat[start:stop], peer)
            elif do == Do.POST_SCRATCH:
                pending[index] = wire.recv(slots[slot][:stop - start], peer)
            elif do == Do.POST:
                pending[index] = wire.recv(flat[start:stop], peer)
            else:
                pending[index].wait()  # type: ignore[union-attr]
                if do == Do.ADD:
                    reduce(flat[start:stop], slots[slot][:stop - start])
    except (RuntimeError, TimeoutError) as error:
        raise LinkBroken(peer, error) from error
