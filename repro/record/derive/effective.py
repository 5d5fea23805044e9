"""Whether the trial that ran is the requested one (method.md 3.6): settings read back, and facts at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro.core.machine import rank_threads
from repro.record.log.facts import Apart, FinalFacts, LedgerNote, RankLedger, StepAgain, StepsAgain
from repro.record.result.reasons import (
    Contradicted,
    MovedByEvaluation,
    NarrowMasters,
    OtherEvaluation,
    OtherScore,
    OtherStep,
    RankWeightsDiffer,
    Reason,
    Unlike,
)
from repro.record.result.result_warnings import GAP_SHARE, BlockGap, NotChecked, SlowEvaluation
from repro.record.result.step_causes import EXACT, EXPLAINED, Place
from repro.seams.training import BACKEND, Comm, Engine, Optimizer, Precision, Preconditioner, Workload
from repro.suite.kinds import training_options as model_options
from repro.suite.kinds.training import TrainingConfig

UNKNOWN = "unknown"
"""Value that an engine reports for an unknown setting: shown, but not judged."""


def requested(choices: TrainingConfig) -> dict[str, str]:
    """Return what was requested, in the names and words in which engines read back; only what can be judged."""
    precision = choices.precision.get(Precision)
    wanted = {
        "matmul_dtype": precision.autocast or precision.weights,
        "weight_dtype": precision.weights,
        "gradient_dtype": precision.weights,
        "master_dtype": "float32",
        # PowerSGD's factors, and the gradients of its first steps, are as wide as the gradients.
        "comm_dtype": {"fp16": "float16", "bf16": "bfloat16"}.get(choices.compression, precision.weights),
        "tf32": "on" if precision.tf32 else "off",
        "compression": f"powersgd rank {choices.compression_rank}" if choices.compression == "powersgd" else
                       choices.compression,
        "preconditioner": choices.preconditioner.get(Preconditioner).title,
        **model_options.requested(choices.model_options),
        "input_workers": str(choices.input.workers), "input_ahead": str(choices.input.depth),
        "input_order": choices.input.order,
    }
    if chosen := choices.workload.get(Workload).selection_sha256:
        wanted["selection"] = chosen
    if choices.overlap is not None:
        wanted["overlap"] = "on" if choices.overlap else "off"
    if choices.eval_batch is not None:
        wanted["eval_batch"] = str(choices.eval_batch_size)
    stage = choices.engine.get(Engine).zero_stage()
    return wanted if stage is None else wanted | {"zero_stage": str(stage)}


def mismatches(choices: TrainingConfig, effective: Mapping[str, str], settings: Mapping[str, str]) -> list[Unlike]:
    """Return everything that ran otherwise than requested; empty: the trial is what it is called.

    What an engine does not read back, or reports as unknown, is not judged.

    Args:
        effective: what the engine read back.
        settings: the environment as the ranks saw it.
    """
    if not choices.engine.get(Engine).needs_parts:
        return []
    wanted = requested(choices)
    if choices.device == "cpu":
        wanted["threads"] = str(rank_threads(settings))
    found = [Unlike(name=name, wanted=value, ran=effective[name]) for name, value in wanted.items()
             if name in effective and effective[name] not in (value, UNKNOWN)]
    return [*found, *_scaling(choices, effective), *_algorithm(choices, effective)]


def _scaling(choices: TrainingConfig, effective: Mapping[str, str]) -> Iterator[Unlike]:
    wanted, scale = choices.precision.get(Precision).loss_scaling is not None, effective.get("loss_scale", UNKNOWN)
    if scale != UNKNOWN and wanted != (scale != "none"):
        yield Unlike(name="loss scale", wanted=wanted, ran=scale)


def _algorithm(choices: TrainingConfig, effective: Mapping[str, str]) -> list[Unlike]:
    """Compare the algorithm that ran, if any ran, with the one requested."""
    shown, ran = effective.get("comm", UNKNOWN), effective.get("comm_algorithm", BACKEND)
    if shown == UNKNOWN or choices.processes == 1:
        return []
    comm = choices.comm.get(Comm)
    if not comm.own_algorithm:
        # A third party's process group may have any name; an algorithm of ours is not the backend's own.
        return [] if ran == BACKEND else [Unlike(name="comm", wanted=BACKEND, ran=ran)]
    if ran == (comm.title or choices.comm.kind) and effective.get("comm_collectives"):
        return []
    return [Unlike(name="comm", wanted=choices.comm.label, ran=ran)]


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


def covers_every_rank(facts: FinalFacts) -> bool:
    """Return whether every rank's own weights are known, and equal where ranks hold the same."""
    return bool(facts.ranks) and None not in facts.ranks and not find_wrong_ranks(facts)


