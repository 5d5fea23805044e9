"""Steps of one rank in the parity gate, and its measurements there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ConfigDict, Field

from repro.core.errors import ParityError
from repro.core.frozen import Frozen
from repro.record.log.facts import RankLedger, StepAgain
from repro.record.result.step_causes import Place

Kind = Literal["fp32", "precision"]
"""fp32: the long comparison, without rounding to narrow types; precision: a short one in the cell's own format."""
Measure = tuple[float, float]
"""(L2 norm, projection on a fixed random direction) of a tensor."""
Series = Literal["gradient", "weight", "update"]
Fed = tuple[tuple[str, str], ...]
"""Hashes (sha256) of inputs and targets of every micro-batch of one rank in a step."""
AGED_STEPS = 48
"""Steps at rate 0 between the two measured parts: the engine ages beyond step 50, and rounding does not grow."""
LOW_RATE = 1e-2
"""Share of the full rate in one of the last steps."""
YOUNG = (1.0, 0.6, 0.3, 0.15, 0.05)
"""Shares of the full rate in the first steps: a schedule goes through all of them."""
RAGGED = 4
"""Step, from 1, whose last micro-batch is half as large on every rank."""
SPIKE = 10.0
"""Factor of the loss in the last step: limits and guards that ordinary gradients never reach act there."""
LEAST_RATE = 1e-4
"""Smallest share of the full rate that the gate uses: below it float32 loses the update in the weights."""


class Step(NamedTuple):
    """One measured step."""

    number: int
    """From 1."""
    share: float
    """Of the full rate."""
    split: bool
    """True: `backward` and `update`, with the gradients in between; False: `step`, as in a trial."""
    before_evaluation: bool = True
    factor: float = 1.0
    """Of the loss."""
    ragged: bool = False
    """The last micro-batch of every rank has half its samples, and its loss so much less weight."""


def measured_steps(kind: Kind, least_share: float) -> tuple[Step, ...]:
    """Return the measured steps of the gate.

    Args:
        least_share: the schedule's smallest rate as a share of the full one.
    """
    least = min(LOW_RATE, max(LEAST_RATE, least_share))
    count = len(YOUNG) if kind == "fp32" else 3
    young = [Step(1 + index, share, split=True, ragged=kind == "fp32" and 1 + index == RAGGED)
             for index, share in enumerate(YOUNG[:count])]
    first = count + 1 + (AGED_STEPS if kind == "fp32" else 0)
    # Afterwards one more step at the full rate: an evaluation must leave the engine as it was.
    aged = [Step(first, 1.0, split=True), Step(first + 1, 1.0, split=False), Step(first + 2, LOW_RATE, split=False),
            Step(first + 3, least, split=False), Step(first + 4, 1.0, split=False, before_evaluation=False)]
    if kind == "precision":  # a scaled loss could overflow narrow gradients in one engine and not in another
        return (*young, *aged)
    # The last of all, because of what it leaves in the momentum; the rate makes up for the size of the gradients.
    return (*young, *aged, Step(first + 5, 1 / SPIKE, split=False, before_evaluation=False, factor=SPIKE))


STEPS = measured_steps("fp32", 0.0)[-1].number
"""Optimizer steps of the gate in fp32."""


class Evaluation(Frozen):
    """One evaluation in the gate."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    step: int
    """The last step before it."""
    value: float
    own: float | None = None
    """The harness's own evaluation of the same weights; None: not to be compared."""
    like: str = ""
    """What a value that differs equals instead (`worker.report.score_difference.like_score`)."""
    place: Place | None = None
    """Where it begins to differ."""
    moved: str = ""
    """First tensor that the evaluation changed; "" if none."""
    stirred: str = ""
    """First buffer that it changed, for words only: some models count their calls."""
    resting: int = 0
    """Layers that it left in evaluation mode."""
    counted: int = 0
    """Samples that the engine evaluated, over all ranks."""
    samples: int = 0
    """Those that it was given."""


class Trace(Frozen):
    """The measurements of one rank in the gate; lists have one item per measured step."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a NaN is a finding, not a damaged file

    rank: int
    steps: tuple[int, ...]
    """Numbers of the measured steps."""
    fed: tuple[Fed, ...]
    """By step."""
    aged_fed: tuple[Fed, ...] = ()
    """The same in every step at rate 0."""
    loss: tuple[float, ...]
    """Mean loss over ranks and micro-batches."""
    aged_loss: tuple[float, ...] = ()
    """The same in every step at rate 0."""
    initial: dict[str, Measure] = Field(default_factory=dict)
    """Name -> the full weights before the first step."""
    gradients: dict[str, tuple[Measure | None, ...]]
    """Name -> the full mean gradient before clipping, by step; None: this step was not split."""
    weights: dict[str, tuple[Measure, ...]]
    """Name -> the full weights after the update, by step."""
    updates: dict[str, tuple[Measure, ...]] = Field(default_factory=dict)
    """Name -> the change of the full weights, by step."""
    again: tuple[StepAgain, ...] = ()
    """Differences of the measured steps of a candidate from the harness's own of its weights; on its first rank."""
    ledger: RankLedger | None = None
    """What a candidate's model, loss and optimizer saw (`worker.ledger`), for words about what differs."""
    moved_between: tuple[int, str] | None = None
    """First measured step before which the weights are not those after the step before it, and such a tensor."""
    moved_at_rate_zero: str = ""
    """First tensor that the steps at rate 0 changed; "" if none."""
    buffers: dict[str, Measure]
    """Name -> after the first evaluation."""
    evaluations: tuple[Evaluation, ...]
    """One before the last step and one after it, so that what an evaluation leaves to the next one shows."""
    parts: str = ""
    """Hash of which weights this rank holds itself; ranks with equal parts must have equal `held`."""
    held: str = ""
    """Hash of them."""
    different: int = 0
    """Number of them that differ from the full weights."""
    first_different: str = ""
    wide_share: float = 1.0
    """Share of the full weights with more digits than the narrow type."""
    optimizer: dict[str, str] = Field(default_factory=dict)
    """The requested optimizer, in the words of `effective`."""
    effective: dict[str, str]

    def measures(self, what: Series, index: int) -> dict[str, Measure | None]:
        """Return the tensors of one measured step by name."""
        every: Mapping[Series, Mapping[str, Sequence[Measure | None]]] = {
            "gradient": self.gradients, "weight": self.weights, "update": self.updates}
        return {name: values[index] for name, values in every[what].items()}


def read_traces(folder: Path, processes: int) -> list[Trace]:
    """Read the traces of all ranks of one trial.

    Raises:
        ParityError: a rank left no readable trace.
    """
    traces = []
    for rank in range(processes):
        path = folder / f"trace{rank}.json"
        try:
            traces.append(Trace.model_validate_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ParityError(f"parity gate: rank {rank} left no readable trace in {path}: {error}") from error
    return traces
