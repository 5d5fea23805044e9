"""The engine parity gate: do two engines train alike, step by step and tensor by tensor? Decided without torch.

Every engine of a suite runs 10 fp32 steps on the same micro-batches as a plain loop in one process, the reference.
Compared are: the bytes fed, the loss, every gradient (norm, and projection on a fixed random direction, so that a
change of direction shows as well as one of length) before clipping, every weight after the update, the agreement of
all ranks with one another, the model's buffers after an evaluation, and that evaluation's result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

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
"""Relative; ten steps of float32 sums in another order stay about ten times below."""
DISTURBANCE = 1e-7
"""Relative size of the disturbance that tells how much rounding matters: about one last place of float32."""
LARGEST_TOLERANCE = 1e-2
"""Where rounding grows beyond a tenth of this in ten steps, the gate could not tell a defect from chaos."""
EVALUATION_TOLERANCE = 0.02
"""Relative; an image on the edge between two classes may fall either way after ten steps."""
NOISE = 1e-6
"""Absolute floor as a share of the largest tensor norm: a gradient that is zero but for rounding compares as zero."""


class Trace(Frozen):
    """What one rank saw in the gate; lists run over steps."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a NaN is a finding, not a damaged file

    rank: int
    fed: tuple[tuple[str, ...], ...]
    """sha256 of every micro-batch this rank was fed, by step."""
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
    """Trials that must train alike: same workload, batch, optimizer and world size."""

    title: str
    reference: Trial
    candidates: tuple[Trial, ...]


def name(trial: Trial) -> str:
    """An engine with its algorithm and world size, as messages call it."""
    choices = trial.choices
    comm = "" if not choices.comm.get(Comm).own_algorithm else f" over {choices.comm.label}"
    return f"{choices.engine.label}{comm} on {choices.processes} process{'es' if choices.processes > 1 else ''}"


def groups(plan: Plan) -> list[Group]:
    """What the gate has to compare; empty where a suite has one engine and one algorithm only."""
    real = [cell for cell in plan.cells if _needs_parts(cell.choices)]
    if len({(canonical(cell.choices.engine), canonical(cell.choices.comm)) for cell in real}) < 2:
        return []
    found: dict[str, dict[str, Trial]] = {}
    references: dict[str, Trial] = {}
    for cell in real:
        trial = plan.trial(_plain(cell), 0)
        key = json.dumps([canonical(getattr(trial.choices, part)) for part in ("workload", "batch", "optimizer")]
                         + [trial.choices.processes, trial.choices.gradient_clip, trial.choices.rate])
        found.setdefault(key, {})[trial.trial_id] = trial
        references.setdefault(key, plan.trial(_reference(cell), 0))
    result = []
    for key, members in found.items():
        choices = references[key].choices
        processes = next(iter(members.values())).choices.processes
        title = f"{choices.workload.label}, batch {choices.batch.global_}, {processes} process{'es' * (processes > 1)}"
        candidates = tuple(item for item in members.values() if item.trial_id != references[key].trial_id)
        result.append(Group(title, references[key], candidates))
    return result


def why_not(plan: Plan) -> str:
    """Why the gate has nothing to do."""
    if not any(_needs_parts(cell.choices) for cell in plan.cells):
        return "no engine of this suite trains a model"
    return "one engine and one communication algorithm only"


def passed(plan: Plan, verdict: Mapping[str, Any] | None) -> bool:
    """Whether `verdict`, as an earlier start of the run wrote it, says that every group of `plan` trains alike."""
    wanted = [(group.title, name(group.reference), name(item)) for group in groups(plan) for item in group.candidates]
    if verdict is None or verdict.get("needed") is not bool(wanted):
        return False
    if not wanted:
        return True
    findings = verdict.get("findings")
    if (verdict.get("tolerance"), verdict.get("steps")) != (TOLERANCE, STEPS) or not isinstance(findings, list):
        return False
    found = [(item.get("group"), item.get("reference"), item.get("candidate")) for item in findings
             if isinstance(item, dict) and item.get("problem") == ""]
    return found == wanted and len(findings) == len(wanted)


def _needs_parts(choices: TrainingConfig) -> bool:
    return choices.engine.get(Engine).needs_parts


def _plain(cell: Cell) -> Cell:
    """The cell in fp32 with a constant rate: what the gate compares must not depend on precision or schedule."""
    update = {"precision": parse_choice("precision", "fp32"), "warmup_steps": False,
              "compression": "none", "compression_rank": 1,  # lossy on purpose
              "schedule": type(cell.choices).model_fields["schedule"].default, "determinism": "seeded"}
    choices = cell.choices.model_copy(update=update)
    return cell.with_choices(choices)


