"""The training images that stay: found once for each data set and setting, and kept in the store of prepared data.

Hashing and comparing happen before any clock runs; a trial reads the rows and checks them against the plan.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from repro.core.errors import TrialError
from repro.core.files import write_bytes
from repro.core.random_streams import Streams
from repro.papers.extra import imported, require
from repro.workloads.data.manifest import store
from repro.workloads.selected_data import Dedup, HashKind, Images, Selected, rows_sha256

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
    """Return a mask [len(some)]: True where one of `others` is within `threshold` bits."""
    found = np.zeros(len(some), dtype=bool)
    for start in range(0, len(some), BLOCK):
        for place in range(0, len(others), 16 * BLOCK):
            part = distances(some[start : start + BLOCK], others[place : place + 16 * BLOCK])
            found[start : start + BLOCK] |= (part <= threshold).any(axis=1)
    return found


FOLDER = "duplicates"


def select(dedup: Dedup, images: Images) -> Selected:
    """Find the images that stay and return what is known of them; hashes and rows are kept for later calls."""
    train, evaluation = _hashes(dedup, images)
    chosen = _chosen(dedup, images)
    first_copy = len(images.train) - images.planted
    return Selected(
        samples=len(images.train), kept=len(chosen), sha256=rows_sha256(chosen),
        leaked=int(near(evaluation, train[chosen], dedup.threshold).sum()), evaluation=len(images.evaluation),
        planted=images.planted, planted_removed=images.planted - int((chosen >= first_copy).sum()),
    )


def rows(dedup: Dedup, images: Images, planned: Selected) -> NDArray[np.int64]:
    """Return the training images that stay, ascending.

    Raises:
        TrialError: they are not those of the plan.
    """
    chosen = _chosen(dedup, images)
    if rows_sha256(chosen) != planned.sha256:
        raise TrialError(f"near-duplicates: other images stay than in the plan ({len(chosen)}, sha256 "
                         f"{rows_sha256(chosen)[:8]}, here; {planned.kept}, {planned.sha256[:8]}, there): the data, "
                         "ImageHash or Pillow differ; a new plan takes what is found here")
    return chosen


def _hashes(dedup: Dedup, images: Images) -> tuple[Words, Words]:
    """Return the hashes of training and evaluation images."""
    both = _stored(f"hashes {images.sha256} {dedup.hash} {dedup.size}", lambda: np.concatenate(
        [hash_images(part, dedup.hash, dedup.size) for part in (images.train, images.evaluation)]))
    return both[: len(images.train)], both[len(images.train) :]


def _chosen(dedup: Dedup, images: Images) -> NDArray[np.int64]:
    """Return the rows that stay, or as many drawn at random, the same for every seed of the trials."""
    kept = _stored(f"rows {images.sha256} {dedup.hash} {dedup.size} {dedup.threshold}",
                   lambda: keep_first(_hashes(dedup, images)[0], dedup.threshold))
    if dedup.leave_out != "random":
        return kept
    return np.sort(Streams(0, 0).generator("random subset").permutation(len(images.train))[:len(kept)])


def _stored(what: str, find: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array from the store, else find and store it. `what` holds everything that determines it."""
    require("ImageHash", "imagehash")
    versions = f"{version('ImageHash')} {version('Pillow')} {version('PyWavelets')}"
    place = store() / FOLDER / f"{hashlib.sha256(f'{what} {versions}'.encode()).hexdigest()}.npy"
    if place.exists():
        try:
            stored: np.ndarray = np.load(place, allow_pickle=False)
            return stored
        except (OSError, ValueError, EOFError) as error:
            raise TrialError(f"{place}: cannot be read: {error}; delete it, it is found again") from error
    found, out = find(), io.BytesIO()
    np.save(out, found)
    write_bytes(place, out.getvalue())
    return found
