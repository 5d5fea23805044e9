"""The Python form of CIFAR-10, read without running what a pickle could name: only plain data and numpy arrays."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from repro.core.errors import UsageError

PIXELS = 3072
ADVICE = "take the binary version (cifar-10-binary.tar.gz), which needs no pickle"


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """Stand in for `_codecs.encode`, by which pickles of protocol 2 write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


def _reconstruct(kind: object, shape: object, code: object) -> np.ndarray:
    """Stand in for numpy's function of this name: an empty array, whose content `__setstate__` fills in."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("an array of another kind")
    return np.ndarray((0,), np.uint8)


def _dtype(code: object, *_: object) -> np.dtype[Any]:
    if code not in ("u1", b"u1", "|u1", b"|u1"):
        raise pickle.UnpicklingError(f"an array of {code!r}")
    return np.dtype(np.uint8)


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
"""What a pickle of such data names. numpy's own functions have stand-ins that accept nothing but bytes."""


class _Plain(pickle.Unpickler):
    """Refuses everything that is neither plain data nor an array of bytes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def as_records(raw: bytes, place: str) -> bytes:
    """Return a batch of the Python form as records of the binary form, in the same order.

    Args:
        raw: a pickled dict with `data`, uint8 [n, 3072], and `labels`, n numbers from 0 to 9.
        place: the file, for errors.

    Raises:
        UsageError: it is no such dict, or names code.
    """
    try:
        found = _Plain(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # of any kind: the bytes are a stranger's
        raise UsageError(f"{place}: is no plain CIFAR-10 batch: {type(error).__name__}: {error}; {ADVICE}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{place}: is no plain CIFAR-10 batch: a {type(found).__name__}, not a dict; {ADVICE}")
    data, labels = (found.get(key, found.get(key.decode())) for key in (b"data", b"labels"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise UsageError(f"{place}: its `data` are no bytes [n, {PIXELS}]; {ADVICE}")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(
            type(item) is int and 0 <= item <= 9 for item in labels):
        raise UsageError(f"{place}: its `labels` are not {len(data)} numbers from 0 to 9; {ADVICE}")
    return np.column_stack([np.array(labels, np.uint8), data]).tobytes()
