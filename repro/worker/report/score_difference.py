"""Likenesses of an evaluation that differs from the harness's own, and the place where it begins to differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from repro.record.result.step_causes import Place
from repro.seams.training import Precision, Session
from repro.suite.kinds.training import TrainingConfig
from repro.worker.report.layer_trace import first_place, traced, where_it_begins

SAME_SCORE = 1e-6
"""Relative difference of two evaluations that are one."""


def like_score(
    session: Session, reported: float, mine: tuple[float, int], others: Mapping[str, tuple[float, int]], samples: int
) -> str:
    """Return what a reported evaluation equals instead; all ranks take part.

    Args:
        mine: sum and number of samples that the harness found on this rank.
        others: what it would find otherwise; one that does not have all `samples` failed somewhere.
    """
    found = dict[str, tuple[float, int]]()
    for name, each in others.items():
        total, count = session.total([float(value) for value in each])
        found[name] = (total, int(count) if int(count) == samples else 0)
    each_rank: list[tuple[float, int]] = session.gather(mine)
    # The last ones: the share of right classes among half of the samples may equal another one by chance.
    found |= {f"rank {rank}": value for rank, value in enumerate(each_rank) if len(each_rank) > 1}
    return next((name for name, (total, count) in found.items()
                 if count and abs(total / count - reported) < SAME_SCORE * abs(reported)), "")


def where_score_differs(
    choices: TrainingConfig, session: Session, models: tuple[Any, Any],
    evaluations: tuple[Callable[[], tuple[float, int]], Callable[[], tuple[float, int]]],
) -> Place | None:
    """Evaluate once more and return where the engine's evaluation begins to differ from the harness's own; None: it
    cannot be traced. All ranks take part.

    Args:
        models: the engine's, and the harness's own.
        evaluations: the same; each returns sum and number of samples.
    """
    evaluations[0]()  # one that gives an earlier value has the newest weights' from now on
    with traced(models[0], choices) as theirs:
        reported = evaluations[0]()
    with traced(models[1], choices) as ours:
        right = evaluations[1]()
    sums = session.total([float(reported[0]), float(right[0]), float(right[1])])
    found = None
    with suppress(Exception):  # where a difference begins is no part of whether there is one
        if theirs is not None and ours is not None:
            found = where_it_begins(theirs, ours, choices.precision.get(Precision), evaluated=True)
    places = session.gather(found)
    if not sums[2] or not np.isfinite(sums).all():
        return None
    return first_place(places, fine="loss") if abs(sums[0] - sums[1]) > SAME_SCORE * abs(sums[1]) else Place(at="again")
