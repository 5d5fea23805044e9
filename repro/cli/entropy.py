"""Numbers drawn for a run: the only place where the random numbers of an experiment come from outside."""

from __future__ import annotations

import os

FRESH_BYTES = 6
"""Of a seed: no two runs share one by chance, and it stays exact in JavaScript, which has 53 bits."""


def fresh_seed() -> int:
    """Return a number that no earlier run had, from the entropy of the operating system."""
    return int.from_bytes(os.urandom(FRESH_BYTES), "big")
