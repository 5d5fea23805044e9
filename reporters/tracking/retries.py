"""Retries after failures of a tracking store, with growing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from repro.core.errors import TrackingError

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds; each pause is up to twice the last one, randomly shortened so that several runs do not retry together."""


class TransientError(TrackingError):
    """A failure that may be over soon: a restarting server, a busy database, too many requests."""

    def __init__(self, text: str, unreachable: bool = False) -> None:
        """`unreachable`: no answer came, not even a refusal."""
        super().__init__(text)
        self.unreachable = unreachable


@dataclass(slots=True)
class RequestTally:
    """The answers of a store, counted over all connections of one reporter."""

    taken: int = 0
    """Confirmed changes."""
    contacts: int = 0
    """Connections with an answer to the first request."""
    doubt: bool = False
    """True if a run was requested and no answer came: the store may have one more than is known."""
    listener: Callable[[int], None] | None = None
    """Called with `taken` whenever it grows."""

    def count(self) -> None:
        """Count one confirmed change."""
        self.taken += 1
        if self.listener:
            self.listener(self.taken)


@dataclass(slots=True)
class Backoff:
    """The pauses while a store fails; every confirmed change restarts the count of `seconds`."""

    seconds: float
    tally: RequestTally
    _initial: tuple[int, int] = field(init=False)
    _taken: int = field(init=False)
    _since: float = field(default=-1.0, init=False)
    _pause: float = field(default=FIRST_PAUSE, init=False)

    def __post_init__(self) -> None:
        self._initial, self._taken = (self.tally.contacts, self.tally.taken), self.tally.taken

    def pause(self, error: TrackingError) -> float | None:
        """Return the seconds until the next attempt; None: give up.

        A store that never answered is given up at once: the user waits for that message.
        """
        met = (self.tally.contacts, self.tally.taken) != self._initial
        if not isinstance(error, TransientError) or (error.unreachable and not met):
            return None
        if self.tally.taken > self._taken or self._since < 0:
            self._since, self._pause, self._taken = time.monotonic(), FIRST_PAUSE, self.tally.taken
        left = self._since + self.seconds - time.monotonic()
        if left <= 0:
            return None
        pause = min(self._pause * random.uniform(0.5, 1.0), left)  # neither a secret nor a result
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return pause
