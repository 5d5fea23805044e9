"""The facts that the worker gathers after a trial, and what they say about it: a doubt, or that it is invalid."""

from __future__ import annotations

from collections.abc import Mapping

from repro.record.log.schema import FinalFacts
from repro.seams.training import Precision, Workload
from repro.suite.kinds.training import TrainingConfig

LEAST_WIDE_SHARE = 0.1
"""Smallest share of master weights with more digits than the narrow type; nearly all have them."""
EVALUATION_TOLERANCE = 1e-3
"""Largest difference between the engine's evaluation and the harness's own, as a share of the larger value; a score of
a sample between 0 and 1 may differ by one sample more. Healthy engines differ by nothing (measured on a CPU)."""
LOW_PRECISION_TOLERANCE = 5e-3
"""The same if products are narrower than float32: another kernel rounds a sample to the other side."""
EVALUATION_COST = 3.0
"""Seconds of a sample in an evaluation over those in training, for each view of a sample, beyond which a reader is
warned. Healthy engines need 0.04 to 0.12; an engine that leaves work to the evaluation needs many times more."""
GAP_SHARE = 0.05
"""Largest share of the wall clock that blocks of steps may last longer than their steps, without a warning."""


def covers_every_rank(facts: FinalFacts) -> bool:
    """Return whether every rank's own weights are known, and equal where ranks hold the same."""
    return bool(facts.ranks) and None not in facts.ranks and not find_wrong_ranks(facts)


def find_failures(choices: TrainingConfig, facts: FinalFacts, effective: Mapping[str, str]) -> list[str]:
    """Return a phrase for everything that makes the trial invalid.

    The phrases are part of results, which are derived from the log again: as in `effective.mismatches`.
    """
    return [*find_wrong_ranks(facts), *_narrow_masters(choices, facts), *_moved(facts),
            *_other_evaluations(choices, facts), *_other_optimizer(facts, effective)]


def find_wrong_ranks(facts: FinalFacts) -> list[str]:
    """Return the ranks whose own weights differ from those of other ranks, or from the weights of the trial."""
    found: list[str] = []
    first: dict[str, tuple[int, str]] = {}
    for rank, held in enumerate(facts.ranks):
        if held is None:
            continue
        before, values = first.setdefault(held.parts, (rank, held.sha256))
        if values != held.sha256:
            found.append(f"rank {rank} ended with other weights than rank {before}")
        elif held.different:
            found.append(f"{held.different} of rank {rank}'s own weights differ from the trial's, "
                         f"the first in {held.first!r}")
    return found


def _narrow_masters(choices: TrainingConfig, facts: FinalFacts) -> list[str]:
    if facts.wide_share >= LEAST_WIDE_SHARE:
        return []
    precision = choices.precision.get(Precision)
    narrow = {"float16": "float16"}.get(precision.autocast or precision.weights, "bfloat16")
    return [f"only {facts.wide_share:.1%} of the master weights have more digits than {narrow}: they were rounded"]


def _moved(facts: FinalFacts) -> list[str]:
    if not facts.moved_by_evaluation:
        return []
    return [f"evaluation {facts.moved_by_evaluation[0]} changed the weights: training was left to it"]


def _other_evaluations(choices: TrainingConfig, facts: FinalFacts) -> list[str]:
    precision = choices.precision.get(Precision)
    narrow = precision.autocast or precision.weights != "float32" or precision.tf32
    relative = LOW_PRECISION_TOLERANCE if narrow else EVALUATION_TOLERANCE
    workload = choices.workload.get(Workload)
    bounded = tuple(workload.ranges.get(choices.stop.metric, ())) == (0.0, 1.0)
    one_sample = 1 / workload.eval_samples if bounded and workload.eval_samples else 0.0
    found = []
    for item in facts.evaluations:
        if item.reported is None or item.own is None:
            continue
        allowed = relative * max(abs(item.reported), abs(item.own)) + one_sample
        if abs(item.reported - item.own) > allowed * (1 + 1e-9):
            found.append(f"evaluation {item.number} found {choices.stop.metric} {item.reported:.6g}, and the harness "
                         f"{item.own:.6g} with the same weights")
    return found


def _other_optimizer(facts: FinalFacts, effective: Mapping[str, str]) -> list[str]:
    return [f"{name.replace('_', ' ')} {wanted} was asked for, {effective[name]} ran"
            for name, wanted in facts.optimizer.items() if name in effective and effective[name] != wanted]


def describe_facts(facts: FinalFacts) -> list[str]:
    """Return warnings about what could not be checked."""
    found = [f"the harness could not repeat evaluation {item.number}: {item.problem}" for item in facts.evaluations
             if item.problem]
    return [*([facts.problem] if facts.problem else []), *found]


def describe_cost(choices: TrainingConfig, phases: Mapping[str, float], samples: int, evaluations: int) -> list[str]:
    """Return the warning about evaluations that take longer than evaluating can take."""
    workload = choices.workload.get(Workload)
    train, evaluated = phases.get("train", 0.0), evaluations * workload.eval_samples
    if not (train > 0 and samples and evaluated):
        return []
    ratio = phases.get("eval", 0.0) / evaluated / (train / samples)
    limit = EVALUATION_COST * max(1, workload.test_views or 1)
    if ratio <= limit:
        return []
    return [f"a sample took {ratio:.1f} times as long in an evaluation as in training (limit {limit:g}): an engine may "
            "have left training to it"]


def describe_gap(gap_seconds: float, wall_seconds: float | None) -> list[str]:
    """Return the warning about blocks of steps whose steps do not explain their time."""
    if not wall_seconds or abs(gap_seconds) <= GAP_SHARE * wall_seconds:
        return []
    than = "longer" if gap_seconds > 0 else "shorter"
    return [f"blocks of steps took {abs(gap_seconds) / wall_seconds:.0%} of the wall clock {than} than their steps "
            f"(limit {GAP_SHARE:.0%})"]
