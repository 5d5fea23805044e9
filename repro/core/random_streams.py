"""Named random streams: each kind of random draw in a trial has a generator seeded by master seed and repeat."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

import numpy as np

SEEDS_BELOW = 1 << 63
"""Master seeds are whole numbers from 0 up to this one."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Random streams of one repeat.

    Two trials with the same `master_seed` and `repeat` draw the same numbers from a stream of the same name, for any
    engine, world size and precision. A stream is a `numpy.random.SeedSequence` whose entropy is the master seed
    and whose spawn key is (repeat, crc32(name), *keys), so streams never overlap and never depend on the order of use.
    """

    master_seed: int
    repeat: int

    def sequence(self, name: str, *keys: int) -> np.random.SeedSequence:
        """Return the seed sequence of stream `name`, split further by `keys` (an epoch, a rank)."""
        return np.random.SeedSequence(
            entropy=self.master_seed, spawn_key=(self.repeat, zlib.crc32(name.encode()), *keys)
        )

    def generator(self, name: str, *keys: int) -> np.random.Generator:
        """Return a new PCG64 generator at the start of stream `name`."""
        return np.random.default_rng(self.sequence(name, *keys))

    def seed(self, name: str, *keys: int) -> int:
        """Return a 63-bit integer, for libraries that take one number."""
        return int(self.sequence(name, *keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


FRESH_BYTES = 6
"""Of a seed: no two runs share one by chance, and it stays exact in JavaScript, which has 53 bits."""


def fresh_seed() -> int:
    """Return a number that no earlier run had, from the entropy of the operating system."""
    return int.from_bytes(os.urandom(FRESH_BYTES), "big")
