"""The engine parity gate: compares two engines step by step and tensor by tensor. Decided without torch.

Every engine of a suite trains 10 fp32 steps on the same micro-batches as the reference, a plain loop in one process.
The gate compares the input bytes, the loss, every gradient before clipping, every weight after the update, the model's
buffers after an evaluation and that evaluation's result, and all ranks with one another. A tensor is compared by its
norm and by its projection on a fixed random direction, which reveals a change of direction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from repro.core import fence
from repro.core.errors import ParityError
from repro.core.frozen import Frozen
from repro.seams.training import Comm, Engine
from repro.suite.cell import Cell
from repro.suite.choice import parse_choice
from repro.suite.identity import canonical
from repro.suite.model import Trial
from repro.suite.plan import Plan
from repro.suite.training import TrainingConfig

STEPS = 10
TOLERANCE = 1e-5
"""Relative; ten steps with float32 sums in another order stay about ten times below it."""
DISTURBANCE = 1e-7
"""Relative size of the disturbance that measures how much rounding matters: about one last place of float32."""
LARGEST_TOLERANCE = 1e-2
"""Upper limit of every tolerance: beyond it the gate could not tell a defect from amplified rounding."""
EVALUATION_TOLERANCE = 0.02
"""Relative; an image between two classes may be assigned to either after ten steps."""
NOISE = 1e-6
"""Absolute floor as a share of the largest tensor norm: a gradient that is zero up to rounding compares as zero."""


class Trace(Frozen):
    """The measurements of one rank in the gate; lists have one item per step."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a NaN is a finding, not a damaged file

    rank: int
    fed: tuple[tuple[str, ...], ...]
    """sha256 of every micro-batch of this rank, by step."""
    loss: tuple[float, ...]
    """Mean loss over ranks and micro-batches."""
    gradients: dict[str, tuple[tuple[float, float], ...]]
    """Name -> (L2 norm, projection) by step: the full mean gradient before clipping."""
    weights: dict[str, tuple[tuple[float, float], ...]]
    """Name -> (L2 norm, projection) by step: the full weights after the update."""
    buffers: dict[str, tuple[float, float]]
    """Name -> (L2 norm, projection) after the evaluation."""
    evaluation: float
    effective: dict[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that must train equally: same workload, batch, optimizer and world size."""

    title: str
    reference: Trial
    candidates: tuple[Trial, ...]


def name(trial: Trial) -> str:
    """Return the name of a trial in messages: engine, algorithm, world size."""
    choices = trial.choices
    comm = "" if not choices.comm.get(Comm).own_algorithm else f" over {choices.comm.label}"
    return f"{choices.engine.label}{comm} on {choices.processes} process{'es' if choices.processes > 1 else ''}"


def groups(plan: Plan) -> list[Group]:
    """Return the groups that the gate compares; empty if a suite has only one engine and one algorithm."""
    real = [cell for cell in plan.cells if _needs_parts(cell.choices)]
    if len({(canonical(cell.choices.engine), canonical(cell.choices.comm)) for cell in real}) < 2:
        return []
    found: dict[str, dict[str, Trial]] = {}
    references: dict[str, Trial] = {}
    for cell in real:
        trial = plan.trial(_strip_cell(cell), 0)
        key = json.dumps([canonical(getattr(trial.choices, part)) for part in ("workload", "batch", "optimizer")]
                         + [trial.choices.processes, trial.choices.gradient_clip, trial.choices.rate])
        found.setdefault(key, {})[trial.trial_id] = trial
        references.setdefault(key, plan.trial(_reference_cell(cell), 0))
    result = []
    for key, members in found.items():
        choices = references[key].choices
        processes = next(iter(members.values())).choices.processes
        title = f"{choices.workload.label}, batch {choices.batch.global_}, {processes} process{'es' * (processes > 1)}"
        candidates = tuple(item for item in members.values() if item.trial_id != references[key].trial_id)
        result.append(Group(title, references[key], candidates))
    return result


def why_not(plan: Plan) -> str:
    """Return the reason why the gate has nothing to compare."""
    if not any(_needs_parts(cell.choices) for cell in plan.cells):
        return "no engine of this suite trains a model"
    return "one engine and one communication algorithm only"


def passed(plan: Plan, verdict: Mapping[str, Any] | None) -> bool:
    """Return True if `verdict`, of an earlier start of the run, covers every group of `plan` without a problem."""
    expected = [(group.title, name(group.reference), name(item)) for group in groups(plan) for item in group.candidates]
    if verdict is None or verdict.get("needed") is not bool(expected):
        return False
    if not expected:
        return True
    findings = verdict.get("findings")
    if (verdict.get("tolerance"), verdict.get("steps")) != (TOLERANCE, STEPS) or not isinstance(findings, list):
        return False
    found = [(item.get("group"), item.get("reference"), item.get("candidate")) for item in findings
             if isinstance(item, dict) and item.get("problem") == ""]
    return found == expected and len(findings) == len(expected)


def _needs_parts(choices: TrainingConfig) -> bool:
    return choices.engine.get(Engine).needs_parts


def _strip_cell(cell: Cell) -> Cell:
    """Return the cell in fp32 with a constant rate: the comparison must not depend on precision or schedule."""
    update = {"precision": parse_choice("precision", "fp32"), "warmup_steps": False,
              "compression": "none", "compression_rank": 1,  # lossy on purpose
              "schedule": type(cell.choices).model_fields["schedule"].default, "determinism": "seeded"}
    choices = cell.choices.model_copy(update=update)
    return cell.with_choices(choices)


def _reference_cell(cell: Cell) -> Cell:
    """Return the plain loop in one process on the same micro-batches, those of p ranks one after the other."""
    plain = _strip_cell(cell)
    choices = plain.choices
    batch = choices.batch.model_copy(update={"accumulation": choices.batch.accumulation * choices.processes})
    choices = choices.model_copy(update={
        "engine": parse_choice("engine", "single"), "comm": parse_choice("comm", "backend"), "processes": 1,
        "batch": batch, "overlap": None,
    })
    return plain.with_choices(choices)


def read_traces(folder: Path, processes: int) -> list[Trace]:
    """Read the traces of all ranks of one trial.

    Raises:
        ParityError: a rank left no readable trace.
    """
    traces = []
    for rank in range(processes):
        path = folder / f"trace{rank}.json"
        try:
            traces.append(Trace.model_validate_json(fence.read_bytes(path)))
        except (OSError, ValueError) as error:
            raise ParityError(f"parity gate: rank {rank} left no readable trace in {path}: {error}") from error
    return traces


def judge_group(
    group: Group, traces: Mapping[str, Sequence[Trace]], disturbed: Trace | None = None
) -> list[dict[str, Any]]:
    """Return one finding per candidate with its first problem ("" if it has none).

    Args:
        disturbed: the reference from initial weights that were disturbed by rounding; tolerances grow with its
            distance from the reference, step by step.
    """
    tolerances = widen_tolerances(traces[group.reference.trial_id][0], disturbed) if disturbed else None
    reference = traces[group.reference.trial_id][0]
    findings = []
    first: Sequence[Trace] | None = None
    for candidate in group.candidates:
        ranks = traces[candidate.trial_id]
        problem = judge(reference, ranks, tolerances) or (_compare_buffers(first[0], ranks[0]) if first else "")
        first = first or ranks
        findings.append({"group": group.title, "reference": name(group.reference), "candidate": name(candidate),
                         "problem": problem, "largest_difference": _largest_difference(reference, ranks[0]),
                         "tolerances": list(tolerances or ()), "effective": ranks[0].effective})
    return findings


def widen_tolerances(reference: Trace, disturbed: Trace) -> tuple[float, ...]:
    """Return the tolerance of each step: ten times the distance between the reference and its disturbed copy.

    Adaptive optimizers amplify rounding (a step of AdamW depends on the sign of a gradient near zero), so that two
    correct engines differ by more than 1e-5. The first step keeps the plain tolerance: it reveals scaling errors.
    """
    found = []
    for step in range(len(reference.loss)):
        distances = [abs(disturbed.loss[step] / reference.loss[step] - 1)] if reference.loss[step] else []
        for ours, theirs in ((disturbed.gradients, reference.gradients), (disturbed.weights, reference.weights)):
            floor = NOISE * max(values[step][0] for values in theirs.values())
            for tensor in theirs:
                norm = max(ours[tensor][step][0], theirs[tensor][step][0]) or 1.0
                distances += [
                    (abs(ours[tensor][step][part] - theirs[tensor][step][part]) - floor) / (norm * (1 + 2 * part))
                    for part in (0, 1)]
        found.append(TOLERANCE if step == 0 else min(LARGEST_TOLERANCE, max(TOLERANCE, 10 * max(distances))))
    return tuple(found)


def judge(reference: Trace, ranks: Sequence[Trace], tolerances: Sequence[float] | None = None) -> str:
    """Describe the first step and tensor in which the ranks of a candidate differ from the reference; "" if none."""
    world, micros = len(ranks), len(ranks[0].fed[0])
    tolerances = tolerances or (TOLERANCE,) * len(reference.loss)
    for step in range(len(reference.loss)):
        # Causes before effects: wrong input of one rank changes the loss and the gradients of all.
        problems = (
            *(_compare_input(reference, trace, step, world, micros) for trace in ranks),
            *(_compare_scalar("loss", step, trace.loss[step], reference.loss[step], tolerances[step])
              for trace in ranks),
            *(_compare_tensors("gradient", step, trace.rank, trace.gradients, reference.gradients, tolerances[step])
              for trace in ranks),
            *(_compare_tensors("weight", step, trace.rank, trace.weights, reference.weights, tolerances[step])
              for trace in ranks),
        )
        problem = next(filter(None, problems), "")
        if problem:
            return problem
    return _compare_ranks(ranks) or _compare_evaluation(reference, ranks[0])


def _compare_evaluation(reference: Trace, trace: Trace) -> str:
    """Skipped with batch normalisation: the reference's statistics include every micro-batch, a rank's only its own."""
    if reference.buffers:
        return ""
    last = len(reference.loss) - 1
    return _compare_scalar("evaluation", last, trace.evaluation, reference.evaluation, EVALUATION_TOLERANCE)


def _compare_input(reference: Trace, trace: Trace, step: int, world: int, micros: int) -> str:
    for micro in range(micros):
        if trace.fed[step][micro] != reference.fed[step][micro * world + trace.rank]:
            return f"step {step + 1}: rank {trace.rank} was fed other data than the reference (micro-batch {micro + 1})"
    return ""


def _compare_scalar(what: str, step: int, ours: float, theirs: float, tolerance: float) -> str:
    if _differ(ours, theirs, max(abs(ours), abs(theirs)), 0.0, tolerance):
        return f"step {step + 1}: {what} is {ours:.8g}, the reference's {theirs:.8g}"
    return ""


def _compare_tensors(
    what: str, step: int, rank: int, ours: Mapping[str, Sequence[tuple[float, float]]],
    theirs: Mapping[str, Sequence[tuple[float, float]]], tolerance: float,
) -> str:
    if set(ours) != set(theirs):
        odd = sorted(set(ours) ^ set(theirs))[0]
        return f"step {step + 1}: {what} {odd!r} exists in only one of the two"
    floor = NOISE * max(values[step][0] for values in theirs.values())
    for tensor in ours:
        problem = _compare_tensor(f"step {step + 1}: {what} of {tensor!r} on rank {rank}", ours[tensor][step],
                                  theirs[tensor][step], "the reference", TensorLimit(tolerance, floor))
        if problem:
            return problem
    return ""


@dataclass(frozen=True, slots=True)
class TensorLimit:
    """The allowed difference of two tensors."""

    relative: float = TOLERANCE
    floor: float = 0.0
    """Absolute; added to the relative part."""


def _compare_tensor(
    what: str, ours: tuple[float, float], theirs: tuple[float, float], other: str, limit: TensorLimit | None = None
) -> str:
    """Describe the difference between (norm, projection) of two tensors; "" if it is within the limit.

    Args:
        what: the tensor, for the message.
        other: the owner of `theirs`, for the message.
    """
    limit = limit or TensorLimit()
    norm = max(ours[0], theirs[0])
    if _differ(ours[0], theirs[0], norm, limit.floor, limit.relative):
        ratio = f", {ours[0] / theirs[0]:.6g} times" if theirs[0] else ""
        return f"{what} has norm {ours[0]:.8g}{ratio} {other}'s {theirs[0]:.8g}"
    if _differ(ours[1], theirs[1], 3 * norm, 3 * limit.floor, limit.relative):
        return f"{what} has {other}'s norm but another direction (projection {ours[1]:.8g} against {theirs[1]:.8g})"
    return ""


def _differ(ours: float, theirs: float, scale: float, floor: float, tolerance: float) -> bool:
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return True  # with an infinite scale every difference would pass
    return abs(ours - theirs) > tolerance * scale + floor


def _compare_ranks(ranks: Sequence[Trace]) -> str:
    """Compare buffers and evaluation of every rank with those of rank 0."""
    first = ranks[0]
    for trace in ranks[1:]:
        if odd := sorted(set(trace.buffers) ^ set(first.buffers)):
            return f"after evaluation: buffer {odd[0]!r} exists only on one of rank {trace.rank} and rank 0"
        for buffer, value in trace.buffers.items():
            problem = _compare_tensor(
                f"after evaluation: buffer {buffer!r} on rank {trace.rank}", value, first.buffers[buffer], "rank 0")
            if problem:
                return f"{problem} (buffers are not synchronised)"
        if trace.evaluation != first.evaluation:
            return f"evaluation: rank {trace.rank} found {trace.evaluation:.8g}, rank 0 {first.evaluation:.8g}"
    return ""


def _compare_buffers(first: Trace, other: Trace) -> str:
    if odd := sorted(set(other.buffers) ^ set(first.buffers)):
        return f"after evaluation: buffer {odd[0]!r} exists in only one of this engine and the first"
    for buffer, value in other.buffers.items():
        problem = _compare_tensor(
            f"after evaluation: buffer {buffer!r}", value, first.buffers[buffer], "the first engine")
        if problem:
            return problem
    return ""


def _largest_difference(reference: Trace, trace: Trace) -> float:
    """Return the largest relative difference of a loss or gradient norm over all steps."""
    losses = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(trace.loss, reference.loss, strict=True)]
    norms = [
        abs(_norm(trace.gradients, step) / _norm(reference.gradients, step) - 1) for step in range(len(reference.loss))
    ]
    return max(*losses, *norms)


def _norm(gradients: Mapping[str, Sequence[tuple[float, float]]], step: int) -> float:
    return float(sum(values[step][0] ** 2 for values in gradients.values()) ** 0.5) or 1e-30
