"""The groups of the parity gate: which trials of a plan must train alike, and the reference of each. Needs no torch.

Every engine of a suite takes the gate's steps on the same micro-batches as the reference, a plain loop in one process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from repro.core.frozen import canonical
from repro.seams.training import Comm, Engine, Preconditioner
from repro.suite.choice import parse_choice
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell
from repro.suite.planning.matrix import tried_cells
from repro.suite.planning.plan import Plan
from repro.worker.gate.difference import TOLERANCE
from repro.worker.gate.trace import STEPS, Kind

OWN_PACKAGE = "repro"
KINDS: tuple[Kind, ...] = ("fp32", "precision")
SCHEDULE_POINTS = 200
"""Places of a schedule at which its smallest rate is looked for."""


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that must train equally: same workload, batch, optimizer, world size; for `precision` the same format."""

    title: str
    kind: Kind
    reference: Trial
    candidates: tuple[Trial, ...]
    least_share: float
    """The smallest learning rate of their schedules as a share of the full rate."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Cell id -> name of each candidate; no two candidates of groups with one title have the same."""

    def name(self, candidate: Trial) -> str:
        """Return the name of a candidate, with whatever seed, in messages and in the verdict."""
        return self.names[candidate.cell_id]


def name(trial: Trial) -> str:
    """Return the name of a trial in messages: engine, algorithm, world size."""
    choices = trial.training
    comm = "" if not choices.comm.get(Comm).own_algorithm else f" over {choices.comm.label}"
    return f"{choices.engine.label}{comm} on {choices.processes} process{'es' if choices.processes > 1 else ''}"


def groups(plan: Plan, every: bool = False) -> list[Group]:
    """Return the groups that the gate compares; empty if a plan needs no gate.

    Args:
        every: all cells, also of a plan that needs no gate.
    """
    real = [cell for cell in _one_setting_each(plan) if trains_a_model(cell)]
    several = len({(canonical(cell.training.engine), canonical(cell.training.comm), cell.training.model_options)
                   for cell in real}) > 1
    # Of equal cells only those that may differ alone are compared, with a third party's plug-in or a model option.
    cells = [cell for cell in real if not cell.training.ungated
             and (several or every or has_foreign_part(cell.training) or _has_option(cell.training))]
    found = _groups(plan, cells, "fp32")
    found += _groups(plan, [cell for cell in cells if cell.training.precision.kind != "fp32"], "precision")
    return _named(found, cells)


def _named(found: Sequence[Group], cells: Sequence[Cell]) -> list[Group]:
    """Return the groups with a name for each candidate: the short one, and the label of its cell if others have that.

    If the reference has it, the candidate's model options are added.
    """
    labels: dict[tuple[Kind, str], str] = {}
    for cell in cells:
        for kind in KINDS:
            labels.setdefault((kind, _strip_cell(cell, kind).cell_id), cell.plain_label)
    short = Counter((group.title, name(item)) for group in found for item in group.candidates)

    def full(group: Group, item: Trial) -> str:
        own = name(item)
        if short[group.title, own] > 1:
            return f"{own} ({labels[group.kind, item.cell_id]})"
        options = ", ".join(item.training.model_options.chosen()) if own == name(group.reference) else ""
        return f"{own} ({options})" if options else own

    return [replace(group, names={item.cell_id: full(group, item) for item in group.candidates}) for group in found]


def _one_setting_each(plan: Plan) -> tuple[Cell, ...]:
    """Return the cells of a plan, of a tuning those with the first setting of every contender: the scored run has a
    gate of its own with the chosen ones.
    """
    if plan.kind != "tuning":
        return plan.cells
    here = {cell.cell_id: cell for cell in plan.cells}
    firsts = [next((here[name] for name in ids if name in here), None)
              for _, ids in tried_cells(plan.suite, plan.device)]
    return tuple(cell for cell in firsts if cell is not None)


def _has_option(choices: TrainingConfig) -> bool:
    """Return True if the model is not trained in the plain way: compiled, recomputed, in another layout, offloaded,
    preconditioned.
    """
    # What an engine builds for itself (the optimizer of an offload) takes the place of torch's own code.
    return (any(choices.model_options.chosen()) or bool(choices.engine.get(Engine).builds())
            or choices.preconditioner.get(Preconditioner).active)


def skipped(plan: Plan) -> dict[str, str]:
    """Return label -> reason of the suite, the engine or the optimizer to leave a cell out."""
    return {cell.label: cell.training.ungated for cell in plan.cells if trains_a_model(cell) and cell.training.ungated}


def has_foreign_part(choices: TrainingConfig) -> bool:
    """Return True if a plug-in that decides how the cell trains is a third party's."""
    plugins = (choices.engine, choices.workload, choices.optimizer, choices.comm, choices.precision,
               choices.preconditioner)
    return any(type(choice.plugin).__module__.partition(".")[0] != OWN_PACKAGE for choice in plugins)


