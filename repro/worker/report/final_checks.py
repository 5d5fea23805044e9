"""Gathers facts about a finished trial that no engine states; `record.derive.effective` judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from repro.core.random_streams import Streams
from repro.record.derive.effective import scores_differ
from repro.record.log.facts import FinalFacts, OwnEvaluation
from repro.seams.training import Batch, Held, Session
from repro.worker.evaluation import Evaluated, OwnModel
from repro.worker.report.score_difference import like_score
from repro.worker.setup import TrialContext
from repro.worker.weights import describe_held, held_or_full, in_groups, tensor_sums, wide_share, with_others


@dataclass(frozen=True, slots=True)
class Captured:
    """An evaluation, and what this rank held when it was made."""

    evaluated: Evaluated
    held: Sequence[Held]
    buffers: Mapping[str, np.ndarray]


class Capture:
    """Draws one evaluation of every doubling (1, 2-15, 16-31, ...); keeps the weights of the last drawn one, and of the
    one that reached the target first.

    Engines do not receive the drawn numbers, but one that knows the seed could compute them. The number of evaluations
    need not be known, and few of them cost the copy. A copy is a rank's own: nothing is sent while the clock runs.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context
        self.enabled = context.parts is not None
        streams = Streams(context.trial.master_seed, context.trial.repeat)
        doublings = [(1, 1), (2, 14), *((1 << power, 1 << power) for power in range(4, 32))] if self.enabled else []
        self.drawn = {first + int(streams.generator("captured-evaluation", first).integers(count))
                      for first, count in doublings}
        """Numbers of evaluations: the first, one drawn of the 14 after it, then one of each doubling. Drawn before the
        trial, because a generator costs a tenth of a millisecond of its clock."""
        self.newest: Captured | None = None
        self.crossing: Captured | None = None
        """The evaluation that reached the target first, if further ones must confirm it."""
        self.moved: list[int] = []
        """Drawn evaluations that changed the weights."""
        self._before: Sequence[Held] = ()

    def before(self) -> None:
        """Keep the weights that are about to be evaluated: on this clock a copy costs less than its hash."""
        with self.context.session.evaluated():
            self._before = held_or_full(self.context.session)

    def after(self, evaluated: Evaluated) -> None:
        """Keep the weights that were evaluated.

        What is held both before and after is compared: an engine that gathers its shards to evaluate may keep whole
        parameters afterwards.
        """
        with self.context.session.evaluated():
            held = held_or_full(self.context.session)
        if _differ(self._before, held):
            self.moved.append(evaluated.number)
        self._before = ()
        self.newest = Captured(evaluated, held, self.context.session.buffers())

    def keep_crossing(self, evaluated: Evaluated | None) -> None:
        """Keep the weights of the evaluation that has just reached the target."""
        if self.enabled and evaluated is not None:
            with self.context.session.evaluated():
                self.crossing = Captured(evaluated, held_or_full(self.context.session), self.context.session.buffers())


def _differ(before: Sequence[Held], after: Sequence[Held]) -> bool:
    """Return True if a bit differs in what is held both before and after."""
    now = {(item.name, item.start, item.values.size): item.values for item in after}
    return any((item.values.view(np.uint32) != found.view(np.uint32)).any() for item in before
               if (found := now.get((item.name, item.start, item.values.size))) is not None)


def assemble(session: Session, held: Sequence[Held], full: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the full weights from what the ranks held; all ranks take part.

    Args:
        full: any weights of the same names and shapes.
    """
    whole = {item.name: item.values for item in held if not item.start and item.values.size == full[item.name].size}
    if all(session.gather(whole.keys() == full.keys())):
        return {name: values.reshape(full[name].shape) for name, values in whole.items()}
    made = {name: np.full(array.size, np.nan, np.float32) for name, array in full.items()}
    for names in in_groups(full):
        for share in session.gather([(item.name, item.start, item.values) for item in held if item.name in names]):
            for name, start, part in share:
                made[name][start:start + part.size] = part
    return {name: values.reshape(full[name].shape) for name, values in made.items()}


def gather_facts(
    context: TrialContext, weights: Mapping[str, np.ndarray], capture: Capture, last: Evaluated | None,
    batches: Callable[[], Iterable[Batch]],
) -> FinalFacts:
    """Return the facts; all ranks take part.

    Args:
        weights: the final weights, `Session.weights`.
        batches: returns this rank's share of the evaluation samples, read again.
    """
    session, job = context.session, context.job
    held = session.held()
    ranks = session.gather(describe_held(held, weights, job.precision.weights) if held is not None else None)
    if any(count > 1 for count in Counter(parts for parts, _ in {(rank.parts, rank.sha256) for rank in ranks if rank})
           .values()):  # of two ranks that hold the same parts, one has other values
        ranks = with_others(ranks, session.gather(tensor_sums(held or ())))
    moved = {number for numbers in session.gather(capture.moved) for number in numbers}
    chosen = [item for item in (capture.newest, capture.crossing) if item is not None]
    if len(chosen) == 2 and chosen[0].evaluated == chosen[1].evaluated:
        chosen.pop()
    if capture.enabled and last is not None and all(item.evaluated != last for item in chosen):
        chosen.append(Captured(last, held_or_full(session), session.buffers()))
    functions = context.started.functions
    assert functions is not None
    try:
        own: OwnModel | None = OwnModel(context.trial, job, functions)
        problem = ""
    except (RuntimeError, MemoryError) as error:
        own, problem = None, f"the model could not be built a second time: {str(error).splitlines()[0]}"
    # Every rank gathers as often as the others, also if one of them has failed.
    evaluations = [_evaluate_again(context, own, item, assemble(session, item.held, weights), batches)
                   for item in chosen]
    return FinalFacts(
        ranks=ranks, wide_share=round(wide_share(weights, job.precision), 6), moved_by_evaluation=sorted(moved),
        evaluations=evaluations, optimizer=own.describe_optimizer() if own is not None else {}, problem=problem,
    )


def _evaluate_again(
    context: TrialContext, own: OwnModel | None, item: Captured, weights: Mapping[str, np.ndarray],
    batches: Callable[[], Iterable[Batch]],
) -> OwnEvaluation:
    context.begin_check(f"evaluation {item.evaluated.number} again")
    found, problem = (0.0, 0), "no model"
    if own is not None:
        try:
            own.load(weights, item.buffers)
            found, problem = own.score(batches(), context.choices.stop.metric), ""
        except (RuntimeError, MemoryError, KeyError) as error:
            problem = " ".join(str(error).split())[:200] or type(error).__name__
    shares = context.session.gather([float(found[0]), found[1], problem])
    total, count = sum(share[0] for share in shares), sum(share[1] for share in shares)
    reported, right, like = _finite(item.evaluated.value), _finite(total / count) if count else None, ""
    problem = next((share[2] for share in shares if share[2]), "")
    metric = context.choices.stop.metric
    if reported is not None and right is not None and scores_differ(
            context.choices, metric, int(count), reported, right):
        training = (0.0, 0)
        with suppress(Exception):  # what a value is like is no part of whether it differs
            if own is not None:
                own.load(weights, item.buffers)
                training = own.score(batches(), metric, training=True)
        like = like_score(context.session, reported, found, {"training": training}, int(count))
    return OwnEvaluation(number=item.evaluated.number, samples=item.evaluated.samples, reported=reported, own=right,
                         problem=problem, like=like)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
