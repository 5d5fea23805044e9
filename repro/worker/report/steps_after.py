"""Steps after the trial, repeated by the harness, which compares loss, gradient, update and score with its own.

The gate compares them up to step 59. What freezes, rounds, loses or repeats something later, and stays so, shows here;
no clock runs. The optimizer's state is reset to that after the warm-up, so it need not be read from the engine. Every
update is repeated from the engine's own gradient: rounding of the gradient, which an optimizer may amplify, is compared
before it, and what is left is the rule alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import psutil

from repro.core import devices
from repro.core.random_streams import Streams
from repro.record.derive.effective import scores_differ
from repro.record.log.facts import Apart, ScoreAgain, StepAgain, StepsAgain
from repro.seams.training import Batch, Engine, Job, Optimizer, Preconditioner, TrainingParts
from repro.seams.workload import WholeSet, map_tensors
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.training_options import GateOptions
from repro.worker.evaluation import share_batches
from repro.worker.kept_steps import KeptStep, has_a_gradient
from repro.worker.report.final_checks import assemble
from repro.worker.report.layer_trace import traced
from repro.worker.report.own_step import Begun, Found, OwnStep
from repro.worker.report.score_difference import SAME_SCORE, like_score, where_score_differs
from repro.worker.report.step_difference import Worst, norm_of
from repro.worker.setup import TrialContext
from repro.worker.steps import TimedSteps

RATES = (1.0, 0.1, 1.0)
"""Of the full rate, in turn: what depends on the rate, such as a limit of clipping, shows."""
SPIKE = 3
"""In the first of every three steps samples have the targets of their neighbours: what a large loss changes shows, also
where there is time for one step only."""
MOST_STEPS = 12
"""More than ten, so that what happens in every tenth step is among them."""
SHARE = 45
"""At most one such step, and one kept step, for so many of the trial."""
TIME_SHARE, STEPS_SHARE, WITHIN_SHARE = 0.1, 0.09, 0.03
"""Of the trial's time since its start, the most that all of this takes, all steps, and the kept ones of them; the first
one of each kind, and one evaluation, are repeated however long they take."""


class _Allowance:
    """Decides whether there is time for one more repetition, alike on all ranks."""

    def __init__(self, context: TrialContext) -> None:
        self._session, self._watch = context.session, context.clock.watch
        self._trial = self._began = self._now()
        self._turns: list[float] = []

    def allows(self, share: float) -> bool:
        """Return whether one more, like the longest of its kind, ends within this share of the trial's time;
        collective."""
        self._turns.append(self._now())
        longest = max((later - turn for turn, later in pairwise(self._turns)), default=0.0)
        return not self._session.total([float(self._turns[-1] - self._began + longest > share * self._trial)])[0]

    def begin(self) -> None:
        """Begin repetitions of another kind, which take another time."""
        self._turns = [self._now()]

    def _now(self) -> float:
        return sum(self._watch.seconds().values())


def steps_after(context: TrialContext, trial_steps: TimedSteps) -> StepsAgain | None:
    """Train further steps and return how they, and kept ones, differ from the harness's own; None if a step cannot be
    repeated. All ranks take part, and the session is of no use afterwards.
    """
    session, choices, ledger = context.session, context.choices, trial_steps.ledger
    if ledger is None or not ledger.newest or not has_a_gradient(choices):
        return None
    allowance, trained, functions = _Allowance(context), trial_steps.step, context.started.functions
    assert functions is not None
    dealt = [kept.dealt for kept in ledger.newest]
    numbers = tuple(kept.step for kept in ledger.newest)
    weights = session.weights()
    crowded, diverged = session.total([float(not fits(context.job, weights)), float(not _finite(weights))])
    if crowded:
        return StepsAgain(dealt=numbers, problem="copies of the weights would need over a quarter of the free memory")
    if diverged:  # rounding grows without limit
        return StepsAgain(dealt=numbers)
    own = OwnStep(session, context.trial, context.job, functions)
    kept = trial_steps.keeper.kept if trial_steps.keeper is not None else ()
    within = _steps_within(context, own, kept, max(1, trained // SHARE), weights, allowance)
    own.newest = {}
    allowance.begin()
    updates = has_an_update(choices) and session.forget_optimizer()
    count = max(1, min(MOST_STEPS, trained // SHARE)) if updates else 1
    # In turn, the last one of the trial second: a gradient that comes a step late is nearly right on the same batches.
    steps = list[StepAgain]()
    for number in range(count):
        if not allowance.allows(STEPS_SHARE) and number:
            count = number  # all that there was time for
            break
        context.begin_check(f"step {number + 1} after the trial")
        if (step := _step(context, own, number + 1, _batches(number, dealt), weights, updates)) is None:
            break
        steps.append(step)
    scores = _scores(context, own, functions, weights, allowance) if updates and len(steps) == count else ()
    if problems := [text for text in session.gather(own.problem) if text]:
        return StepsAgain(dealt=numbers, problem=problems[0])
    return StepsAgain(dealt=numbers, within=within, updates=updates, steps=tuple(steps), scores=scores)


def _batches(number: int, dealt: Sequence[Sequence[Batch]]) -> Sequence[Batch]:
    batches = dealt[number % len(dealt)]
    if number % SPIKE:
        return batches
    return [(inputs, targets.roll(1, 0) if hasattr(targets, "roll") else targets) for inputs, targets in batches]


def _step(
    context: TrialContext, own: OwnStep, number: int, batches: Sequence[Batch], weights: dict[str, np.ndarray],
    updates: bool,
) -> StepAgain | None:
    """Train one step and return how it differs; None: a rank could not repeat it, or its loss is not finite. Every rank
    gathers as often as the others, also if one has failed.

    Args:
        weights: before the step; those after it take their place.
    """
    session = context.session
    seed = Streams(context.trial.master_seed, context.trial.repeat).seed("steps-after", number, context.job.rank)
    begun = Begun(weights.copy(), own.buffers(session.buffers()),
                  map_tensors(batches, lambda tensor: tensor.clone()),  # a model may change its inputs in place
                  lambda: _seed(context.job.device, seed))
    begun.reseed()
    parts = context.started.parts
    with traced(parts.model if parts is not None else None, context.choices) as layers:
        loss = float(session.backward(batches))
    gradients = session.gradients()
    apart = own.compare_gradient(begun, Found(loss, gradients, session.buffers(), layers))
    if apart is None:
        return None
    if updates:
        rate = context.choices.rate * RATES[(number - 1) % len(RATES)]
        session.update(rate)
        weights.update(session.weights())
        # The loss scale may have overflowed, which leaves the update out.
        if apart and _finite(gradients):
            apart += own.compare_update(begun.weights, gradients, weights, rate)
    return own.repeated(number, apart)


def _steps_within(
    context: TrialContext, own: OwnStep, kept: Sequence[KeptStep], most: int, weights: Mapping[str, np.ndarray],
    allowance: _Allowance,
) -> tuple[StepAgain, ...]:
    """Return how kept steps of the trial differ; all ranks take part.

    Args:
        kept: the most important one first; a rank may have had no place for one of them.
        most: repeated ones.
        weights: any, of the names and shapes of the trial's.
    """
    session, found = context.session, list[StepAgain]()
    numbers = session.gather([item.step for item in kept])
    common = [item for item in kept if all(item.step in other for other in numbers)][:most]
    for item in common:
        if not allowance.allows(WITHIN_SHARE) and found:
            break
        context.begin_check(f"step {item.step + 1} again")
        begun = Begun(assemble(session, item.held, weights), own.buffers(item.buffers),
                      map_tensors(item.batches, lambda tensor: tensor.to(context.job.device)), item.random.restore)
        own.newest = {}
        gradients = assemble(session, item.gradients, weights)
        apart = own.compare_gradient(begun, Found(float(item.loss), gradients))
        if apart is None:
            break
        apart += stepped_otherwise(context, item, gradients)
        found.append(StepAgain(number=item.step + 1, apart=tuple(apart)))
    return tuple(sorted(found, key=lambda step: step.number))


def stepped_otherwise(context: TrialContext, kept: KeptStep, gradients: Mapping[str, np.ndarray]) -> list[Apart]:
    """Return the tensor of which the optimizer was given another gradient than that of the backward pass, clipped; all
    ranks take part. What it was not given counts as 0.

    Args:
        gradients: the full ones of the backward pass.
    """
    session, choices = context.session, context.choices
    if not all(session.gather(kept.stepped is not None and _finite(gradients))):
        return []  # not read, or a scaled gradient overflowed
    given = {name: np.nan_to_num(array, nan=0.0)
             for name, array in assemble(session, kept.stepped or (), gradients).items()}
    factor = 1.0
    if choices.gradient_clip is not None:
        norms = [np.linalg.norm([norm_of(array) for array in arrays.values()]) for arrays in (gradients, given)]
        factor = min(1.0, choices.gradient_clip / (float(norms[0]) + 1e-6))  # as torch and DeepSpeed clip
        if choices.engine.get(Engine).ungated_clipping and choices.processes > 1 and norms[0]:
            factor = float(norms[1] / norms[0])  # the norm of another gradient
    worst = Worst("stepped")
    for name, array in gradients.items():
        worst.add(name, given[name], np.float32(factor) * array)
    return worst.found()


COPIES = 13
"""Of the weights on the host while a step is repeated: before and after it, six gradients, the optimizer's parameters
and its state before and after the step."""


def fits(job: Job, weights: Mapping[str, np.ndarray]) -> bool:
    """Return whether the copies of all ranks need at most a quarter of the memory that is free."""
    size, enough = sum(array.nbytes for array in weights.values()), True
    if devices.on_gpu(job.device):
        enough = COPIES * size <= devices.free_bytes(job.device) / 4
    return enough and COPIES * job.world * size <= psutil.virtual_memory().available / 4


def _finite(arrays: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values())


def has_an_update(choices: TrainingConfig) -> bool:
    """Return whether the update of one process, from the mean gradient, is that of the trial."""
    clipping = choices.gradient_clip is not None and choices.processes > 1
    engine = choices.engine.get(Engine)
    return not (choices.preconditioner.get(Preconditioner).active or (clipping and engine.ungated_clipping)
                or engine.ungated(choices.processes, choices.optimizer.get(Optimizer)))


def _seed(device: str, seed: int) -> None:
    """Let the engine and the harness draw the same masks, from whichever generator."""
    devices.seed(device, seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _scores(
    context: TrialContext, own: OwnStep, functions: TrainingParts, trained: Mapping[str, np.ndarray],
    allowance: _Allowance,
) -> tuple[ScoreAgain, ...]:
    """Return an evaluation of the weights that the steps left, and a second one if there is time: an engine may treat
    every second one otherwise.

    Args:
        trained: the weights now.
    """
    session, job = context.session, context.job
    samples = min(context.workload.eval_samples, (context.choices.gate or GateOptions()).eval_samples)
    with session.evaluated():
        weights = session.weights()
    found, metric = [], context.choices.stop.metric
    if not metric:  # a trial of a fixed number of steps evaluates nothing
        return ()

    def score(values: Mapping[str, np.ndarray], training: bool = False) -> tuple[float, int]:
        if own.model is None:
            return 0.0, 0
        own.model.load(values, session.buffers())  # rank 0's, which an evaluation shares
        return own.model.score(share_batches(functions, job, samples), metric, training)

    def other(values: Mapping[str, np.ndarray], training: bool = False) -> tuple[float, int]:
        with suppress(Exception):  # what a value is like is no part of whether it differs
            return score(values, training)
        return 0.0, 0

    mine, parts = (0.0, 0), context.started.parts
    allowance.begin()
    for number in range(2):
        if number and not allowance.allows(TIME_SHARE):
            break
        context.begin_check(f"evaluation {number + 1} after the trial")
        theirs = session.evaluate(share_batches(functions, job, samples), metric)
        now = session.weights()
        mine_moved = next((name for name in now if not np.array_equal(now[name], trained[name], equal_nan=True)), "")
        moved = next(filter(None, session.gather(mine_moved)), "")
        with own.noting():
            mine = mine if number else score(weights)
        sums = session.total([float(theirs[0]), float(theirs[1]), float(mine[0]), float(mine[1])])
        if not sums[3] or not np.isfinite(sums).all():
            continue
        # The harness's own number divides both, so a lost sample shows.
        reported, right, like = sums[0] / sums[3], sums[2] / sums[3], ""
        if abs(reported - right) > SAME_SCORE * abs(right):
            like = like_score(session, reported, mine, {
                "training": other(weights, training=True), "before": other(own.before)}, int(sums[3]))
        found.append(ScoreAgain(metric=metric, samples=int(sums[3]), reported=reported, own=right, moved=moved,
                                counted=int(sums[1]), like=like))
    differ = [scores_differ(context.choices, metric, item.samples, item.reported, item.own) for item in found]
    whole = isinstance(functions.scores.get(metric), WholeSet) and job.world > 1  # the harness evaluates all of it
    if any(session.gather(any(differ))) and parts is not None and not whole:
        place = where_score_differs(context.choices, session, (parts.model, own.model and own.model.model), (
            lambda: session.evaluate(share_batches(functions, job, samples), metric), lambda: other(weights)))
        found = [item.model_copy(update={"place": place}) if differs else item
                 for item, differs in zip(found, differ, strict=True)]
    return tuple(found)
