"""The hash that compares the weights of two trials."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from repro.record.log.facts import RankWeights
from repro.seams.training import Held, Precision, Session


def weights_sha256(weights: Mapping[str, np.ndarray]) -> str:
    """Hash of names, shapes and little-endian float32 bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


GATHERED = 2**24
"""Bytes that are gathered at a time: NCCL gathers by way of every GPU, which has no place for a whole model."""


def in_groups(arrays: Mapping[str, np.ndarray]) -> Iterator[list[str]]:
    """Yield the names in groups that are gathered together: small ones would each cost a round of messages."""
    group, size = list[str](), 0
    for name, array in arrays.items():
        if group and size + array.nbytes > GATHERED:
            yield group
            group, size = [], 0
        group.append(name)
        size += array.nbytes
    if group:
        yield group


LOW_BITS = {"bfloat16": 0xFFFF, "float16": 0x1FFF}
"""Bits of a float32 that are zero in every number of the narrower type."""


def describe_held(held: Sequence[Held], full: Mapping[str, np.ndarray], weights: str) -> RankWeights:
    """Return what a rank holds, compared with the full weights.

    Args:
        full: the full (master) weights, float32.
        weights: type of the weights that the model computes with.
    """
    parts, values = hashlib.sha256(), hashlib.sha256()
    different, first = 0, ""
    for item in _in_order(held):
        parts.update(_part(item))
        values.update(np.ascontiguousarray(item.values + np.float32(0), dtype="<f4").tobytes())
        wrong = _count_different(item, full.get(item.name), weights)
        first = first or (item.name if wrong else "")
        different += wrong
    return RankWeights(parts=parts.hexdigest()[:16], sha256=values.hexdigest(), different=different, first=first)


def tensor_sums(held: Sequence[Held]) -> list[tuple[str, int]]:
    """Return the name and a checksum of the values (CRC-32) of every part of a tensor that a rank holds."""
    return [(item.name, zlib.crc32(np.ascontiguousarray(item.values + np.float32(0)).data)) for item in _in_order(held)]


def with_others(
    ranks: Sequence[RankWeights | None], sums: Sequence[Sequence[tuple[str, int]]]
) -> list[RankWeights | None]:
    """Return the ranks with the tensors whose values are not those of the first rank that holds the same parts.

    Args:
        sums: of every rank (`tensor_sums`).
    """
    known: dict[str, Sequence[tuple[str, int]]] = {}
    found = list[RankWeights | None]()
    for rank, own in zip(ranks, sums, strict=True):
        names = [name for (name, mine), (_, first) in zip(own, known.setdefault(rank.parts, own), strict=True)
                 if mine != first] if rank is not None else []
        found.append(rank and rank.model_copy(update={"other": names[0], "others": len({*names})} if names else {}))
    return found


def held_or_full(session: Session) -> list[Held]:
    """Return what this rank holds; the full weights if its engine cannot tell (all ranks then take part)."""
    held = session.held()
    return held if held is not None else [Held(name, array.ravel()) for name, array in session.weights().items()]


def checksum_held(held: Sequence[Held]) -> tuple[str, str]:
    """Return the checksums (CRC-32) of which numbers a rank holds, and of their values; a hash would take longer, and
    the wall clock runs."""
    parts = values = 0
    for item in _in_order(held):
        parts = zlib.crc32(_part(item), parts)
        values = zlib.crc32(np.ascontiguousarray(item.values).data, values)
    return f"{parts:08x}", f"{values:08x}"


def _part(item: Held) -> bytes:
    return f"{item.name}:{item.start}:{item.values.size};".encode()


def _in_order(held: Sequence[Held]) -> list[Held]:
    return sorted(held, key=lambda item: (item.name, item.start, item.values.size))


def _count_different(item: Held, full: np.ndarray | None, weights: str) -> int:
    if full is None:
        return int(item.values.size)
    expected = round_to(full.ravel()[item.start:item.start + item.values.size], weights)
    if expected.shape != item.values.shape:
        return int(item.values.size)
    return int(np.count_nonzero((expected != item.values) & ~(np.isnan(expected) & np.isnan(item.values))))


def round_to(values: np.ndarray, kind: str) -> np.ndarray:
    """Return float32 `values` rounded to the type named `kind`, as float32."""
    if kind == "float32":
        return values
    import torch

    rounded: np.ndarray = torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, kind)).float().numpy()
    return rounded


def wide_share(weights: Mapping[str, np.ndarray], precision: Precision) -> float:
    """Return the share of the weights, zeros and values that are not finite aside, that the narrow type of `precision`
    could not hold; 0 to 1.

    Without a narrow type it is bfloat16. Master weights in float32 nearly all have more digits; copies that were
    rounded have none.
    """
    narrow = precision.autocast or precision.weights
    mask = np.uint32(LOW_BITS.get(narrow, LOW_BITS["bfloat16"]))
    wide = known = 0
    for array in weights.values():
        bits = np.ascontiguousarray(array[np.isfinite(array)], dtype=np.float32).view(np.uint32)
        known += int(np.count_nonzero(bits))
        wide += int(np.count_nonzero(bits & mask))
    return wide / known if known else 1.0
