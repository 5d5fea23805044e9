"""Steps after the trial, repeated by the harness, which compares loss, gradient, update and score with its own.

The gate compares them up to step 59. What freezes, rounds, loses or repeats something later, and stays so, shows here;
no clock runs. The optimizer's state is reset to that after the warm-up, so it need not be read from the engine. Every
update is repeated from the engine's own gradient: rounding of the gradient, which an optimizer may amplify, is compared
before it, and what is left is the rule alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
import psutil

from repro.core import devices
from repro.core.random_streams import Streams
from repro.record.log.facts import Apart, ScoreAgain, StepAgain, StepsAgain
from repro.record.log.schema import StepsRepeated
from repro.seams.training import Batch, Engine, Optimizer, Preconditioner, TrainingParts
from repro.seams.workload import Workload, call_model, map_tensors
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.training_options import GateOptions
from repro.worker.evaluation import OwnModel, share_batches
from repro.worker.setup import TrialContext
from repro.worker.steps import TimedSteps

if TYPE_CHECKING:
    import torch

RATES = (1.0, 1.0, 0.1)
"""Of the full rate, in turn: what depends on the rate, such as a limit of clipping, shows."""
SPIKE = 4
"""In every fourth step samples have the targets of their neighbours: what a large loss changes shows."""
MOST_STEPS = 12
"""More than ten, so that what happens in every tenth step is among them."""
SHARE = 20
"""One such step for so many of the trial: they cost a few hundredths of its time."""
FLOOR = 1e-4
"""Share of the norm of the whole gradient, or update, that is added to that of a tensor: one whose true gradient is 0,
such as a bias before a norm, has only rounding."""
ROUNDING = 4e-7
"""Share of the norm of the weights below which two updates do not differ: a few last places of float32."""
SCALE = 2.0**12
"""Factor of the loss of formats that scale it: a small one, which overflows nowhere."""


def report_steps_after(context: TrialContext, steps: TimedSteps) -> None:
    """Train the steps after the trial and log them; all ranks take part, and the session is of no use afterwards."""
    if steps.ledger is not None and steps.ledger.newest and has_a_gradient(context.choices):
        dealt = [(kept.step, kept.dealt) for kept in steps.ledger.newest]
        context.log.write(StepsRepeated(value=steps_after(context, dealt, steps.step)))


def has_a_gradient(choices: TrainingConfig) -> bool:
    """Return whether a trial's gradient can be repeated: PowerSGD sends another one on purpose, compiled code draws
    other random numbers, and a workload may keep state that no engine states."""
    return (choices.compression != "powersgd" and not choices.compile
            and choices.workload.get(Workload).repeatable)


def steps_after(context: TrialContext, dealt: Sequence[tuple[int, Sequence[Batch]]], trained: int) -> StepsAgain:
    """Train further steps and return how they differ from the harness's own; all ranks take part.

    Args:
        dealt: numbers, from 0, of steps of the trial, and this rank's batches of them.
        trained: steps of the trial.
    """
    session, choices = context.session, context.choices
    functions = context.started.functions
    assert functions is not None
    numbers = tuple(step for step, _ in dealt)
    weights = session.weights()
    crowded, diverged = session.total([float(not _fits(context, weights)), float(not _finite(weights))])
    if crowded:
        return StepsAgain(dealt=numbers, problem="copies of the weights would need over a quarter of the free memory")
    if diverged:  # rounding grows without limit
        return StepsAgain(dealt=numbers)
    own = _Own(context, functions)
    updates = _has_an_update(choices) and session.forget_optimizer()
    count = max(1, min(MOST_STEPS, trained // SHARE)) if updates else 1
    # In turn, the last one of the trial second: a gradient that comes a step late is nearly right on the same batches.
    steps = list[StepAgain]()
    for number in range(count):
        if (step := _step(context, own, number + 1, _batches(number, dealt), updates)) is None:
            break
        steps.append(step)
    scores = _scores(context, own, functions) if updates and len(steps) == count else ()
    if problems := [text for text in session.gather(own.problem) if text]:
        return StepsAgain(dealt=numbers, problem=problems[0])
    return StepsAgain(dealt=numbers, updates=updates, steps=tuple(steps), scores=scores)


def _batches(number: int, dealt: Sequence[tuple[int, Sequence[Batch]]]) -> Sequence[Batch]:
    batches = dealt[number % len(dealt)][1]
    if number % SPIKE != SPIKE - 1:
        return batches
    return [(inputs, targets.roll(1, 0) if hasattr(targets, "roll") else targets) for inputs, targets in batches]


def _step(context: TrialContext, own: _Own, number: int, batches: Sequence[Batch], updates: bool) -> StepAgain | None:
    """Train one step and return how it differs; None: a rank could not repeat it, or its loss is not finite. Every rank
    gathers as often as the others, also if one has failed."""
    session, first = context.session, context.job.rank == 0
    seed = Streams(context.trial.master_seed, context.trial.repeat).seed("steps-after", number, context.job.rank)
    weights, buffers = session.weights(), session.buffers()
    if own.shares_buffers:  # before its forward pass
        buffers = session.gather(buffers)[0]
    copied = map_tensors(batches, lambda tensor: tensor.clone())  # a model may change its inputs in place
    _seed(seed)
    loss, gradients = float(session.backward(batches)), session.gradients()
    own_loss, own_gradients = own.gradients(weights, buffers, copied, seed)
    told = session.gather((loss, own_loss, own.problem))
    losses, before = [pair[:2] for pair in told], own.newest
    worst = _Worst("gradient", context.job.precision.loss_scaling is not None)
    if any(problem for _, _, problem in told) or not np.isfinite([pair[1] for pair in losses]).all():
        return None
    own.newest = {}
    for name, theirs in gradients.items():
        shares = session.gather(own_gradients.pop(name, None))
        if not first or any(share is None for share in shares):
            continue
        whole, last = (np.mean([share[place].astype(np.float64) for share in shares], axis=0) for place in (0, 1))
        own.newest[name] = whole.astype(np.float32)
        likes = {f"rank {rank}": share[0] for rank, share in enumerate(shares)} if len(shares) > 1 else {}
        if len(batches) > 1:
            likes["last"] = last
        if name in before:
            likes["late"] = before[name]
        worst.add(name, theirs, whole, likes=likes)
    gradient = worst.found()
    found = [_of_loss(losses), *gradient]
    if updates:
        rate = context.choices.rate * RATES[(number - 1) % len(RATES)]
        session.update(rate)
        after = session.weights()
        # The loss scale may have overflowed, which leaves the update out.
        if first and _finite(gradients):
            found += own.compare_update(weights, gradients, after, rate)
    return StepAgain(number=number, apart=tuple(found if gradient else ()))


COPIES = 10
"""Of the weights on the host while a step is repeated: before and after it, five gradients, the state of the optimizer
and its parameters."""
LIKE = 0.1
"""Largest difference from what a gradient is like, as a share of that from what it should be."""


def _fits(context: TrialContext, weights: Mapping[str, np.ndarray]) -> bool:
    """Return whether the copies of all ranks need at most a quarter of the memory that is free."""
    size, fits = sum(array.nbytes for array in weights.values()), True
    if devices.on_gpu(context.job.device):
        fits = COPIES * size <= devices.free_bytes(context.job.device) / 4
    return fits and COPIES * context.job.world * size <= psutil.virtual_memory().available / 4


def _finite(arrays: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values())


def _has_an_update(choices: TrainingConfig) -> bool:
    """Return whether the update of one process, from the mean gradient, is that of the trial."""
    clipping = choices.gradient_clip is not None and choices.processes > 1
    engine = choices.engine.get(Engine)
    return not (choices.preconditioner.get(Preconditioner).active or (clipping and engine.ungated_clipping)
                or engine.ungated(choices.processes, choices.optimizer.get(Optimizer)))


def _seed(seed: int) -> None:
    """Let the engine and the harness draw the same masks, from whichever generator."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


