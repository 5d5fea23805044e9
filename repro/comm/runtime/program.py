"""One rank's part of a schedule, compiled and executed: over gloo a list of instructions, over NCCL round after round.

Over gloo the order of posts, sends and waits is fixed by the compiler. NCCL's sends and receives block their stream
until the other side is there: all messages of a round go in one NCCL group, in which they progress together, and then
come the reductions, ordered by the stream. Both ends of a message are in the same round, so every group finds its
counterpart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import torch

from repro.comm.runtime.wire import LinkBroken, Message, Pending, Wire
from repro.comm.schedule import Transfer

SCRATCH_BYTES = 8 << 20
"""Memory for receives that are not added yet; more would not fit the caches, less would post receives late."""
MOST_SLOTS = 32
SENT_ROUNDS = 2
"""A send this many rounds old has in practice finished: waiting for it costs nothing."""
LAG_ROUNDS = 4
"""A receive this many rounds old has in practice arrived: it is finished, and its slot is used again."""
WINDOW_BYTES = 512 << 10
"""Most bytes of earlier rounds' sends that may be under way when a later round begins. Concurrent sends share the link,
so the send that a peer waits for would arrive as late as the last. Data in the kernel's buffers keep the link busy
meanwhile."""


class Do(IntEnum):
    """Kind of an instruction."""

    SEND = 0
    POST = 1
    """Start receiving into place."""
    POST_SCRATCH = 2
    """Start receiving into a slot of the scratch buffer."""
    WAIT = 3
    ADD = 4
    """Wait for a slot and reduce it into place."""


class Instruction(NamedTuple):
    """One step of the executor; `message` is the index of its message."""

    do: Do
    message: int
    peer: int
    start: int
    stop: int
    slot: int


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions of one rank for one collective of one size."""

    instructions: tuple[Instruction, ...]
    messages: int
    slot_elements: int
    slots: int


@dataclass(slots=True)
class _Message:
    """A transfer of this rank, and the messages that its data depend on."""

    transfer: Transfer
    sends: bool
    after: list[int] = field(default_factory=list)
    """Earlier messages on the same elements, to be finished before this one touches them."""
    issued: bool = False
    done: bool = False
    slot: int = 0

    @property
    def scratch(self) -> bool:
        return self.transfer.adds and not self.sends


def compile_program(transfers: Iterable[Transfer], rank: int, itemsize: int) -> Program:
    """Compile a rank's sends and receives into an ordered program.

    1. Messages in order of round, sends first; for each element, note the earlier messages that touch it.
    2. In this order: a send first finishes the receives it forwards, and sends of earlier rounds until no more than
       WINDOW_BYTES of them are under way; receives are posted ahead as far as scratch slots and finished sends allow,
       always in order, because a link delivers in order, and before the sends of the same round.
    3. Finish the rest.

    Waiting only for messages of earlier rounds, after all sends of the round, cannot deadlock: by induction over rounds
    every peer reaches the same round.
    """
    mine = [item for item in transfers if rank in (item.source, item.target) and item.start < item.stop]
    mine.sort(key=lambda item: (item.round, item.source != rank))
    compiler = _Compiler([_Message(item, item.source == rank) for item in mine], itemsize)
    return compiler.run()