def find_failures(choices: TrainingConfig, facts: FinalFacts, effective: Mapping[str, str]) -> list[Reason]:
    """Return everything that makes the trial invalid."""
    return [*find_wrong_ranks(facts), *_narrow_masters(choices, facts),
            *(MovedByEvaluation(evaluation=number) for number in facts.moved_by_evaluation[:1]),
            *_other_evaluations(choices, facts),
            *(Unlike(name=name.replace("_", " "), wanted=wanted, ran=effective[name])
              for name, wanted in facts.optimizer.items() if name in effective and effective[name] != wanted)]


def find_wrong_ranks(facts: FinalFacts) -> list[RankWeightsDiffer]:
    """Return the ranks whose own weights differ from those of other ranks, or from the weights of the trial."""
    found: list[RankWeightsDiffer] = []
    first: dict[str, tuple[int, str]] = {}
    for rank, held in enumerate(facts.ranks):
        if held is None:
            continue
        before, values = first.setdefault(held.parts, (rank, held.sha256))
        if values != held.sha256:
            found.append(RankWeightsDiffer(rank=rank, than=before, different=held.others, first=held.other))
        elif held.different:
            found.append(RankWeightsDiffer(rank=rank, different=held.different, first=held.first))
    return found


def find_contradictions(ledgers: Sequence[RankLedger]) -> list[Contradicted]:
    """Return what the ledgers of the ranks contradict: of each kind the first step, and the rank that shows it first.
    """
    first: dict[str, tuple[int, int, LedgerNote]] = {}
    for rank, ledger in enumerate(ledgers):
        for note in ledger.notes:
            first[note.kind] = min(first.get(note.kind, (note.step, rank, note)), (note.step, rank, note),
                                   key=lambda item: item[:2])
    found = [Contradicted(what=note.kind, rank=rank, step=step + 1, until=note.until + 1,
                          **note.model_dump(exclude={"kind", "step", "until"}))
             for step, rank, note in sorted(first.values(), key=lambda item: item[:2])]
    return [*found, *_apart(ledgers)]


STEP_TOLERANCE = 1e-4
"""Largest difference between a loss, gradient or update of the engine after the trial and the harness's own, as a share
of its norm. Healthy engines differ by 6e-8 in the gradient (measured on a CPU, with bfloat16 products too)."""
NARROW_STEP_TOLERANCE = 0.05
"""The same of losses and gradients if these, or what is sent, are narrower than float32 (healthy: 0.004), or products
on a GPU, which may choose another kernel. An update is made in float32, from the engine's own gradient, in all formats.
"""


SAME_LOSS = 1e-5
"""Largest difference between two losses that are one."""


def find_other_steps(choices: TrainingConfig, again: StepsAgain | None) -> Sequence[OtherStep | OtherScore]:
    """Return the first difference of kept steps of the trial, then of those after it, from the harness's own that is
    more than rounding, of each the cause before the effect; else that of their evaluation."""
    if again is None:
        return []
    precision = choices.precision.get(Precision)
    narrow = (precision.weights != "float32" or precision.tf32 or choices.compression != "none"
              or precision.autocast == "float16" or (precision.autocast and choices.device != "cpu")
              or choices.engine.get(Engine).rounds_otherwise(precision))
    rounding = max(STEP_TOLERANCE, choices.optimizer.get(Optimizer).rounding)
    # Of kept steps it is not looked for; what differs in them mostly does so afterwards, too.
    place = next((step.place for step in again.steps if step.place), None)
    every = [*((step, True) for step in again.within), *((step, False) for step in again.steps)]
    rounded = precision.weights != "float32" and not precision.master  # each number by clipping, and not the tensor
    limits = {"update": rounding, "stepped": NARROW_STEP_TOLERANCE if rounded else STEP_TOLERANCE}
    usual = NARROW_STEP_TOLERANCE if narrow else STEP_TOLERANCE
    for step, within in every:
        for item in informed(step, [other for other, _ in every]).apart:
            if item.apart > (limit := limits.get(item.what, usual)):
                return [other_step(choices, item, step, limit, within, step.place or place)]
    return [OtherScore(**item.model_dump()) for item in again.scores
            if item.moved or scores_differ(choices, item.metric, item.samples, item.reported, item.own)][:1]