def _reference(cell: Cell) -> Cell:
    """The plain loop in one process on the same micro-batches: what p ranks do at once it does in turn."""
    plain = _plain(cell)
    choices = plain.choices
    batch = choices.batch.model_copy(update={"accumulation": choices.batch.accumulation * choices.processes})
    choices = choices.model_copy(update={
        "engine": parse_choice("engine", "single"), "comm": parse_choice("comm", "backend"), "processes": 1,
        "batch": batch, "overlap": None,
    })
    return plain.with_choices(choices)


def read_traces(folder: Path, processes: int) -> list[Trace]:
    """What every rank of one member left.

    Raises:
        ParityError: a rank left nothing readable.
    """
    traces = []
    for rank in range(processes):
        path = folder / f"trace{rank}.json"
        try:
            traces.append(Trace.model_validate_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ParityError(f"parity gate: rank {rank} left no readable trace in {path}: {error}") from error
    return traces


def judge_group(
    group: Group, traces: Mapping[str, Sequence[Trace]], disturbed: Trace | None = None
) -> list[dict[str, Any]]:
    """One finding per candidate: the first problem, or none.

    Args:
        disturbed: the reference once more from initial weights disturbed by rounding; tolerances grow with what that
            does, step by step.
    """
    tolerances = widened(traces[group.reference.trial_id][0], disturbed) if disturbed else None
    reference = traces[group.reference.trial_id][0]
    findings = []
    first: Sequence[Trace] | None = None
    for candidate in group.candidates:
        ranks = traces[candidate.trial_id]
        problem = judge(reference, ranks, tolerances) or (_buffers_between(first[0], ranks[0]) if first else "")
        first = first or ranks
        findings.append({"group": group.title, "reference": name(group.reference), "candidate": name(candidate),
                         "problem": problem, "largest_difference": _largest(reference, ranks[0]),
                         "tolerances": list(tolerances or ()), "effective": ranks[0].effective})
    return findings


def widened(reference: Trace, disturbed: Trace) -> tuple[float, ...]:
    """Tolerance of each step: ten times what a disturbance of the size of rounding did to the reference itself by then.

    Adaptive optimizers blow rounding up (a step of AdamW depends on the sign of a gradient near zero), and two right
    engines then part faster than 1e-5. The first step keeps the plain tolerance: scaling errors show there.
    """
    found = []
    for step in range(len(reference.loss)):
        apart = [abs(disturbed.loss[step] / reference.loss[step] - 1)] if reference.loss[step] else []
        for ours, theirs in ((disturbed.gradients, reference.gradients), (disturbed.weights, reference.weights)):
            floor = NOISE * max(values[step][0] for values in theirs.values())
            for tensor in theirs:
                norm = max(ours[tensor][step][0], theirs[tensor][step][0]) or 1.0
                apart += [(abs(ours[tensor][step][part] - theirs[tensor][step][part]) - floor) / (norm * (1 + 2 * part))
                          for part in (0, 1)]
        found.append(TOLERANCE if step == 0 else min(LARGEST_TOLERANCE, max(TOLERANCE, 10 * max(apart))))
    return tuple(found)


def judge(reference: Trace, ranks: Sequence[Trace], tolerances: Sequence[float] | None = None) -> str:
    """The first step and tensor in which the ranks of a candidate leave the reference; "" when they do not."""
    world, micros = len(ranks), len(ranks[0].fed[0])
    tolerances = tolerances or (TOLERANCE,) * len(reference.loss)
    for step in range(len(reference.loss)):
        # Causes before effects: what one rank was fed moves the loss and the gradients of all.
        problems = (
            *(_fed(reference, trace, step, world, micros) for trace in ranks),
            *(_scalar("loss", step, trace.loss[step], reference.loss[step], tolerances[step]) for trace in ranks),
            *(_tensors("gradient", step, trace.rank, trace.gradients, reference.gradients, tolerances[step])
              for trace in ranks),
            *(_tensors("weight", step, trace.rank, trace.weights, reference.weights, tolerances[step])
              for trace in ranks),
        )
        problem = next(filter(None, problems), "")
        if problem:
            return problem
    return _ranks_agree(ranks) or _evaluation(reference, ranks[0])


def _evaluation(reference: Trace, trace: Trace) -> str:
    """With batch normalisation the reference's running statistics saw every micro-batch, a rank's only its own."""
    if reference.buffers:
        return ""
    return _scalar("evaluation", len(reference.loss) - 1, trace.evaluation, reference.evaluation, EVALUATION_TOLERANCE)


def _fed(reference: Trace, trace: Trace, step: int, world: int, micros: int) -> str:
    for micro in range(micros):
        if trace.fed[step][micro] != reference.fed[step][micro * world + trace.rank]:
            return f"step {step + 1}: rank {trace.rank} was fed other data than the reference (micro-batch {micro + 1})"
    return ""


def _scalar(what: str, step: int, ours: float, theirs: float, tolerance: float) -> str:
    if _differ(ours, theirs, max(abs(ours), abs(theirs)), 0.0, tolerance):
        return f"step {step + 1}: {what} is {ours:.8g}, the reference's {theirs:.8g}"
    return ""


def _tensors(
    what: str, step: int, rank: int, ours: Mapping[str, Sequence[tuple[float, float]]],
    theirs: Mapping[str, Sequence[tuple[float, float]]], tolerance: float,
) -> str:
    if set(ours) != set(theirs):
        odd = sorted(set(ours) ^ set(theirs))[0]
        return f"step {step + 1}: {what} {odd!r} is known to only one of the two"
    floor = NOISE * max(values[step][0] for values in theirs.values())
    for tensor in ours:
        problem = _tensor(f"step {step + 1}: {what} of {tensor!r} on rank {rank}", ours[tensor][step],
                          theirs[tensor][step], floor, tolerance)
        if problem:
            return problem
    return ""


def _tensor(
    what: str, ours: tuple[float, float], theirs: tuple[float, float], floor: float, tolerance: float = TOLERANCE
) -> str:
    norm = max(ours[0], theirs[0])
    if _differ(ours[0], theirs[0], norm, floor, tolerance):
        ratio = f", {ours[0] / theirs[0]:.6g} times" if theirs[0] else ""
        return f"{what} has norm {ours[0]:.8g}{ratio} the reference's {theirs[0]:.8g}"
    if _differ(ours[1], theirs[1], 3 * norm, 3 * floor, tolerance):
        return (f"{what} has the reference's norm but another direction (projection {ours[1]:.8g} against "
                f"{theirs[1]:.8g})")
    return ""


def _differ(ours: float, theirs: float, scale: float, floor: float, tolerance: float) -> bool:
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return True  # an infinite scale would let anything pass
    return abs(ours - theirs) > tolerance * scale + floor


def _ranks_agree(ranks: Sequence[Trace]) -> str:
    """After the evaluation every rank must hold rank 0's buffers and have found the same value."""
    first = ranks[0]
    for trace in ranks[1:]:
        if odd := sorted(set(trace.buffers) ^ set(first.buffers)):
            return f"after evaluation: buffer {odd[0]!r} is known to only one of rank {trace.rank} and rank 0"
        for buffer, value in trace.buffers.items():
            problem = _tensor(f"after evaluation: buffer {buffer!r} on rank {trace.rank}", value,
                              first.buffers[buffer], 0.0)
            if problem:
                return problem.replace("the reference's", "rank 0's") + " (buffers are not synchronised)"
        if trace.evaluation != first.evaluation:
            return f"evaluation: rank {trace.rank} found {trace.evaluation:.8g}, rank 0 {first.evaluation:.8g}"
    return ""


def _buffers_between(first: Trace, other: Trace) -> str:
    if odd := sorted(set(other.buffers) ^ set(first.buffers)):
        return f"after evaluation: buffer {odd[0]!r} is known to only one of this engine and the first"
    for buffer, value in other.buffers.items():
        problem = _tensor(f"after evaluation: buffer {buffer!r}", value, first.buffers[buffer], 0.0)
        if problem:
            return problem.replace("the reference's", "the first engine's")
    return ""


def _largest(reference: Trace, trace: Trace) -> float:
    """Largest relative difference of a loss or gradient norm over all steps: how far below the tolerance it stayed."""
    losses = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(trace.loss, reference.loss, strict=True)]
    norms = [
        abs(_norm(trace.gradients, step) / _norm(reference.gradients, step) - 1) for step in range(len(reference.loss))
    ]
    return max(*losses, *norms)


def _norm(gradients: Mapping[str, Sequence[tuple[float, float]]], step: int) -> float:
    return float(sum(values[step][0] ** 2 for values in gradients.values()) ** 0.5) or 1e-30
