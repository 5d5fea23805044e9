"""When a tracking store fails: what may pass is tried again after longer and longer pauses, what will not is said."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from repro.core.errors import TrackingError

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds; each pause is up to twice the last one, shortened by chance so that several runs do not ask in step."""


class TransientError(TrackingError):
    """A failure that may be over soon: a server that starts again, a database in use, too many requests."""

    def __init__(self, text: str, nobody: bool = False) -> None:
        """`nobody`: not even a refusal came, there was nobody to talk to."""
        super().__init__(text)
        self.nobody = nobody


@dataclass(slots=True)
class Tally:
    """What a store has answered to, counted over all connections of one reporter."""

    taken: int = 0
    """Changes that it has confirmed."""
    contacts: int = 0
    """Connections that began with an answer."""
    doubt: bool = False
    """A run was asked for and no answer came: there may be one more than is known."""
    told: Callable[[int], None] | None = None
    """Told `taken` whenever it grows."""

    def took(self) -> None:
        self.taken += 1
        if self.told:
            self.told(self.taken)


@dataclass(slots=True)
class Backoff:
    """How long a failing store is asked again without taking anything; whatever it takes starts the count anew."""

    seconds: float
    tally: Tally
    _begun: tuple[int, int] = field(init=False)
    _taken: int = field(init=False)
    _since: float = field(default=-1.0, init=False)
    _pause: float = field(default=FIRST_PAUSE, init=False)

    def __post_init__(self) -> None:
        self._begun, self._taken = (self.tally.contacts, self.tally.taken), self.tally.taken

    def pause(self, error: TrackingError) -> float | None:
        """Seconds until the next attempt; None: none is worth it.

        A store that was not there from the first is given up at once: somebody is waiting for that word.
        """
        met = (self.tally.contacts, self.tally.taken) != self._begun
        if not isinstance(error, TransientError) or (error.nobody and not met):
            return None
        if self.tally.taken > self._taken or self._since < 0:
            self._since, self._pause, self._taken = time.monotonic(), FIRST_PAUSE, self.tally.taken
        left = self._since + self.seconds - time.monotonic()
        if left <= 0:
            return None
        pause = min(self._pause * random.uniform(0.5, 1.0), left)  # no secret, no figure
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return pause
