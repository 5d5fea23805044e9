"""Steps after the trial, repeated by the harness: are loss, gradient, update and score still those that were asked for?

The gate compares them up to step 59. What freezes, rounds, loses or repeats something later, and stays so, shows here;
no clock runs. The optimizer begins anew, as after the warm-up, so its state needs not be read from the engine. Every
update is repeated from the engine's own gradient: rounding of the gradient, which an optimizer may amplify, is compared
before it, and what is left is the rule alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from repro.core.random_streams import Streams
from repro.record.log.facts import Apart, ScoreAgain, StepAgain, StepsAgain
from repro.record.log.schema import StepsRepeated
from repro.seams.training import Batch, Engine, Optimizer, Preconditioner, TrainingParts
from repro.seams.workload import call_model
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.training_options import GateOptions
from repro.worker.evaluation import OwnModel, share_batches
from repro.worker.setup import TrialContext
from repro.worker.steps import TimedSteps

if TYPE_CHECKING:
    import torch

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
        context.log.write(StepsRepeated(value=steps_after(context, steps.ledger.newest, steps.step)))


def has_a_gradient(choices: TrainingConfig) -> bool:
    """Return whether a trial's gradient can be repeated: PowerSGD sends another one on purpose, and compiled code draws
    other random numbers."""
    return choices.compression != "powersgd" and not choices.compile


def steps_after(context: TrialContext, dealt: Sequence[tuple[int, Sequence[Batch]]], trained: int) -> StepsAgain:
    """Train further steps, at the full rate, and return how they differ from the harness's own; all ranks take part.

    Args:
        dealt: numbers, from 0, of steps of the trial, and this rank's batches of them.
        trained: steps of the trial.
    """
    session, choices = context.session, context.choices
    functions = context.started.functions
    assert functions is not None
    own, problem = None, ""
    try:
        own = _Own(OwnModel(context.trial, context.job, functions), choices)
    except (RuntimeError, MemoryError) as error:
        problem = f"the model could not be built a second time: {_line(error)}"
    updates = _has_an_update(choices) and session.forget_optimizer()
    count = max(1, min(MOST_STEPS, trained // SHARE)) if updates else 1
    streams, steps = Streams(context.trial.master_seed, context.trial.repeat), []
    for number in range(1, count + 1):
        # In turn, because a gradient that comes a step late is nearly right on the same batches.
        batches = dealt[number % len(dealt)][1]
        weights, buffers = session.weights(), session.buffers()
        seed = streams.seed("last-gradient", number, context.job.rank)
        _seed(seed)
        loss, gradients = float(session.backward(batches)), session.gradients()
        mine: tuple[float, dict[str, np.ndarray]] | None = None
        if own is not None and not problem:
            try:
                mine = own.gradients(weights, buffers, batches, seed)
            except (RuntimeError, MemoryError, KeyError) as error:
                problem = _line(error)
        losses = session.gather(None if mine is None else [loss, mine[0]])
        # Every rank gathers as often as the others, also if one of them has failed.
        means = {name: _mean(session.gather(None if mine is None else mine[1][name])) for name in gradients}
        changes: list[Apart] = []
        if updates:
            session.update(choices.rate)
            after = session.weights()
            if context.job.rank == 0 and own is not None and not problem:
                changes = own.compare_update(weights, gradients, after)
        steps.append(StepAgain(number=number, apart=tuple(_of_step(losses, gradients, means) + changes)))
    scores = _scores(context, own, functions) if updates else ()
    found = [text for text in session.gather(problem) if text]
    return StepsAgain(dealt=tuple(step for step, _ in dealt), updates=updates, steps=() if found else tuple(steps),
                      scores=() if found else scores, problem=found[0] if found else "")


def _has_an_update(choices: TrainingConfig) -> bool:
    """Return whether the update of one process, from the mean gradient, is that of the trial."""
    clipping = choices.gradient_clip is not None and choices.processes > 1
    engine = choices.engine.get(Engine)
    return not (choices.preconditioner.get(Preconditioner).active or (clipping and engine.ungated_clipping)
                or engine.ungated(choices.processes, choices.optimizer.get(Optimizer)))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _seed(seed: int) -> None:
    """Let the engine and the harness draw the same masks, from whichever generator."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


