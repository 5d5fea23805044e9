"""Steps in the middle of a trial, kept with what they began from: the harness repeats them after it.

What begins late and ends before the trial does shows in no step after it. A copy is a rank's own, so nothing is sent
while the clock runs, and it is made off the clock of training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from repro.seams.training import Batch, Engine, Held, Job, Optimizer, Session
from repro.seams.workload import Workload, map_tensors
from repro.suite.kinds.training import TrainingConfig
from repro.worker.ledger.training import FIRST_WATCHED, drawn_of
from repro.worker.setup import TrialContext
from repro.worker.weights import held_or_full

if TYPE_CHECKING:
    from repro.engines.plain.state import RandomStates

OTHERS, OTHERS_FROM = ("evaluation", "pass"), 256
"""Why steps are kept that were not drawn, and the step from which on: few trials of fewer steps would repeat them."""
MEMORY = 0.25
"""Largest share of the memory that is free before a trial, for the copies of all ranks."""


def has_a_gradient(choices: TrainingConfig) -> bool:
    """Return whether a trial's gradient can be repeated: PowerSGD sends another one on purpose, compiled code draws
    other random numbers, and a workload may keep state that no engine states."""
    return (choices.compression != "powersgd" and not choices.compile
            and choices.workload.get(Workload).repeatable)


def memory_words(trainings: Iterable[TrainingConfig]) -> str:
    """Return what the kept steps of the longest of these trials may need; "" if none keeps any."""
    steps = max((item.budget_steps for item in trainings if has_a_gradient(item)), default=0)
    if steps < FIRST_WATCHED:
        return ""
    most = sum(drawn_of(1 << power) for power in range(FIRST_WATCHED.bit_length() - 1, steps.bit_length()))
    most += len(OTHERS) if steps >= OTHERS_FROM else 0
    free = MEMORY * psutil.virtual_memory().available / 1e9
    return (f"memory: a rank keeps up to {most} steps to be repeated after its trial, three times its part of the "
            f"weights each; all ranks at most {MEMORY:.0%} of what is free, {free:.3g} GB here now")


@dataclass(slots=True)
class KeptStep:
    """One step, and what this rank had before it."""

    step: int
    """From 0."""
    batches: Sequence[Batch]
    held: Sequence[Held]
    buffers: Mapping[str, np.ndarray]
    random: RandomStates
    loss: Any = None
    """As the engine returned it, not yet read."""
    gradients: Sequence[Held] = ()
    """This rank's part of the mean gradient, unclipped."""
    stepped: Sequence[Held] | None = None
    """The same as the optimizer is given it, clipped; None: not read, or it did not step."""

    @property
    def size(self) -> int:
        """Bytes of all three copies."""
        return 3 * sum(item.values.nbytes for item in self.held)


class StepKeeper:
    """Keeps the drawn steps of each doubling, the first step after the newest drawn evaluation, and the first one of
    the newest pass over the data whose number is a power of two; from the step on that the gate does not reach. A
    resumed attempt begins without those of the attempt before it."""

    def __init__(self, session: Session, job: Job, steps_per_pass: float) -> None:
        self.session, self.device, self.processes = session, job.device, job.world
        self.steps_per_pass = steps_per_pass
        self.clips_only = not (job.preconditioner and job.preconditioner.active)
        """Nothing else is between a gradient and the optimizer's step."""
        self.follows_evaluation = False
        """The next step is the first one after a drawn evaluation."""
        self._kept: dict[str, KeptStep] = {}
        # Before the clock starts: the kernel takes a fifth of a millisecond to tell.
        self._limit = MEMORY * psutil.virtual_memory().available / self.processes

    @property
    def kept(self) -> Sequence[KeptStep]:
        """The newest drawn one first, the others last."""
        return [self._kept[why] for why in sorted(
            self._kept, key=lambda why: (why not in OTHERS, self._kept[why].step), reverse=True)]

    def wanted(self, first: int, count: int, drawn: Collection[int]) -> dict[int, str]:
        """Return the steps that are kept of the `count` steps of a block from `first` on (from 0), and why.

        Args:
            drawn: those of the block that the ledger has drawn.
        """
        found = {}
        for step in range(max(first, OTHERS_FROM - 1), first + count):
            number = int(step / self.steps_per_pass)
            if number & (number - 1) == 0 and int((step - 1) / self.steps_per_pass) != number:
                found[step] = OTHERS[1]
        if self.follows_evaluation and first + 1 >= OTHERS_FROM:
            found[first] = OTHERS[0]
        self.follows_evaluation = False
        return found | {step: f"drawn {step}" for step in drawn}

    def begin(self, why: str, step: int, batches: Sequence[Batch]) -> None:
        """Copy what the step begins from. Older copies make room if all would need too much memory; a step that alone
        needs too much is not kept."""
        from repro.engines.plain.state import RandomStates

        kept = KeptStep(step, map_tensors(batches, lambda tensor: tensor.detach().to("cpu", copy=True)),
                        held_or_full(self.session), self.session.buffers(), RandomStates(self.device))
        self._kept.pop(why, None)
        while self._kept and kept.size + sum(item.size for item in self._kept.values()) > self._limit:
            del self._kept[next(iter(self._kept))]
        if kept.size <= self._limit:
            self._kept[why] = kept

    def end(self, why: str) -> None:
        """Copy the gradient, after the backward pass and before the update."""
        if (kept := self._kept.get(why)) is not None:
            kept.gradients = self.session.held_gradients() or ()

    def read_stepped(self, why: str) -> None:
        """Copy the gradient that the optimizer steps with; inside its step."""
        kept, given = self._kept.get(why), self.session.stepped_gradients() if self.clips_only else None
        if kept is not None and given is not None:
            kept.stepped = [*(kept.stepped or ()), *given]

    def end_step(self, why: str, loss: Any) -> None:
        """Keep the loss, as the engine returned it; nothing of a step whose gradient the engine cannot tell."""
        if (kept := self._kept.get(why)) is not None:
            kept.loss = loss
            if not kept.gradients:
                del self._kept[why]


def make_keeper(context: TrialContext) -> StepKeeper | None:
    """Return the keeper of a trial; None if its steps cannot be repeated in the plain loop."""
    choices = context.choices
    engine = choices.engine.get(Engine)
    if context.started.ledger is None or not has_a_gradient(choices) or engine.ungated(
            choices.processes, choices.optimizer.get(Optimizer)):
        return None
    return StepKeeper(context.session, context.job, context.workload.train_samples / choices.batch.global_)
