"""Facts about a finished trial that no engine states: gathered after `run_stop`, judged by `record.final_facts`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

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
) -> dict[str, Any]:
    """Return the facts (JSON-like, `record.final_facts.FinalFacts`); all ranks take part.

    Args:
        weights: the final weights, `Session.weights`.
        batches: returns this rank's share of the evaluation samples, read again.
    """
    from repro.worker.own_model import OwnModel

    session, job = context.session, context.job
    held = session.held()
    ranks = session.gather(describe_held(held, weights, job.precision.weights) if held is not None else None)
    moved = {number for numbers in session.gather(capture.moved) for number in numbers}
    facts: dict[str, Any] = {"ranks": ranks, "wide_share": round(wide_share(weights, job.precision), 6),
                             "moved_by_evaluation": sorted(moved), "evaluations": [], "problem": ""}
    chosen = [capture.newest] if capture.newest else []
    if capture.enabled and last is not None and (not chosen or chosen[0].evaluated != last):
        chosen.append(Captured(last, held_or_full(session), session.buffers()))
    functions = context.started.functions
    assert functions is not None
    try:
        own: OwnModel | None = OwnModel(context.trial, job, functions)
    except (RuntimeError, MemoryError) as error:
        own, facts["problem"] = None, f"the model could not be built a second time: {str(error).splitlines()[0]}"
    # Every rank gathers as often as the others, also if one of them has failed.
    facts["evaluations"] = [_evaluate_again(context, own, item, assemble(session, item.held, weights), batches)
                            for item in chosen]
    facts["optimizer"] = own.describe_optimizer() if own is not None else {}
    return facts


def _evaluate_again(
    context: TrialContext, own: OwnModel | None, item: Captured, weights: Mapping[str, np.ndarray],
    batches: Callable[[], Iterable[Batch]],
) -> dict[str, Any]:
    found, problem = (0.0, 0), "no model"
    if own is not None:
        try:
            own.load(weights, item.buffers)
            found, problem = own.score(batches(), context.choices.stop.metric), ""
        except (RuntimeError, MemoryError, KeyError) as error:
            problem = " ".join(str(error).split())[:200] or type(error).__name__
    shares = context.session.gather([float(found[0]), found[1], problem])
    total, count = sum(share[0] for share in shares), sum(share[1] for share in shares)
    return {
        "number": item.evaluated.number, "samples": item.evaluated.samples, "reported": _finite(item.evaluated.value),
        "own": _finite(total / count) if count else None,
        "problem": next((share[2] for share in shares if share[2]), ""),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
