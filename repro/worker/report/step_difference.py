"""The tensor of a step that differs most from the harness's own, and what the engine's tensors could be instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from repro.record.log.facts import MOST_NAMES, Apart

FLOOR = 1e-4
"""Share of the norm of the whole gradient, or update, that is added to that of a tensor: one whose true gradient is 0,
such as a bias before a norm, has only rounding."""
SUSPECT = 1e-5
"""Difference from which on a loss, gradient or update is compared with what it could be. In healthy engines only
tensors whose true gradient is 0 differ by more, and what is rounded on its way."""
UNEXPLAINED = 0.1
"""Largest share of a difference that a resemblance may leave unexplained."""
LEAST_SIZE = 8
"""Numbers of a tensor below which a change fits by chance."""
ALIKE = 0.05
"""Relative difference of the factors of tensors that are one: each is fitted to a difference with rounding in it."""
MOST_PARTS = 16
"""Parts of a gradient above which no other mean of them is looked for."""
CHUNK = 1 << 20
"""Numbers of a tensor that are multiplied at a time."""
UNLIKE = 1e30
"""Difference of a number that is not finite, which JSON does not have."""
CHANGES = ("decayed", "bfloat16", "centred", "cut", "thinned")


class Worst:
    """The tensor that differs most, as a share of its own norm."""

    def __init__(self, what: Literal["gradient", "buffer", "stepped", "update"], may_overflow: bool = False) -> None:
        self.what, self.may_overflow = what, may_overflow
        self.rows: list[tuple[str, float, float, float]] = []
        """Name, norm of the difference, own norm, product of both tensors."""
        self.squares: dict[str, Counter[str]] = {}
        """Name -> squared difference of a tensor from what it could be instead; "": from the own one."""
        self.factors: dict[str, list[float]] = {}
        """What tensors that differ could be multiples of -> the factor of each."""
        self.products: Any = 0.0
        """Of the parts that such tensors may be sums of, and of the tensor: a matrix, summed over tensors."""

    def add(self, name: str, theirs: np.ndarray, ours: np.ndarray, floor: float = 0.0) -> bool:
        """Add a tensor; a difference of at most `floor` counts as none.

        Returns:
            True if it differs so much that it is worth comparing with other tensors.
        """
        apart, norm = norm_of(theirs - ours), norm_of(ours)
        self.rows.append((name, apart if np.isnan(apart) else max(0.0, apart - floor), norm,
                          float(np.sum(theirs.astype(np.float64) * ours))))
        return bool(np.isfinite(apart)) and apart - floor > SUSPECT * norm

    def could_be(self, name: str, theirs: np.ndarray, likes: Mapping[str, np.ndarray]) -> None:
        """Add what a tensor that differs could be instead."""
        self.squares.setdefault(name, Counter()).update(
            {like: norm_of(theirs - array)**2 for like, array in likes.items()})

    def could_be_multiple(
        self, name: str, like: str, theirs: np.ndarray, ours: np.ndarray, beside: np.ndarray | float = 0.0
    ) -> None:
        """Add that a tensor that differs could be a multiple of the own one, with a factor of its own, plus `beside`.
        """
        part, square = ours - beside, norm_of(ours - beside)**2
        fits = ours.size >= LEAST_SIZE and square
        factor = float(np.sum((theirs - beside).astype(np.float64) * part)) / square if fits else 1.0
        self.factors.setdefault(like, []).append(factor)
        self.could_be(name, theirs, {like: factor * part + beside})

    def could_be_of(self, theirs: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        """Add parts of which a tensor that differs could be another sum; the own one is theirs, each taken once."""
        flat = [array.reshape(-1) for array in (*parts, theirs)]
        for start in range(0, theirs.size, CHUNK) if len(parts) <= MOST_PARTS else ():
            rows = np.stack([array[start:start + CHUNK] for array in flat]).astype(np.float64)
            self.products = self.products + rows @ rows.T

    def _shares(self, square: float) -> tuple[float, ...]:
        """Return how often each part counts, if such a sum explains the difference and they do not count alike.

        Args:
            square: of the difference of all tensors.
        """
        if np.ndim(self.products) == 0:
            return ()
        parts, along = self.products[:-1, :-1], self.products[:-1, -1]
        shares = np.linalg.lstsq(parts, along, rcond=None)[0]
        left = self.products[-1, -1] - 2 * shares @ along + shares @ parts @ shares
        if left > UNEXPLAINED**2 * square or (self.what == "gradient" and np.ptp(shares) < UNEXPLAINED):
            return ()
        return tuple(round(float(share), 4) for share in shares)

    def found(self) -> list[Apart]:
        """Return the tensor; nothing if there is none, or one of the harness's own, or of a scaled loss, is not finite.
        """
        own = np.isfinite([row[2] for row in self.rows]).all()
        infinite = [row[0] for row in self.rows if not np.isfinite(row[1])]
        if infinite and own and not self.may_overflow:
            return [Apart(what=self.what, name=infinite[0], apart=UNLIKE, ratio=0.0)]
        if not self.rows or infinite or not own:
            return []
        least = FLOOR * float(np.linalg.norm([norm for _, _, norm, _ in self.rows])) + 1e-300
        name, apart, norm, along = max(self.rows, key=lambda row: (row[1] / (row[2] + least), row[0]))
        total = Counter[str]()
        for square in self.squares.values():
            total.update(square)
        differing = [row[0] for row in self.rows if row[1] > SUSPECT * (row[2] + least)]
        few = len(differing) < len(self.rows)
        # Numbers of one size, as in the first update of Adam, are cut and multiplied alike.
        kinds = sorted(total, key=lambda kind: (kind in {*self.factors, "cut"}, kind == "cut", total[kind], kind))
        both = total, self.squares.get(name, total)  # it explains all tensors together and the one that is named
        like = next((kind for kind in kinds if all(one[kind] < UNEXPLAINED**2 * one[""] for one in both)), "")
        shares: tuple[float, ...] = ()
        if not like:
            shares = self._shares(total[""])
            like = ("gradient" if self.what == "update" else "parts") if shares else ""
        elif like in self.factors:
            factors = self.factors[like] + [1.0] * few
            shares = (short(min(factors)), short(max(factors)))
            if like != "follows" and not few and np.ptp(factors) < ALIKE * max(map(abs, factors)):  # one for all
                like, shares = ("gradient", (short(float(np.median(factors))),)) if like == "gradients" else ("", ())
        until = differing[-1] if differing and differing[-1] != self.rows[-1][0] else ""
        return [Apart(what=self.what, name=name, apart=short(apart / (norm + least)),
                      ratio=short(along / max(norm**2, 1e-300)), like=like, shares=shares, until=until,
                      differ=len(differing) * few, differing=tuple(differing[:MOST_NAMES * few]))]


def changed(theirs: np.ndarray, ours: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the own tensor with common changes, whose size is taken from the engine's; without, if it is so small that
    they would fit by chance."""
    if ours.size < LEAST_SIZE:
        return dict.fromkeys(("", *CHANGES), ours)
    wide, most = weights.astype(np.float64), float(np.max(np.abs(theirs), initial=0.0))
    return {
        "": ours, "decayed": ours + wide * (np.sum((theirs - ours) * wide) / max(float(np.sum(wide**2)), 1e-300)),
        "bfloat16": in_bfloat16(ours),
        "centred": ours - ours.mean(axis=(*range(1, ours.ndim),), keepdims=True) if ours.ndim > 1 else ours,
        "cut": np.clip(ours, -most, most) if most else ours,
        "thinned": np.where(theirs == 0, 0.0, ours) if most else ours}


def in_bfloat16(array: np.ndarray) -> np.ndarray:
    import torch

    found: np.ndarray = torch.from_numpy(np.asarray(array)).bfloat16().float().numpy()
    return found


def parts_of(shares: Sequence[Sequence[np.ndarray]], accumulation: int) -> list[np.ndarray]:
    """Return the parts that add up to the mean gradient: of each rank its micro-batches but the last one, and that one.

    Args:
        shares: of each rank its mean gradient and, of several micro-batches, that of the last one alone.
    """
    found = []
    for mean, *last in shares:
        rest = mean - last[0] / accumulation if last else mean
        found += [part / len(shares) for part in (rest, *(item / accumulation for item in last))]
    return found


def short(value: float) -> float:
    return float(f"{value:.4g}")


def norm_of(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))