def _groups(plan: Plan, cells: Sequence[Cell], kind: Kind) -> list[Group]:
    found: dict[str, dict[str, Trial]] = {}
    references: dict[str, Trial] = {}
    least: dict[str, float] = {}
    for cell in cells:
        stripped, reference = _strip_cell(cell, kind), _reference_cell(cell, kind)
        if kind == "precision":
            choices = reference.training
            setting = choices.setting(plan.device, plan.device_count)
            if choices.engine.plugin.unsupported(setting) or choices.precision.plugin.unsupported(setting):
                continue
        trial = plan.trial(stripped, 0)
        key = json.dumps([
            *(canonical(getattr(trial.training, part)) for part in ("workload", "batch", "optimizer", "precision")),
            canonical(reference.training.preconditioner), trial.training.processes, trial.training.gradient_clip,
            trial.training.rate])
        found.setdefault(key, {})[trial.trial_id] = trial
        references.setdefault(key, plan.trial(reference, 0))
        least[key] = min(least.get(key, 1.0), least_share(cell.training))
    made = [_group(references[key], tuple(members.values()), kind, least[key]) for key, members in found.items()]
    return [group for group in made if group.candidates]


def _group(reference: Trial, members: Sequence[Trial], kind: Kind, least: float) -> Group:
    choices, processes = reference.training, members[0].training.processes
    title = f"{choices.workload.label}, batch {choices.batch.global_}, {processes} process{'es' * (processes > 1)}"
    if kind == "precision":
        title += f", {choices.precision.label}"
    candidates = tuple(item for item in members if item.trial_id != reference.trial_id)
    return Group(title, kind, reference, candidates, least)


def least_share(choices: TrainingConfig) -> float:
    """Return the smallest rate above 0 of the schedule over the budget, as a share of the full rate."""
    epochs = choices.budget_epochs
    shares = [choices.schedule.factor(epochs * place / SCHEDULE_POINTS, epochs) for place in range(SCHEDULE_POINTS)]
    return min((share for share in shares if share > 0), default=1.0)


def why_not(plan: Plan) -> str:
    """Return the reason why the gate has nothing to compare."""
    if plan.measures:
        return "not gated: measurements train nothing, and check their own answers"
    if not any(isinstance(cell.choices, TrainingConfig) for cell in plan.cells):
        return "not gated: programs of the user's train models of their own"
    if not any(trains_a_model(cell) for cell in plan.cells):
        return "no engine of this suite trains a model"
    if left_out := skipped(plan):
        return f"not gated: {'; '.join(dict.fromkeys(left_out.values()))}"
    return "one engine and one communication algorithm only, without model options"


def passed(plan: Plan, verdict: Mapping[str, Any] | None) -> bool:
    """Return True if `verdict`, of an earlier start of the run, covers every group of `plan` without a problem."""
    expected = [(group.title, name(group.reference), group.name(item))
                for group in groups(plan) for item in group.candidates]
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


def trains_a_model(cell: Cell) -> bool:
    """Return True if trials of the cell train a model here; a program trains its own."""
    return isinstance(cell.choices, TrainingConfig) and cell.choices.needs_parts


def _strip_cell(cell: Cell, kind: Kind) -> Cell:
    """Return the cell with a constant rate and, unless the format is compared, in fp32."""
    choices = cell.training
    update = {"compression": "none", "compression_rank": 1,  # lossy on purpose
              "schedule": type(choices).model_fields["schedule"].default, "determinism": "seeded"}
    if kind == "fp32":
        update["precision"] = parse_choice("precision", "fp32")
    if choices.gate is not None and choices.gate.micro is not None:
        micro = min(choices.gate.micro, choices.micro_batch)
        whole = micro * choices.batch.accumulation * choices.processes
        update["batch"] = choices.batch.model_copy(update={"micro": micro, "global_": whole})
    return cell.with_choices(choices.model_copy(update=update))


def _reference_cell(cell: Cell, kind: Kind) -> Cell:
    """Return the plain loop in one process on the same micro-batches, those of p ranks one after the other."""
    plain = _strip_cell(cell, kind)
    choices = plain.training
    batch = choices.batch.model_copy(update={"accumulation": choices.batch.accumulation * choices.processes})
    choices = choices.model_copy(update={
        "engine": parse_choice("engine", "single"), "comm": parse_choice("comm", "backend"), "processes": 1,
        "batch": batch, "overlap": None, "warmup_steps": False, "compile": False, "activation_checkpointing": False,
        "channels_last": False, "cudnn_benchmark": False,
        "preconditioner": choices.preconditioner.model_copy(update={
            "plugin": choices.preconditioner.get(Preconditioner).alone()}),
    })
    return plain.with_choices(choices)
