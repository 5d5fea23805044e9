"""Reasons why a trial ended as it did, one kind each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from repro.record.result.remarks import Stated, Worded


class OutOfTime(Worded):
    """A trial that its time limit ended, after seconds in all; with the limit: nothing was left of it at its start."""

    kind: Literal["out_of_time"] = "out_of_time"
    seconds: float
    limit_seconds: float | None = None

    def _words(self) -> str:
        if self.limit_seconds is None:
            return f"ended at its time limit, after {self.seconds:.0f} s"
        return (f"nothing was left of its time limit of {self.limit_seconds:g} s when it was resumed: "
                f"{self.seconds:.0f} s had passed since its first start")


class Silent(Worded):
    """A trial without an event, or a program without output, for longer than the limit in seconds."""

    kind: Literal["silent"] = "silent"
    seconds: float | None = None

    def _words(self) -> str:
        return "no event for longer than stall_seconds" if self.seconds is None else f"no output for {self.seconds:g} s"


class RankFailed(Worded):
    """The rank that failed first: its own account if it gave one, and the last lines that it printed."""

    kind: Literal["rank_failed"] = "rank_failed"
    rank: int
    exit_code: int
    """Negative: killed by that signal."""
    said: str = ""
    tail: str = ""
    after_stop: bool = False
    """The log had reached `run_stop`."""

    def _words(self) -> str:
        code = f"killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"
        return (f"{'after run_stop: ' if self.after_stop else ''}rank {self.rank}: {self.said or code}"
                f"{f'; its log ends: {self.tail}' if self.tail else ''}")


class NoStop(Worded):
    """A log without its last event, of processes that ended well."""

    kind: Literal["no_stop"] = "no_stop"

    def _words(self) -> str:
        return "ended without run_stop in its log"


class LogDamaged(Worded):
    """A log that another process modified, of a trial whose ranks all ended well: the rest of it may be wrong, too."""

    kind: Literal["log_damaged"] = "log_damaged"
    problem: Literal["torn", "unreadable", "lines", "incomplete", "malformed"]
    bad: int = 0
    lines: int = 0
    """Of the log; of a malformed event the number of its line."""
    error: str = ""

    @property
    def damage(self) -> str:
        """What is wrong with the log."""
        return {"torn": "its log ends in the middle of a line", "unreadable": f"its log cannot be read: {self.error}",
                "lines": f"{self.bad} of {self.lines} lines of its log are damaged",
                "incomplete": "its log does not go from its first event to its last",
                "malformed": f"line {self.lines} of its log is damaged: {self.error}"}[self.problem]

    def _words(self) -> str:
        return f"{self.damage}, though every rank ended well"


class Unlike(Worded):
    """A setting that ran otherwise than it was requested; of a value that is only on or off, `wanted` says which."""

    kind: Literal["unlike"] = "unlike"
    name: str
    wanted: str | bool
    ran: str | None

    def _words(self) -> str:
        wanted = f"{self.name} {self.wanted}"
        if isinstance(self.wanted, bool):
            wanted = f"{'a' if self.wanted else 'no'} {self.name}"
        return f"{wanted} was asked for, {self.ran} ran"


class OtherData(Worded):
    """Consumed samples or augmentation that are not those of the seed."""

    kind: Literal["other_data"] = "other_data"
    what: str

    def _words(self) -> str:
        names = {"data_order": "the consumed samples or their order", "augmentation": "the consumed augmentation"}
        return f"{names.get(self.what, self.what)} differed from the seed's"


class ShortEvaluation(Worded):
    """The first evaluation that lost or repeated samples, by the training samples before it."""

    kind: Literal["short_evaluation"] = "short_evaluation"
    samples: int
    evaluated: float
    wanted: int

    def _words(self) -> str:
        return (f"the evaluation after {self.samples} samples covered {self.evaluated:g} of {self.wanted} evaluation "
                "samples")


class RankWeightsDiffer(Worded):
    """A rank whose weights at the end are those neither of another rank (`than`) nor of the trial (`different`)."""

    kind: Literal["rank_weights_differ"] = "rank_weights_differ"
    rank: int
    than: int | None = None
    different: int = 0
    first: str = ""

    def _words(self) -> str:
        if self.than is not None:
            return f"rank {self.rank} ended with other weights than rank {self.than}"
        return (f"{self.different} of rank {self.rank}'s own weights differ from the trial's, the first in "
                f"{self.first!r}")


class NarrowMasters(Worded):
    """Master weights that were rounded: the share with more digits than the narrow type."""

    kind: Literal["narrow_masters"] = "narrow_masters"
    share: float
    dtype: str

    def _words(self) -> str:
        return f"only {self.share:.1%} of the master weights have more digits than {self.dtype}: they were rounded"


class MovedByEvaluation(Worded):
    """The first evaluation that changed the weights."""

    kind: Literal["moved_by_evaluation"] = "moved_by_evaluation"
    evaluation: int

    def _words(self) -> str:
        return f"evaluation {self.evaluation} changed the weights: training was left to it"


class OtherEvaluation(Worded):
    """An evaluation of which the harness found another value with the same weights."""

    kind: Literal["other_evaluation"] = "other_evaluation"
    evaluation: int
    metric: str
    reported: float
    own: float

    def _words(self) -> str:
        return (f"evaluation {self.evaluation} found {self.metric} {self.reported:.6g}, and the harness {self.own:.6g} "
                "with the same weights")


class NoSuccess(Worded):
    """A log that ends in success although its curve does not; of a contest the last evaluation has no quality."""

    kind: Literal["no_success"] = "no_success"
    contest: bool

    def _words(self) -> str:
        why = "its last evaluation has no finite quality" if self.contest else "no evaluation establishes the target"
        return f"the log ends in success but {why}"


class CheckFailed(Worded):
    """A check of a measurement whose error is above its limit; None: not finite. Without a name: nothing was checked.
    """

    kind: Literal["check_failed"] = "check_failed"
    name: str = ""
    error: float | None = None
    limit: float = 0.0

    def _words(self) -> str:
        found = "not finite" if self.error is None else f"{self.error:.3g}"
        return f"{self.name}: the error is {found}, the limit {self.limit:g}" if self.name else "nothing was checked"


class OtherOperations(Worded):
    """Another number of timed operations than declared; None: the log has no operations, or no findings."""

    kind: Literal["other_operations"] = "other_operations"
    timed: int | None = None
    wanted: int

    def _words(self) -> str:
        if self.timed is None:
            return "its log has no operations, or no findings"
        return f"{self.timed} operations were timed, not {self.wanted}"


Reason = Annotated[
    Stated | OutOfTime | Silent | RankFailed | NoStop | LogDamaged | Unlike | OtherData | ShortEvaluation
    | RankWeightsDiffer | NarrowMasters | MovedByEvaluation | OtherEvaluation | NoSuccess | CheckFailed
    | OtherOperations, Field(discriminator="kind")]
"""A reason why a trial ended as it did."""
