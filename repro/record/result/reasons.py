"""Why a trial ended as it did: failed, ended early, or was void."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field

from repro.record.result.remarks import Stated, Worded
from repro.record.result.step_causes import (
    EXACT,
    EXPLAINED,
    LIKE,
    NO_FACTOR,
    NOTHING,
    OTHER_FORWARD,
    RANDOM,
    STATEFUL,
    UPDATE_CAUSE,
    Place,
    factor_cause,
    names_of,
    place_cause,
    score_cause,
)


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
    sentence = "ended without run_stop in its log"


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
        """The damage of the log in words."""
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
    ran: str | None = None

    def _words(self) -> str:
        if isinstance(self.wanted, bool):
            return f"{'a' if self.wanted else 'no'} {self.name} was asked for, {self.ran} ran"
        wanted, ran = _options_apart(self.wanted, self.ran or "")
        return f"{self.name} {wanted} was asked for, {ran or self.ran} ran"


def _options_apart(wanted: str, ran: str) -> tuple[str, str]:
    """Return only the options that differ of two JSON lists of options, one a group; anything else as it is."""
    try:
        each = [json.loads(text) for text in (wanted, ran)]
        values = [{name: sorted({str(group.get(name)) for group in groups}) for name in each[0][0]} for groups in each]
    except (ValueError, AttributeError, TypeError, LookupError):
        return wanted, ran
    apart = [name for name in values[0] if values[0][name] != values[1][name]]
    first, second = (", ".join(f"{name} {' and '.join(one[name])}" for name in apart) for one in values)
    return (first, second) if apart else (wanted, ran)


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
    sentence = "the evaluation after {samples} samples covered {evaluated:g} of {wanted} evaluation samples"


def _and_others(tensors: int) -> str:
    return f" and {tensors - 1} other tensor{'s' * (tensors > 2)}" if tensors > 1 else ""


class RankWeightsDiffer(Worded):
    """A rank whose weights at the end are those neither of another rank (`than`) nor of the trial (`different`)."""

    kind: Literal["rank_weights_differ"] = "rank_weights_differ"
    rank: int
    than: int | None = None
    different: int = 0
    """Tensors (`than`), or values."""
    first: str = ""
    """The first such tensor."""

    def _words(self) -> str:
        if self.than is not None:
            where = f", in {self.first!r}{_and_others(self.different)}" if self.first else ""
            return f"rank {self.rank} ended with other weights than rank {self.than}{where}"
        return (f"{self.different} of rank {self.rank}'s own weights differ from the trial's, the first in "
                f"{self.first!r}")


class NarrowMasters(Worded):
    """Master weights that were rounded: the share with more digits than the narrow type."""

    kind: Literal["narrow_masters"] = "narrow_masters"
    share: float
    dtype: str
    sentence = "only {share:.1%} of the master weights have more digits than {dtype}: they were rounded"


class MovedByEvaluation(Worded):
    """The first evaluation that changed the weights."""

    kind: Literal["moved_by_evaluation"] = "moved_by_evaluation"
    evaluation: int
    sentence = "evaluation {evaluation} changed the weights: training was left to it"


class OtherEvaluation(Worded):
    """An evaluation of which the harness found another value with the same weights."""

    kind: Literal["other_evaluation"] = "other_evaluation"
    evaluation: int
    metric: str
    reported: float
    own: float
    like: str = ""

    def _words(self) -> str:
        return (f"evaluation {self.evaluation} found {self.metric} {self.reported:.6g}, and the harness "
                f"{self.own:.6g} with the same weights" + (f": {score_cause(self.like)}" if self.like else ""))


class Contradicted(Worded):
    """Training of a rank that its ledger contradicts; steps count from 1."""

    kind: Literal["contradicted"] = "contradicted"
    what: str
    """Kind of the note."""
    rank: int
    step: int
    times: int
    found: float
    wanted: float
    cause: str = ""
    name: str = ""
    tensors: int = 0
    until: int = 0

    def _words(self) -> str:
        more = f" ({self.times} {COUNTED.get(self.what, 'times')} in all)" if self.times > 1 else ""
        cause = LEDGER_CAUSES.get(self.cause, "").format(**dict(self)) or self._amount()
        tensor = f"{self.name!r}{_and_others(self.tensors)}"
        words = LEDGER_WORDS[self.what].format(**dict(self), tensor=tensor, dealt=DEALT.get(self.name, ""))
        return f"rank {self.rank}: {words}{more}{f': {cause}' if cause else ''}"

    def _amount(self) -> str:
        """Return what a number of samples, or another rate, looks like."""
        if self.what == "rate" and self.wanted:
            return f"{self.found / self.wanted:.6g} times it"
        if self.what in ("samples", "loss") and not self.found:
            return ("the engine computes another loss than the workload's" if self.what == "loss" else
                    "the engine trains another model, or does the work elsewhere")
        if self.what in ("samples", "loss"):
            return "some are left out" if self.found < self.wanted else "some are trained more than once"
        return ""


LEDGER_WORDS = {
    "samples": "the model was trained on {found:g} samples and not on the {wanted:g} dealt, first in step {step}",
    "loss": "the loss was computed of {found:g} samples and not of the {wanted:g} dealt, first in step {step}",
    "inputs": "the model saw other inputs than were dealt, first seen in step {step}",
    "targets": "the loss saw other targets than were dealt, first seen in step {step}",
    "outside": "the model was trained outside the timed steps, first after step {step}",
    "backward": "gradients were computed outside the timed steps, first after step {step}",
    "update outside": "the optimizer stepped outside the timed steps, first after step {step}",
    "flags": "{found:g} layers were in evaluation mode and not {wanted:g}, first in step {step}",
    "autocast": "autocast was {found:g}, not {wanted:g} (1: on), first in step {step}",
    "counted": "what the optimizer keeps counts {found:.0f} steps, and it took {wanted:.0f}: it was replaced or "
               "changed",
    "updates": "the optimizer stepped {found:g} times and not {wanted:g}, as usual, first in step {step}",
    "data": "training data were read before the clock started",
    "evaluation data": "evaluation samples were read inside a timed step, first in step {step}",
    "clock": "the trial's clock counted {found:.6g} s, and the kernel's {wanted:.6g} s",
    "dealt": "in step {step}, one of the last two whose batches were read again, it was dealt {dealt}",
    "state": "an evaluation changed what the optimizer keeps, first after step {step}",
    "moved": "the weights changed between step {step} and the next one",
    "written": "something beside the optimizer's steps wrote into {tensor}: {found:g} writes and not {wanted:g}, first "
               "in steps {step} to {until}",
    "replaced": "another tensor took the place of {tensor} in steps {step} to {until}",
    "changed": "{tensor} changed in step {step} before the optimizer's own step or behind it",
    "closure": "the optimizer was given a closure in step {step}, which may change the gradient inside its step",
    "own step": "step {step} of the engine called its `update` {found:g} times and not {wanted:g}: it does not "
                "train by what the gate compares",
    "option": "the optimizer's {name} was {found:.6g} and not {wanted:.6g}, as at the start, first in step {step}",
    "ranks": "its weights differ from those of another rank that holds the same parts, first after step {step}",
    "masks": "it drew the same random numbers as another rank, first in step {step}: dropout masks are not its own",
    "rate": "the learning rate was {found:.6g} and not the scheduled {wanted:.6g}, first in step {step}",
}
"""Kind of a ledger's note -> its words."""
DEALT = {"": "other samples than the workload gives, or changed ones",
         "inputs": "other inputs than the workload gives, and the right targets: changed, or augmented otherwise",
         "targets": "other targets than the workload gives, and the right inputs"}