class _Compiler:
    def __init__(self, messages: list[_Message], itemsize: int) -> None:
        self.messages = messages
        self.code: list[Instruction] = []
        sizes = [item.transfer.stop - item.transfer.start for item in messages if item.scratch]
        self.slot_elements = max(sizes, default=0)
        room = SCRATCH_BYTES // max(1, self.slot_elements * itemsize)
        self.slots = min(max(1, room), MOST_SLOTS, len(sizes)) if sizes else 0
        self.holders: list[int | None] = [None] * self.slots
        self.turn = 0
        self.receives = [index for index, item in enumerate(messages) if not item.sends]
        self.posted = self.behind = 0
        self.itemsize = itemsize
        self.under_way: deque[int] = deque()
        """Sends that have not been waited for, oldest first."""

    def run(self) -> Program:
        # 1. dependencies
        self._depend()
        # 2. in order, receives ahead
        for index, message in enumerate(self.messages):
            self._catch_up(message.transfer.round)
            if message.sends:
                # Receives are announced first: behind data for the same rank the announcement would wait, and two ranks
                # that exchange data would take turns.
                self._post_ahead(message.transfer.round)
                self._finish_all([at for at in message.after if not self.messages[at].sends])
                self._make_way(message.transfer.round)
                self._emit(Do.SEND, index)
                message.issued = True
                self.under_way.append(index)
            else:
                while self.posted < len(self.receives) and self.receives[self.posted] <= index:
                    self._post(self.receives[self.posted])  # waits if necessary
            self._post_ahead(message.transfer.round)
        # 3. the rest
        for index in range(len(self.messages)):
            self._finish(index)
        return Program(tuple(self.code), len(self.messages), self.slot_elements, self.slots)

    def _depend(self) -> None:
        edges = sorted({edge for item in self.messages for edge in (item.transfer.start, item.transfer.stop)})
        readers: list[list[int]] = [[] for _ in edges]
        writer: list[int | None] = [None for _ in edges]
        for index, message in enumerate(self.messages):
            after: set[int] = set()
            item = message.transfer
            for cell in range(bisect_left(edges, item.start), bisect_left(edges, item.stop)):
                last = writer[cell]
                if last is not None:
                    after.add(last)
                if message.sends:
                    readers[cell].append(index)
                else:
                    after.update(readers[cell])
                    readers[cell], writer[cell] = [], index
            message.after = sorted(after)

    def _catch_up(self, round_: int) -> None:
        """Finish receives that are LAG_ROUNDS old, so that their slots can be posted again."""
        while self.behind < self.posted:
            index = self.receives[self.behind]
            if self.messages[index].transfer.round > round_ - LAG_ROUNDS:
                return
            self._finish(index)
            self.behind += 1

    def _make_way(self, round_: int) -> None:
        """Wait for sends of rounds before this one, oldest first, until the window has room."""
        self.under_way = deque(at for at in self.under_way if not self.messages[at].done)
        earlier = [at for at in self.under_way if self.messages[at].transfer.round < round_]
        held = sum(self._bytes(at) for at in earlier)
        for index in earlier:
            if held <= WINDOW_BYTES:
                return
            self._finish(index)
            held -= self._bytes(index)

    def _bytes(self, index: int) -> int:
        item = self.messages[index].transfer
        return (item.stop - item.start) * self.itemsize

    def _emit(self, do: Do, index: int) -> None:
        message = self.messages[index]
        item = message.transfer
        peer = item.target if message.sends else item.source
        self.code.append(Instruction(do, index, peer, item.start, item.stop, message.slot))

    def _finish(self, index: int) -> None:
        message = self.messages[index]
        if message.done:
            return
        if message.scratch:
            # Adding writes in place: earlier reads and writes there finish first, so the order of sums never changes.
            self._finish_all(message.after)
        message.done = True
        self._emit(Do.ADD if message.scratch else Do.WAIT, index)

    def _finish_all(self, indices: list[int]) -> None:
        for index in indices:
            self._finish(index)

    def _post_ahead(self, round_: int) -> None:
        """Post further receives as long as none requires a wait."""
        while self.posted < len(self.receives):
            index = self.receives[self.posted]
            message = self.messages[index]
            if message.scratch:
                holder = self.holders[self.turn]
                if holder is not None and not self.messages[holder].done:
                    return
            elif not all(self._has_left(at, round_) for at in message.after):
                return
            self._post(index)

    def _has_left(self, index: int, round_: int) -> bool:
        message = self.messages[index]
        old = message.transfer.round <= round_ - SENT_ROUNDS
        return message.done or (message.sends and message.issued and old)

    def _post(self, index: int) -> None:
        message = self.messages[index]
        self.posted += 1
        message.issued = True
        if message.scratch:
            holder = self.holders[self.turn]
            if holder is not None:
                self._finish(holder)
            message.slot, self.holders[self.turn] = self.turn, index
            self.turn = (self.turn + 1) % self.slots
            self._emit(Do.POST_SCRATCH, index)
        else:
            self._finish_all(message.after)
            self._emit(Do.POST, index)


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


Rounds = tuple[tuple[Transfer, ...], ...]


def own_rounds(transfers: Iterable[Transfer], rank: int) -> Rounds:
    """Return the transfers of `rank`, grouped by round."""
    mine = [item for item in transfers if rank in (item.source, item.target) and item.start < item.stop]
    mine.sort(key=lambda item: item.round)
    return tuple(tuple(group) for _, group in groupby(mine, key=lambda item: item.round))


def execute_rounds(rounds: Rounds, flat: torch.Tensor, wire: Wire, reduce: Reduce) -> None:
    """Run one rank's part of a collective.

    Raises:
        LinkBroken: the messages of a round failed; names one of the other ends.
    """
    for items in rounds:
        room = wire.scratch(sum(item.stop - item.start for item in items if _adds(item, wire.rank)), flat)
        messages: list[Message] = []
        adds: list[tuple[torch.Tensor, torch.Tensor]] = []
        for item in items:
            place, sends = flat[item.start:item.stop], item.source == wire.rank
            if _adds(item, wire.rank):
                received, room = room[:place.numel()], room[place.numel():]
                adds.append((place, received))
            messages.append(Message(received if _adds(item, wire.rank) else place,
                                    item.target if sends else item.source, sends))
        try:
            wire.exchange(messages)
        except (RuntimeError, TimeoutError) as error:
            raise LinkBroken(messages[0].peer, error) from error
        for place, received in adds:
            reduce(place, received)


def _adds(item: Transfer, rank: int) -> bool:
    return item.adds and item.target == rank
