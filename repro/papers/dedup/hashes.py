"""Perceptual hashes of images by ImageHash, packed into words, and their Hamming distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from repro.papers.extra import imported
from repro.workloads.selected_data import HashKind

Words = NDArray[np.uint64]
"""[n, words]: one hash a row, its bits packed into 64-bit words, filled up with zeros."""
BLOCK = 512
"""Hashes that are compared with all others at once."""


def hash_images(images: NDArray[np.uint8], kind: HashKind, size: int) -> Words:
    """Return the hashes of grey [n, side, side] or colour [n, side, side, 3] images."""
    from PIL import Image

    imagehash = imported("ImageHash", "imagehash")

    make = {"ahash": imagehash.average_hash, "dhash": imagehash.dhash, "phash": imagehash.phash,
            "whash": imagehash.whash}[kind]
    bits = np.stack([make(Image.fromarray(image), hash_size=size).hash.ravel() for image in images])
    packed = np.packbits(bits, axis=1)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view("<u8").astype(np.uint64)


def distances(some: Words, others: Words) -> NDArray[np.uint16]:
    """Return the Hamming distances [len(some), len(others)]."""
    total = np.zeros((len(some), len(others)), np.uint16)
    for word in range(some.shape[1]):
        total += np.bitwise_count(some[:, word, None] ^ others[None, :, word])
    return total


def keep_first(hashes: Words, threshold: int) -> NDArray[np.int64]:
    """Return the rows that stay, ascending: a row is left out if an earlier one that stays is within `threshold`.

    So no two rows that stay are near, and every row left out is near one that stays; a chain of small steps does not
    pull far images together.
    """
    kept = np.zeros(len(hashes), dtype=bool)
    for start in range(0, len(hashes), BLOCK):
        block = hashes[start : start + BLOCK]
        free = ~near(block, hashes[:start][kept[:start]], threshold)
        within = distances(block, block) <= threshold
        for row in range(len(block)):
            if free[row]:
                kept[start + row] = True
                free[row + 1 :] &= ~within[row, row + 1 :]
    return np.flatnonzero(kept)


def near(some: Words, others: Words, threshold: int) -> NDArray[np.bool_]:
    """Return for each of `some` whether one of `others` is within `threshold` bits [len(some)]."""
    found = np.zeros(len(some), dtype=bool)
    for start in range(0, len(some), BLOCK):
        for place in range(0, len(others), 16 * BLOCK):
            part = distances(some[start : start + BLOCK], others[place : place + 16 * BLOCK])
            found[start : start + BLOCK] |= (part <= threshold).any(axis=1)
    return found
