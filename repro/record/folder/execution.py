"""How a run was executed: every start of a trial in order of time, and where the run was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.record.folder.ledger import Attempt


@dataclass(frozen=True, slots=True)
class Execution:
    """The starts of a run, for comparisons, which depend on the order of trials and on nothing else of a ledger."""

    attempts: Sequence[Attempt] = ()
    """Of all trials, in any order; without those of some result, the order of the plan counts."""
    resumed_ms: Sequence[float] = ()
    """Moments at which the run was resumed."""
