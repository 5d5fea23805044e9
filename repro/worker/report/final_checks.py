"""Gathers facts about a finished trial that no engine states; `record.derive.final_facts` judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from repro.record.log.schema import FinalFacts, OwnEvaluation
from repro.seams.training import Batch
from repro.worker.context import TrialContext
from repro.worker.evaluation import Evaluated
from repro.worker.rank_weights import describe_held, wide_share
from repro.worker.report.capture import Capture, Captured, assemble, held_or_full

if TYPE_CHECKING:
    from repro.worker.own_model import OwnModel


def gather_facts(
    context: TrialContext, weights: Mapping[str, np.ndarray], capture: Capture, last: Evaluated | None,
    batches: Callable[[], Iterable[Batch]],
) -> FinalFacts:
    """Return the facts; all ranks take part.

    Args:
        weights: the final weights, `Session.weights`.
        batches: returns this rank's share of the evaluation samples, read again.
    """
    from repro.worker.own_model import OwnModel

    session, job = context.session, context.job
    held = session.held()
    ranks = session.gather(describe_held(held, weights, job.precision.weights) if held is not None else None)
    moved = {number for numbers in session.gather(capture.moved) for number in numbers}
    chosen = [capture.newest] if capture.newest else []
    if capture.enabled and last is not None and (not chosen or chosen[0].evaluated != last):
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
    found, problem = (0.0, 0), "no model"
    if own is not None:
        try:
            own.load(weights, item.buffers)
            found, problem = own.score(batches(), context.choices.stop.metric), ""
        except (RuntimeError, MemoryError, KeyError) as error:
            problem = " ".join(str(error).split())[:200] or type(error).__name__
    shares = context.session.gather([float(found[0]), found[1], problem])
    total, count = sum(share[0] for share in shares), sum(share[1] for share in shares)
    return OwnEvaluation(
        number=item.evaluated.number, samples=item.evaluated.samples, reported=_finite(item.evaluated.value),
        own=_finite(total / count) if count else None, problem=next((share[2] for share in shares if share[2]), ""),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
