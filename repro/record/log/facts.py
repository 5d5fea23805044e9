"""Facts about a finished trial that no engine states: gathered by `worker.report` and `worker.ledger`, judged by
`record.derive.effective`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from repro.core.frozen import Frozen, Lenient
from repro.record.result.step_causes import Place


class RankWeights(Lenient):
    """Hashes of the weights that one rank holds at the end (`worker.weights`)."""

    parts: str
    """Of which numbers it holds: ranks with equal parts must have equal values."""
    sha256: str
    """Of their values."""
    different: int
    """Values that differ from the trial's weights."""
    first: str
    """The first such tensor."""
    other: str = ""
    """The first tensor that is another rank's with equal parts, but for its values."""
    others: int = 0
    """Such tensors."""


class OwnEvaluation(Lenient):
    """One evaluation that the harness repeated."""

    number: int
    samples: int
    reported: float | None
    """The engine's value; None: not finite, as below."""
    own: float | None
    problem: str = ""
    """Why it could not be repeated."""
    like: str = ""
    """What a value that differs equals instead."""


class FinalFacts(Lenient):
    """Facts about a finished trial that no engine states."""

    ranks: tuple[RankWeights | None, ...] = ()
    """None: the rank's own weights cannot be read."""
    wide_share: float = 1.0
    """Share of the master weights with more digits than the narrow type, 0 to 1."""
    moved_by_evaluation: tuple[int, ...] = ()
    """Evaluations that changed the weights."""
    evaluations: tuple[OwnEvaluation, ...] = ()
    optimizer: dict[str, str] = Field(default_factory=dict)
    """The requested optimizer, in the words of `effective`."""
    problem: str = ""
    """Why the model could not be built a second time."""


NoteKind = Literal["samples", "loss", "inputs", "targets", "outside", "backward", "update outside", "flags", "autocast",
                   "updates", "rate", "moved", "state", "data", "evaluation data", "dealt", "clock", "counted",
                   "written", "replaced", "changed", "closure", "own step", "option"]
"""What contradicts a ledger: samples of a step that the model, or the loss, saw; other inputs or targets than dealt;
forward, backward or update outside a timed step; layers in evaluation mode; autocast; updates of a step; the rate;
weights that changed between a drawn step and the next one; what the optimizer keeps, by an evaluation; training data
that were read before the clock started, or are others when they are read again; evaluation samples that were read
inside a step; the trial's clock against the kernel's; steps that the optimizer counts in what it keeps; writes into
weights, or into what the optimizer keeps; such tensors that were replaced, or whose values changed in a kept step
beside the optimizer's own; a closure that the optimizer was given in a kept step; a kept step that is not one update;
an option of the optimizer.
"""


Cause = Literal["", "late", "left out", "held", "narrow", "multiple", "order", "repeated", "some", "shape"]
"""What a wrong rate looks like: that of the step before, 0, that of the first step. What other inputs or targets look
like: rounded to bfloat16, a multiple, in another order, some twice and others not at all, some of them others, or of
another shape."""


class LedgerNote(Frozen):
    """The steps that contradict a ledger in one way."""

    kind: NoteKind
    step: int = Field(ge=0)
    """The first such step, from 0; of what happened outside: the step before."""
    times: int = Field(ge=1)
    """How often it happened: steps, or calls outside a step."""
    found: float = 0.0
    wanted: float = 0.0
    cause: Cause = ""
    """Of the first such step."""
    name: str = ""
    """Of the first tensor that was written or replaced, or of the option."""
    tensors: int = 0
    """Such tensors in the first such step."""
    until: int = 0
    """The first such step is this one at the latest (of "written" and "replaced")."""


class WeightsAt(Frozen):
    """Checksums of the weights that one rank held after a drawn step."""

    step: int
    parts: str
    """Of which numbers it holds: ranks with equal parts must have equal values."""
    values: str
    drawn: str = ""
    """Of the state of the generator of masks (dropout); "": none were drawn."""


class RankLedger(Lenient):
    """The training of one rank, as torch's hooks saw it (`worker.ledger`)."""

    steps: int
    forwarded: int
    """Samples that the model was called on inside timed steps, with gradients; 0: it could not be watched."""
    losses: int
    """The same of the workload's loss."""
    compared: int
    """Steps of which inputs and targets were the dealt objects, or were compared with them."""
    updates: int
    """Steps of the trial's optimizer in most timed steps; 0: it steps none."""
    weights: tuple[WeightsAt, ...] = ()
    notes: tuple[LedgerNote, ...] = ()


MOST_NAMES = 4
"""Names of tensors in one `Apart`."""


class Apart(Frozen):
    """The difference of a loss, or of the tensor of a step that differs most, from the harness's own."""

    what: Literal["loss", "gradient", "buffer", "stepped", "update"]
    """"stepped": the gradient that the optimizer was given, from that of the backward pass, clipped."""
    name: str = ""
    """Of the tensor."""
    apart: float
    """Difference over the own value; of a tensor L2 norms."""
    ratio: float
    """The engine's along the own one, over it: 1 if only noise differs."""
    like: str = ""
    """Another loss, gradient or update that the engine's equals: "rank 1", "late", ... (`result.step_causes.LIKE`)."""
    shares: tuple[float, ...] = ()
    """How often its parts count, of a gradient that is another mean ("parts": of each rank its micro-batches but the
    last one, and that one, if there are several) or of an update ("gradient": its gradient); least and most, if
    tensors have factors of their own ("multiples", "gradients", "follows"); the value of `option`."""
    option: str = ""
    """Of the requested rule, such as "betas[1]", if the update is that with another value of it."""
    until: str = ""
    """The last tensor in the model's order that differs; "": the last of all does."""
    differing: tuple[str, ...] = ()
    """Names of the tensors that differ, at most `MOST_NAMES`."""
    differ: int = 0
    """How many do; 0: all."""


class StepAgain(Frozen):
    """One step that the harness repeated."""

    number: int = Field(ge=1)
    """After the trial; of a kept one in the trial."""
    apart: tuple[Apart, ...] = ()
    """Empty: a scaled gradient overflowed."""
    place: Place | None = None
    """Of a loss or gradient that differs, on the first rank on which a layer does; None: not looked for."""


class ScoreAgain(Frozen):
    """One evaluation after these steps, over all ranks."""

    metric: str
    samples: int
    reported: float
    own: float
    counted: int | None = None
    """Samples that the engine counted."""
    moved: str = ""
    """The first tensor that the evaluation changed."""
    like: str = ""
    """What a value that differs equals instead: "rank 1", "training", "before" (`result.step_causes.LIKE_SCORE`)."""
    place: Place | None = None
    """Where it begins to differ; None: not looked for."""


class StepsAgain(Lenient):
    """The steps that the harness repeated after the trial (`worker.report.steps_after`)."""

    dealt: tuple[int, ...] = ()
    """Steps of the trial, from 0, on whose batches they train in turn."""
    updates: bool = False
    """Updates and scores are compared too; False: the engine makes other updates than one process would."""
    within: tuple[StepAgain, ...] = ()
    """Kept steps of the trial, without updates."""
    steps: tuple[StepAgain, ...] = ()
    scores: tuple[ScoreAgain, ...] = ()
    problem: str = ""
    """Why nothing could be repeated."""
