"""No preconditioner: the optimizer gets the mean gradient."""

from __future__ import annotations

from repro.seams.preconditioner import Preconditioner


class Unchanged(Preconditioner):
    """The mean gradient as it is."""