class _Own:
    """The model and the optimizer of the harness."""

    def __init__(self, context: TrialContext, functions: TrainingParts) -> None:
        self.job, self.clip = context.job, context.choices.gradient_clip
        self.shares_buffers = context.session.effective().get("broadcast_buffers") == "on"
        self.problem = ""
        """The first failure, after which nothing is repeated."""
        self.model: OwnModel | None = None
        self.rule: torch.optim.Optimizer | None = None
        self.stepped: dict[str, torch.nn.Parameter] = {}
        self.newest: dict[str, np.ndarray] = {}
        """The mean gradient of the step before, on the first rank."""
        self.unused: set[str] = set()
        """Parameters that the newest loss does not depend on: some engines decay them, others leave them alone."""
        with self.noting():
            self.model = OwnModel(context.trial, context.job, functions)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep a failure, so that this rank goes on to gather with the others."""
        try:
            yield
        except Exception as error:  # a workload's own code may raise anything
            self.problem = " ".join(str(error).split())[:200] or type(error).__name__

    def gradients(
        self, weights: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray], batches: Sequence[Batch], seed: int
    ) -> tuple[float, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Return this rank's mean loss over its micro-batches, and by name its gradient and that of the last
        micro-batch alone, float32; empty if it failed.
        """
        own, total, found = self.model, 0.0, dict[str, tuple[np.ndarray, np.ndarray]]()
        if own is None or self.problem:
            return total, found
        scale = SCALE if self.job.precision.loss_scaling else 1.0
        with self.noting():
            own.load(weights, buffers)
            own.model.train()
            own.model.zero_grad()
            _seed(seed)
            share = 1 / len(batches)
            for place, (inputs, targets) in enumerate(batches):
                if place == len(batches) - 1:
                    earlier = self._taken(weights, scale)
                with own.numerics.autocast():
                    outputs = call_model(own.model, own.numerics.inputs(inputs))
                loss = own.functions.loss(own.numerics.outputs(outputs), targets)
                total += float(loss.detach()) * share
                (loss * (scale * share)).backward()  # type: ignore[no-untyped-call]
            self.unused = {name for name, parameter in own.model.named_parameters() if parameter.grad is None}
            found = {name: (array, (array - earlier[name]) / np.float32(share))
                     for name, array in self._taken(weights, scale).items()}
        return total, found

    def _taken(self, weights: Collection[str], scale: float) -> dict[str, np.ndarray]:
        """Return the gradients so far, copied."""
        from repro.engines.plain.session import as_array

        assert self.model is not None
        return {name: np.zeros(tuple(parameter.shape), np.float32) if parameter.grad is None
                else as_array(parameter.grad) / np.float32(scale)
                for name, parameter in self.model.model.named_parameters() if name in weights}

    def compare_update(
        self, weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray],
        rate: float,
    ) -> list[Apart]:
        """Return the tensor whose update differs most from that of the requested rule for the same gradient."""
        import torch

        worst = _Worst("update")
        if self.model is None or self.problem:
            return []
        with self.noting():
            if self.rule is None:
                self.stepped = {name: torch.nn.Parameter(torch.from_numpy(weights[name]).to(self.job.device, copy=True))
                                for name, _ in self.model.model.named_parameters() if name in weights}
                self.rule = self.job.optimizer.build([*self.stepped.items()])
            with torch.no_grad():
                for name, parameter in self.stepped.items():
                    parameter.copy_(torch.from_numpy(weights[name]))
                    parameter.grad = torch.from_numpy(gradients[name]).to(parameter.device, copy=True)
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.stepped.values(), self.clip)
            for group in self.rule.param_groups:
                group["lr"] = rate
            self.rule.step()
            for name, parameter in self.stepped.items():
                if name in self.unused:
                    continue
                before = weights[name]
                worst.add(name, after[name] - before, parameter.detach().cpu().numpy() - before,
                          ROUNDING * _norm(before))
        return worst.found()