"""Which tensors of a batch are not those of the workload; "": both."""
COUNTED = {"written": "blocks of steps", "replaced": "blocks of steps", "changed": "kept steps",
           "option": "updates of a parameter group"}
"""Kind of a ledger's note -> the unit of its number, where it is not the step."""
LEDGER_CAUSES = {"late": "that of the step before", "left out": "the update changes nothing",
                 "held": "that of the first step, which the schedule does not reach",
                 "narrow": "they are rounded to bfloat16", "multiple": "they are {found:.4g} times the dealt ones",
                 "order": "the same, in another order", "repeated": "some of them twice, others not at all",
                 "shape": "they have another shape",
                 "some": "{found:g} of {wanted:g} samples in this step are others, or changed"}


SINCE = "; since which step is not known"
"""Of what is found after the trial."""


class OtherStep(Worded):
    """The first kept step of a trial, or step after it, whose loss, gradient, buffers or update are not the harness's
    own of the same weights and batches, or whose optimizer was given another gradient ("stepped")."""

    kind: Literal["other_step"] = "other_step"
    what: Literal["loss", "gradient", "buffer", "stepped", "update"]
    tensor: str
    """That differs most; "" of a loss."""
    step: int
    """From 1."""
    within: bool = False
    """A step of the trial; False: after it."""
    apart: float
    """Relative, of the L2 norm."""
    limit: float
    ratio: float
    like: str = ""
    """Another loss, gradient or update that it equals (`log.facts.Apart`)."""
    shares: tuple[float, ...] = ()
    option: str = ""
    until: str = ""
    differing: tuple[str, ...] = ()
    differ: int = 0
    place: Place | None = None
    loss_right: bool = False
    """The loss of the same step is the harness's own up to rounding."""
    processes: int
    accumulation: int

    def _words(self) -> str:
        of = f" of {self.tensor!r}" if self.tensor else ""
        size = "of its norm " if self.tensor else ""
        where = f"in step {self.step} {'of' if self.within else 'after'} the trial"
        if self.what == "stepped":
            return (f"{where} the optimizer stepped with a gradient{of} that differs by {self.apart:.2g} {size}from "
                    f"that of the backward pass, clipped (limit {self.limit:g}): {self.cause()}")
        return (f"{where} the {self.what}{of} differs by {self.apart:.2g} {size}from the harness's own (limit "
                f"{self.limit:g}): {self.cause()}{'' if self.within else SINCE}")

    def cause(self, stateful: str = STATEFUL, of_update: str = UPDATE_CAUSE) -> str:
        """Return the likely cause, and which tensors differ.

        Args:
            stateful: what it may be instead.
            of_update: cause of an update that is like nothing known.
        """
        return self._likely(stateful, of_update) + names_of(self.differing, self.differ)

    def _likely(self, stateful: str, of_update: str) -> str:
        found = self.what in ("loss", "gradient") and self.place is not None
        if self.like == "multiples":
            factor = (factor_cause(self.ratio, self.processes, self.accumulation, exact=True)
                      if self.what == "gradient" else f"{self.ratio:.4g} times it")
            return f"{factor}; each tensor is a multiple of the right one, {self._range()}"
        if self.like and not (self.like == "masks" and found):
            words = LIKE.get(self.like, f"it is that of {self.like} alone").format(self._shares())
            return words + stateful * (self.what == "loss")
        left = abs(self.apart - abs(self.ratio - 1))
        explained, exact = left <= EXPLAINED * self.apart, left <= EXACT * self.apart
        if self.place is not None and found and (self.what == "loss" or not explained):
            where = RANDOM * (self.like == "masks") + place_cause(self.place, of_loss=self.what == "loss")
            return where + stateful * (self.place.at in ("input", "output"))
        if self.what == "loss":
            return f"{OTHER_FORWARD}{stateful}"
        if self.what == "buffer":
            return f"it follows the samples otherwise (another momentum, another variance, or not at all){stateful}"
        if self.what == "stepped":
            if not exact:
                return "something was added to it, or changed it, between the two"
            return ("it was not given to the optimizer, or set to 0" if abs(self.ratio) < NOTHING else
                    f"it is {self.ratio:.4g} times it" + (
                        ": another limit of clipping, or none" if self.ratio > 0 and not self.differ else ""))
        if self.what == "gradient" and not explained:
            right = ["the reported loss"] * self.loss_right
            right += [f"all gradients after that of {self.until!r}"] * bool(self.until)
            named = f" (right: {', '.join(right)})" if right else ""
            return f"{NO_FACTOR}{named}{stateful}"
        if self.what == "update" and (not explained or self.ratio <= -NOTHING):
            return of_update
        if self.what == "update" and self.ratio >= NOTHING and not exact:
            return f"{of_update}; or it is about {self.ratio:.2g} times as large by another rate or limit of clipping"
        if self.what == "update" and self.ratio >= NOTHING:
            return f"{self.ratio:.4g} times it: another rate, dampening, decay or limit of clipping"
        return factor_cause(self.ratio, self.processes, self.accumulation, exact=exact)

    def _range(self) -> str:
        least, most = (f"{share:.3g}" for share in self.shares)
        return f"{least} times" if least == most else f"from {least} to {most} times"

    def _shares(self) -> str:
        """Return how often the gradient of an update, or at most eight parts of a gradient, count; or an option."""
        if self.option:
            return self.option if self.like == "frozen" else f"{self.option}, about {self.shares[0]:.3g}"
        if self.like in ("gradients", "follows"):
            return self._range()
        if self.what == "update":
            return "".join(f"{share:.3g}" for share in self.shares)
        each = max(1, len(self.shares) // self.processes)
        return ", ".join(f"{share:.3g} (rank {place // each}{', last micro-batch' if place % each else ''})"
                         for place, share in enumerate(self.shares[:8]))


class OtherScore(Worded):
    """An evaluation after the trial that differs from the harness's own of the weights that were trained, or changes
    them."""

    kind: Literal["other_score"] = "other_score"
    metric: str
    reported: float
    own: float
    samples: int = 0
    counted: int | None = None
    moved: str = ""
    like: str = ""
    place: Place | None = None

    def _words(self) -> str:
        if self.moved:
            return (f"an evaluation after the trial changed the weights, the first of them {self.moved!r}, and did not "
                    "restore them")
        cause = score_cause(self.like, self.place)
        if self.counted is not None and self.counted != self.samples:
            cause = f"it counted {self.counted} samples and not {self.samples}"
        return (f"an evaluation after the trial found {self.metric} {self.reported:.6g}, and the harness "
                f"{self.own:.6g} with the weights that were trained: {cause}")


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
    | RankWeightsDiffer | NarrowMasters | MovedByEvaluation | OtherEvaluation | Contradicted | OtherStep
    | OtherScore | NoSuccess | CheckFailed | OtherOperations, Field(discriminator="kind")]
"""A reason why a trial ended as it did."""
