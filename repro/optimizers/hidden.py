"""Hidden matrices of a model, told by names and dimensions alone, so that every engine finds the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

NUMBERED = re.compile(r"(?:^|\.)[A-Za-z_]\w*\.\d+\.\w+\.")
"""A module in a numbered block: `blocks.0.widen.`, `encoder.layers.11.attention.`."""


def hidden_names(named: Sequence[tuple[str, int]], patterns: Sequence[str] | None) -> set[str]:
    """Return the names of the hidden matrices.

    Args:
        named: names and numbers of dimensions of all trained parameters, in the model's order.
        patterns: of names, as a shell's; None: matrices in numbered blocks, which have neither embeddings nor the head;
            in a model without such blocks all but the first and the last tensor of at least two dimensions.
    """
    matrices = [name for name, dimensions in named if dimensions == 2]
    if patterns is not None:
        return {name for name in matrices if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if blocks := {name for name in matrices if NUMBERED.search(name)}:
        return blocks
    layers = [name for name, dimensions in named if dimensions >= 2]
    return set(matrices) - {*layers[:1], *layers[-1:]}


def shapes_of_names(names: Iterable[str]) -> dict[str, int]:
    """Return how many names have each form, numbers written as `*`: `blocks.*.widen.weight` -> 4."""
    return dict(sorted(Counter(re.sub(r"(?<![A-Za-z_])\d+", "*", name) for name in names).items()))
