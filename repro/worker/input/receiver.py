"""Receives batches from input workers in a thread, so that unpacking them takes no time of a step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
ASK_SECONDS = 0.1
CLOSE_SECONDS = 10.0
"""Longest wait at the end for a batch that is being read; a worker that hangs ends with its rank."""


class _End:
    """Nothing follows."""


class Receiver(Generic[Item]):
    """An iterator over `items` that has up to `room` of them at hand.

    To unpack a batch from another process takes torch some tenths of a millisecond per tensor, to compute the next keys
    some microseconds: both are done here while the main thread trains.
    """

    def __init__(self, items: Iterator[Item], room: int) -> None:
        self._items = items
        self._ready: queue.Queue[Item | Exception | _End] = queue.Queue(room)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="repro-input", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        """Return the next item, and raise what `items` raised in its place."""
        found = self._ready.get()
        if isinstance(found, _End):
            raise StopIteration
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the thread and let go of the items."""
        self._over.set()
        self._thread.join(CLOSE_SECONDS)

    def _receive(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    break
            else:
                self._put(_End())
        except Exception as error:  # belongs to the main thread, which is about to ask for this item
            self._put(error)
        del self._items

    def _put(self, item: Item | Exception | _End) -> bool:
        """Hand the item over when there is room; return False if the receiver was stopped."""
        while not self._over.is_set():
            try:
                self._ready.put(item, timeout=ASK_SECONDS)
            except queue.Full:
                continue
            return True
        return False
