"""Reader of sentences in logs and ledgers of version 0.1.0; later versions write fields."""

from __future__ import annotations

from typing import Any

from repro.record.environment.differences import DifferenceKind
from repro.record.result.results import Result
from repro.seams.training import BACKEND

_NOT_COUNTED = ", not counted: seed "
_STATUS_FIRST = ("missed", "diverged")
_NOTHING_RAN = "nothing yet"
_DIFFERENCES: dict[str, DifferenceKind] = {
    "setting ": "settings", "library ": "libraries", "package": "libraries", "python ": "libraries", "data of ": "data",
    **dict.fromkeys(("cpu ", "cores ", "memory ", "device", "limit ", "system "), "hardware"),
}


def attempt_source(reason: str) -> str:
    """Return which run a merged attempt that does not count is of: `of NAME, not counted: seed 3 counts from ...`."""
    name, mark, _ = reason.partition(_NOT_COUNTED)
    return name.removeprefix("of ") if mark and name.startswith("of ") else ""


def bare_reason(result: Result) -> str:
    """Return the reason without the status that version 0.1.0 began it with: `missed: top1 0.8000 after 8 epochs`."""
    return result.reason.removeprefix(f"{result.status}: ") if result.status in _STATUS_FIRST else result.reason


def comm_ran(text: str) -> tuple[str, str]:
    """Return (algorithm, its collectives) from `ring: all_reduce+broadcast; over gloo`.

    Without a colon it names the backend, for example `gloo` or `nccl 2.21.5`.
    """
    own, _, _ = text.partition(";")
    title, colon, collectives = own.partition(": ")
    if not colon:
        return BACKEND, ""
    return title, "" if collectives == _NOTHING_RAN else collectives


def difference_kind(text: str) -> DifferenceKind:
    """Return the kind of a difference with which a run was resumed, for example `library torch 1, now 2`."""
    return next((kind for begin, kind in _DIFFERENCES.items() if text.startswith(begin)), "code")


def passed_over(value: Any) -> Any:
    """Return the checkpoints passed over as a tuple; they used to be one text, joined by `; `."""
    if isinstance(value, str):
        return (value,) if value else ()
    return value
