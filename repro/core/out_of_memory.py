"""Errors that mean "out of memory", whatever library raised them. Needs no torch."""

from __future__ import annotations

PHRASES = ("out of memory", "outofmemory", "memoryerror", "can't allocate memory", "not enough memory",
           "cannot allocate memory", "bad_alloc", "alloc_failed")
"""Of CUDA and its libraries, Python, torch's CPU allocator and the C library, in lower case: an exception's type alone
does not tell."""


def says_out_of_memory(text: str) -> bool:
    """Return True if a message or the reason of a rank's end says so."""
    lower = text.lower()
    return any(phrase in lower for phrase in PHRASES)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an allocation failed."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "OutOfMemory"):
        return True
    return isinstance(error, RuntimeError | OSError) and says_out_of_memory(str(error))