class _Own:
    """The model and the optimizer of the harness."""

    def __init__(self, model: OwnModel, choices: TrainingConfig) -> None:
        self.model, self.clip, self.rate = model, choices.gradient_clip, choices.rate
        self.rule: torch.optim.Optimizer | None = None
        self.stepped: dict[str, torch.nn.Parameter] = {}

    def gradients(
        self, weights: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray], batches: Sequence[Batch], seed: int
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Return this rank's mean loss over its micro-batches, and its gradient by name, float32."""
        own = self.model
        own.load(weights, buffers)
        model, scale, total = own.model, SCALE if own.job.precision.loss_scaling else 1.0, 0.0
        model.train()
        model.zero_grad()
        _seed(seed)
        for inputs, targets in batches:
            with own.numerics.autocast():
                outputs = call_model(model, own.numerics.inputs(inputs))
            loss = own.functions.loss(own.numerics.outputs(outputs), targets)
            total += float(loss.detach()) / len(batches)
            (loss * (scale / len(batches))).backward()  # type: ignore[no-untyped-call]
        return total, {name: np.zeros(tuple(parameter.shape), np.float32) if parameter.grad is None
                       else parameter.grad.detach().float().cpu().numpy() / np.float32(scale)
                       for name, parameter in model.named_parameters() if name in weights}

    def compare_update(
        self, weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
    ) -> list[Apart]:
        """Return the tensor whose update differs most from that of the requested rule for the same gradient; nothing
        if the loss scale overflowed, which leaves an update out."""
        import torch

        if not all(np.isfinite(array).all() for array in gradients.values()):
            return []
        if self.rule is None:
            self.stepped = {name: torch.nn.Parameter(torch.from_numpy(weights[name]).to(self.model.job.device))
                            for name, parameter in self.model.model.named_parameters() if name in weights}
            self.rule = self.model.job.optimizer.build([*self.stepped.items()])
        with torch.no_grad():
            for name, parameter in self.stepped.items():
                parameter.copy_(torch.from_numpy(weights[name]))
                parameter.grad = torch.from_numpy(gradients[name]).to(parameter.device, copy=True)
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.stepped.values(), self.clip)
        for group in self.rule.param_groups:
            group["lr"] = self.rate
        self.rule.step()
        theirs = {name: after[name] - weights[name] for name in self.stepped}
        ours = {name: parameter.detach().cpu().numpy() - weights[name] for name, parameter in self.stepped.items()}
        return [_most_apart("update", theirs, ours, {name: ROUNDING * _norm(weights[name]) for name in ours})]


def _mean(found: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [array.astype(np.float64) for array in found if array is not None]
    return np.sum(known, axis=0) / len(found) if len(known) == len(found) else None


def _of_step(
    losses: Sequence[Sequence[float] | None], gradients: Mapping[str, np.ndarray],
    means: Mapping[str, np.ndarray | None],
) -> list[Apart]:
    """Return how the loss and the gradient of a step differ; nothing if they are not finite, or not known."""
    known = [pair for pair in losses if pair is not None]
    own = {name: array for name, array in means.items() if array is not None}
    if len(known) != len(losses) or own.keys() != gradients.keys() or not all(
            np.isfinite(array).all() for array in gradients.values()):
        return []
    theirs, ours = (sum(pair[place] for pair in known) / len(known) for place in (0, 1))
    return [Apart(what="loss", apart=_short(abs(theirs - ours) / (abs(ours) or 1.0)),
                  ratio=_short(theirs / ours) if ours else 1.0),
            _most_apart("gradient", gradients, own, {})]


def _most_apart(
    what: Literal["gradient", "update"], theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray],
    floors: Mapping[str, float],
) -> Apart:
    """Return the tensor that differs most, as a share of its own norm."""
    norms = {name: _norm(array) for name, array in ours.items()}
    whole = float(np.linalg.norm([*norms.values()]))
    shares = {name: max(0.0, _norm(theirs[name] - array) - floors.get(name, 0.0))
              / (norms[name] + FLOOR * whole + 1e-300) for name, array in ours.items()}
    worst = max(shares, key=lambda name: (shares[name], name))
    along = float(np.sum(theirs[worst].astype(np.float64) * ours[worst]))
    return Apart(what=what, name=worst, apart=_short(shares[worst]), ratio=_short(along / max(norms[worst]**2, 1e-300)))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))


def _scores(context: TrialContext, own: _Own | None, functions: TrainingParts) -> tuple[ScoreAgain, ...]:
    """Return two evaluations at least of the weights that the steps left: an engine that leaves every second one out
    shows it."""
    session, job, choices = context.session, context.job, context.choices
    samples = min(context.workload.eval_samples, (choices.gate or GateOptions()).eval_samples)
    with session.evaluated():
        weights = session.weights()
    found, metrics = [], [*functions.scores]
    for metric in metrics if len(metrics) > 1 else metrics * 2:
        theirs, mine = session.evaluate(share_batches(functions, job, samples), metric), (0.0, 0)
        if own is not None:
            own.model.load(weights, session.buffers())  # rank 0's, which an evaluation shares
            mine = own.model.score(share_batches(functions, job, samples), metric)
        sums = session.total([float(theirs[0]), float(theirs[1]), float(mine[0]), float(mine[1])])
        if sums[3]:  # the harness's own number divides both, so a lost sample shows
            found.append(ScoreAgain(metric=metric, samples=int(sums[3]), reported=sums[0] / sums[3],
                                    own=sums[2] / sums[3]))
    return tuple(found)
