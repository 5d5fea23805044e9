"""The hash that compares the weights of two trials."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np


def weights_sha256(weights: Mapping[str, np.ndarray]) -> str:
    """Hash of names, shapes and little-endian float32 bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