def informed(step: StepAgain, others: Sequence[StepAgain]) -> StepAgain:
    """Return a step whose differences are like what those of other steps are like, where neither they nor a factor
    tell it."""
    known = {item.what: {"like": item.like, "shares": item.shares, "option": item.option}
             for other in reversed(others) for item in other.apart
             if item.apart > STEP_TOLERANCE and item.like not in ("", "multiples", "gradients", "follows")}
    return step.model_copy(update={"apart": tuple(
        item if item.like or item.apart <= STEP_TOLERANCE
        or abs(item.apart - abs(item.ratio - 1)) <= (EXACT if item.what == "update" else EXPLAINED) * item.apart
        else item.model_copy(update=known.get(item.what, {})) for item in step.apart)})


def other_step(
    choices: TrainingConfig, item: Apart, step: StepAgain, limit: float, within: bool, place: Place | None
) -> OtherStep:
    """Return the remark about one difference of a step."""
    first = step.apart[0]
    return OtherStep(**item.model_dump(exclude={"name"}), tensor=item.name, step=step.number, within=within,
                     limit=limit, place=place, loss_right=first.what == "loss" and first.apart <= SAME_LOSS,
                     processes=choices.processes, accumulation=choices.batch.accumulation)


def _apart(ledgers: Sequence[RankLedger]) -> list[Contradicted]:
    """Return the first drawn step after which a rank holds other weights than one that holds the same parts, and the
    first after which two ranks have drawn the same random numbers."""
    seen: dict[tuple[int, str], str] = {}
    found = [(item.step, rank) for rank, ledger in enumerate(ledgers) for item in ledger.weights
             if seen.setdefault((item.step, item.parts), item.values) != item.values]
    drawn: dict[tuple[int, str], int] = {}
    alike = [(item.step, rank) for rank, ledger in enumerate(ledgers) for item in ledger.weights
             if item.drawn and drawn.setdefault((item.step, item.drawn), rank) != rank]
    return [Contradicted(what=what, rank=rank, step=step + 1, times=len(every), found=0, wanted=0)
            for what, every in (("ranks", found), ("masks", alike)) for step, rank in sorted(every)[:1]]


def _narrow_masters(choices: TrainingConfig, facts: FinalFacts) -> Iterator[NarrowMasters]:
    if not facts.wide_share >= LEAST_WIDE_SHARE:  # NaN is no share either
        precision = choices.precision.get(Precision)
        narrow = "float16" if (precision.autocast or precision.weights) == "float16" else "bfloat16"
        yield NarrowMasters(share=facts.wide_share, dtype=narrow)


def _other_evaluations(choices: TrainingConfig, facts: FinalFacts) -> list[OtherEvaluation]:
    samples, metric = choices.workload.get(Workload).eval_samples, choices.stop.metric
    return [OtherEvaluation(evaluation=item.number, metric=metric, reported=item.reported, own=item.own, like=item.like)
            for item in facts.evaluations if item.reported is not None and item.own is not None
            and scores_differ(choices, metric, samples, item.reported, item.own)]


def scores_differ(choices: TrainingConfig, metric: str, samples: int, reported: float, own: float) -> bool:
    """Return whether two values of an evaluation differ by more than rounding, or one sample, may."""
    precision = choices.precision.get(Precision)
    narrow = precision.autocast or precision.weights != "float32" or precision.tf32
    relative = LOW_PRECISION_TOLERANCE if narrow else EVALUATION_TOLERANCE
    bounded = tuple(choices.workload.get(Workload).ranges.get(metric, ())) == (0.0, 1.0)
    allowed = relative * max(abs(reported), abs(own)) + (1 / samples if bounded and samples else 0.0)
    return abs(reported - own) > allowed * (1 + 1e-9)


def unchecked(facts: FinalFacts) -> list[NotChecked]:
    """Return warnings about what could not be checked."""
    found = [NotChecked(evaluation=item.number, problem=item.problem) for item in facts.evaluations if item.problem]
    return [*([NotChecked(problem=facts.problem)] if facts.problem else []), *found]


def slow_evaluation(
    choices: TrainingConfig, phases: Mapping[str, float], samples: int, evaluations: int
) -> list[SlowEvaluation]:
    """Return the warning about evaluations that take longer than evaluating can take."""
    workload = choices.workload.get(Workload)
    train, evaluated = phases.get("train", 0.0), evaluations * workload.eval_samples
    if not (train > 0 and samples and evaluated):
        return []
    ratio = phases.get("eval", 0.0) / evaluated / (train / samples)
    limit = EVALUATION_COST * max(1, workload.test_views or 1)
    return [SlowEvaluation(ratio=ratio, limit=limit)] if ratio > limit else []


def block_gap(gap_seconds: float, wall_seconds: float | None) -> list[BlockGap]:
    """Return the warning about blocks of steps whose steps do not explain their time."""
    if not wall_seconds or abs(gap_seconds) <= GAP_SHARE * wall_seconds:
        return []
    return [BlockGap(share=gap_seconds / wall_seconds)]