def _of_loss(losses: Sequence[Sequence[float]]) -> Apart:
    theirs, ours = (float(np.mean([pair[place] for pair in losses])) for place in (0, 1))
    if not np.isfinite(theirs):
        return Apart(what="loss", apart=UNLIKE, ratio=0.0)
    return Apart(what="loss", apart=_short(abs(theirs - ours) / (abs(ours) or 1.0)),
                 ratio=_short(theirs / ours) if ours else 1.0)


UNLIKE = 1e30
"""Difference of a number that is not finite, which JSON does not have."""


class _Worst:
    """The tensor that differs most, as a share of its own norm."""

    def __init__(self, what: Literal["gradient", "update"], may_overflow: bool = False) -> None:
        self.what, self.may_overflow = what, may_overflow
        self.rows: list[tuple[str, float, float, float]] = []
        """Name, norm of the difference, own norm, product of both tensors."""
        self.squares: Counter[str] = Counter()
        """Squared difference of all tensors from what they could be instead; "": from the own ones."""

    def add(
        self, name: str, theirs: np.ndarray, ours: np.ndarray, floor: float = 0.0,
        likes: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Add a tensor; a difference of at most `floor` counts as none.

        Args:
            likes: what it could be instead.
        """
        apart = _norm(theirs - ours)
        self.squares.update({"": apart**2} | {like: _norm(theirs - array)**2 for like, array in likes.items()})
        self.rows.append((name, apart if np.isnan(apart) else max(0.0, apart - floor), _norm(ours),
                          float(np.sum(theirs.astype(np.float64) * ours))))

    def found(self) -> list[Apart]:
        """Return the tensor; nothing if there is none, or one of the harness's own, or of a scaled loss, is not finite.
        """
        own = np.isfinite([row[2] for row in self.rows]).all()
        infinite = [row[0] for row in self.rows if not np.isfinite(row[1])]
        if infinite and own and not self.may_overflow:
            return [Apart(what=self.what, name=infinite[0], apart=UNLIKE, ratio=0.0)]
        if not self.rows or infinite or not own:
            return []
        least = FLOOR * float(np.linalg.norm([norm for _, _, norm, _ in self.rows])) + 1e-300
        name, apart, norm, along = max(self.rows, key=lambda row: (row[1] / (row[2] + least), row[0]))
        like = min(self.squares, key=lambda kind: (self.squares[kind], kind))
        return [Apart(what=self.what, name=name, apart=_short(apart / (norm + least)),
                      ratio=_short(along / max(norm**2, 1e-300)),
                      like=like if self.squares[like] < LIKE**2 * self.squares[""] else "")]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))


def _scores(context: TrialContext, own: _Own, functions: TrainingParts) -> tuple[ScoreAgain, ...]:
    """Return two evaluations of the weights that the steps left: an engine that leaves every second one out shows it.
    """
    session, job = context.session, context.job
    samples = min(context.workload.eval_samples, (context.choices.gate or GateOptions()).eval_samples)
    with session.evaluated():
        weights = session.weights()
    found, metric = [], context.choices.stop.metric
    for _ in range(2 if metric else 0):  # a trial of a fixed number of steps evaluates nothing
        theirs, mine = session.evaluate(share_batches(functions, job, samples), metric), (0.0, 0)
        with own.noting():
            if own.model is not None:
                own.model.load(weights, session.buffers())  # rank 0's, which an evaluation shares
                mine = own.model.score(share_batches(functions, job, samples), metric)
        sums = session.total([float(theirs[0]), float(theirs[1]), float(mine[0]), float(mine[1])])
        if sums[3] and np.isfinite(sums).all():  # the harness's own number divides both, so a lost sample shows
            found.append(ScoreAgain(metric=metric, samples=int(sums[3]), reported=sums[0] / sums[3],
                                    own=sums[2] / sums[3]))
    return tuple(found)
