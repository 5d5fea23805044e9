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
    if "outcome" not in stop.metadata:
        return _legacy_outcome(stop)
    stated, known = stop.metadata["outcome"], get_args(TrialOutcome)
    if stated not in known:
        raise ValueError(f"run_stop: outcome is {stated!r}; use one of {', '.join(known)}")
    return cast(TrialOutcome, stated)


def _legacy_outcome(stop: Event) -> TrialOutcome:
    """Return the outcome in a log of version 0.1.0, where only the words of `reason` tell missed from diverged."""
    if stop.metadata.get("status") == "success":
        return "success"
    return "diverged" if str(stop.metadata.get("reason", "")).startswith("diverged") else "missed"
