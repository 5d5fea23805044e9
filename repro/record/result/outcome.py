"""The outcome of a trial whose loop ended it: success, missed, diverged or, in a tuning, abandoned by a declared rule;
`run_stop` in its log states it.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from repro.core.events import Event

TrialOutcome = Literal["success", "missed", "diverged", "abandoned"]


def read_outcome(stop: Event) -> TrialOutcome:
    """Return the outcome that a `run_stop` event states.

    Raises:
        ValueError: it states one that does not exist.
    """
    stated, known = stop.metadata.get("outcome"), get_args(TrialOutcome)
    if stated not in known:
        raise ValueError(f"run_stop: outcome is {stated!r}; use one of {', '.join(known)}")
    return cast(TrialOutcome, stated)
