"""Code that a record brings with it, as a kind of trial states it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class CarriedCode:
    """A class or a command that is not installed here but comes with a record."""

    what: str
    """`workload net.py:Net`, or a command as it is started."""
    sha256: str
    """"" for a folder, which is not hashed."""
    place: str
    """Path of its source, relative to the record."""

    def text(self) -> str:
        return f"{self.what} ({self.place}{f', sha256 {self.sha256[:16]}' if self.sha256 else ''})"
