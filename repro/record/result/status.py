"""Statuses of trials and attempts: one row per status, with its complete meaning.

`repro.record.derive.derive` decides the status of a result. Every other module reads what it means here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["ok", "missed", "diverged", "out_of_memory", "timed_out", "hung", "crashed", "invalid", "abandoned"]
"""Statuses of results: the rows of `STATUSES` with `result`."""
Target = Literal["reached", "watched", "never", "unknown"]
Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSpec:
    """The meaning of one status."""

    name: str
    result: bool = True
    """A `Result` can have it; False: only an attempt, that is, a line of the ledger."""
    words: str
    """In a sentence, after its subject: `the candidate ran out of memory in 1 of 6 trials`."""
    page_word: str
    level: Level = "fail"
    """Colour class of notices: fail is red."""
    target: Target = "unknown"
    """Meaning for a verdict about the target. watched: not reached while the trial ran, but it might have been later;
    never: it cannot be reached later."""
    counts: bool = True
    """The end tells about the cell. False: it tells about the machine or the harness, so it never counts as a missed
    target, and an audit accepts that the trial ran again."""
    competes: bool = False
    """A competing event of reaching the target (cumulative incidence)."""
    logged: bool = False
    """The trial's log reaches `run_stop`."""
    completed: bool = False
    """The trial trained until its target or through its whole budget."""
    failed: bool = False
    """Exit code 1, stops a suite with `on_failure: stop`, and gives no MLLOG file."""
    reruns: bool = False
    """`on_failure: rerun` and `--rerun-failed` run the trial again."""
    by_chance: bool = False
    """The same trial can end otherwise on the same machine, so its end proves no difference between two runs."""
    limit: str = ""
    """Field of a trial's choices with the limit in seconds that ended the trial; "" for no limit."""

    @property
    def reached(self) -> bool:
        """The trial reached its target."""
        return self.target == "reached"

    @property
    def stands(self) -> bool:
        """A result with this status is final; the trial does not run again."""
        return self.result and not self.reruns


STATUSES: dict[str, StatusSpec] = {row.name: row for row in (
    StatusSpec(name="ok", words="reached the target", page_word="reached", level="ok", target="reached", logged=True,
               completed=True),
    StatusSpec(name="missed", words="missed the target", page_word="missed", level="warn", target="watched",
               logged=True, completed=True),
    StatusSpec(name="diverged", words="diverged", page_word="diverged", target="never", competes=True, logged=True),
    StatusSpec(name="out_of_memory", words="ran out of memory", page_word="out of memory", target="never", failed=True),
    StatusSpec(name="timed_out", words="ran into the time limit", page_word="timed out", target="watched", failed=True,
               by_chance=True, limit="timeout_seconds"),
    StatusSpec(name="crashed", words="crashed", page_word="crashed", counts=False, failed=True, reruns=True,
               by_chance=True),
    StatusSpec(name="hung", words="hung", page_word="hung", counts=False, failed=True, reruns=True, by_chance=True,
               limit="stall_seconds"),
    StatusSpec(name="invalid", words="was invalid", page_word="invalid", counts=False, logged=True,
               failed=True),
    StatusSpec(name="abandoned", words="was abandoned as hopeless", page_word="abandoned", level="warn",
               target="watched", logged=True),
    StatusSpec(name="started", result=False, words="was started", page_word="started", counts=False),
    StatusSpec(name="interrupted", result=False, words="was interrupted", page_word="interrupted", counts=False),
    StatusSpec(name="not_launched", result=False, words="was not launched", page_word="not_launched", counts=False),
    StatusSpec(name="refused", result=False, words="was refused", page_word="refused", counts=False, failed=True),
    StatusSpec(name="wash_out", result=False, words="ran unmeasured", page_word="wash-out", level="ok", counts=False),
    StatusSpec(name="lost", result=False, words="lost its result", page_word="lost", counts=False),
)}
STARTED: Final = "started"
INTERRUPTED: Final = "interrupted"
NOT_LAUNCHED: Final = "not_launched"
REFUSED: Final = "refused"
WASHED_OUT: Final = "wash_out"
LOST: Final = "lost"
"""Of attempts. started: written before the launch, and the last line if nothing wrote the end; lost: the attempt had a
result, which is damaged or missing."""


def meaning(status: str) -> StatusSpec:
    """Return the row of a status; an unknown one, from a ledger of another version, ends nothing and fails nothing."""
    return STATUSES.get(status) or StatusSpec(name=status, result=False, words=f"ended as {status}", page_word=status)


def counted(statuses: Iterable[str]) -> int:
    """Return how many of the statuses tell about their cell."""
    return sum(meaning(status).counts for status in statuses)
