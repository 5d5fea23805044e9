"""Suites with `tune`: plan both phases, run the tuning, choose, and prepare the scored run.

A run folder is resumed by what it holds: with a plan of its own it is scored, without one its tuning goes on. The plan
is written last, after everything that it depends on, so a kill at any moment loses and doubles nothing.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from repro.cli.terminal import command
from repro.core.errors import TrialError
from repro.core.files import write_model, write_text
from repro.core.machine import Machine, detect
from repro.core.random_streams import fresh_seed
from repro.record.folder import limits
from repro.record.folder.store import TUNING, RunFolder
from repro.record.tuning import DECLARED, FROZEN, RULE, Declared, Tuning, read_declared
from repro.runner.run import dated, fill, prepare
from repro.suite.contenders import Contender, contenders, scored_suite, tuning_suite
from repro.suite.field_problem import Problem, as_text
from repro.suite.file import SuiteFile
from repro.suite.model import Suite
from repro.suite.planning.consent import refuse_credentials
from repro.suite.planning.cost import estimate
from repro.suite.planning.matrix import tried_cells
from repro.suite.planning.plan import Drawn, Plan, make_plan

BETWEEN_SECONDS = 20.0
"""Longest wait for a tracking server between the phases; the scored run does not depend on it."""
DRAFT = ("the tuning chooses the settings: this plan and its cost have the first setting of every contender in place "
         "of the chosen one")


@dataclass(frozen=True, slots=True)
class Phases:
    """Both phases of a suite, planned."""

    declared: Declared
    contenders: tuple[Contender, ...]
    tuning: Plan
    draft: Plan
    """The scored phase, with the first setting of every contender in place of the chosen one."""

    def as_json(self) -> dict[str, Any]:
        """Return the plan of the tuning with its contenders and its cost (JSON-like)."""
        return self.tuning.model_dump(mode="json", by_alias=True) | {
            "cost": estimate(self.tuning).model_dump(mode="json"),
            "contenders": [{"label": item.label, "levels": item.levels, "settings": list(item.settings),
                            "space": item.space.model_dump(mode="json", by_alias=True, exclude_none=True)}
                           for item in self.contenders],
        }


def plan_phases(source: SuiteFile, overrides: Sequence[str], machine: Machine | None = None) -> Phases:
    """Return both phases of a suite with `tune` on a machine (None: this one), with seeds drawn for this call unless
    it states them.

    Raises:
        SuiteError: the suite cannot be planned; every setting of every contender is checked.
        UsageError: an option holds a credential.
    """
    suite, machine = source.suite, machine or detect()
    assert suite.tune is not None
    seed = fresh_seed() if suite.master_seed is None else suite.master_seed
    declared = Declared(suite=suite, master_seed=seed, order_seed=fresh_seed())
    tried = tuning_suite(declared.seeded)
    overridden = bool(overrides)
    tuning = make_plan(tried, machine, source.problem, overridden, Drawn(seed, fresh_seed()), folder=source.folder)
    found = contenders(tried, source.problem)
    idle = sorted({*range(len(suite.tune.spaces))} - {item.place for item in found})
    if idle and not overrides:  # which may take contenders away
        raise source.problem("matches no contender that an earlier space has not: "
                             f"{'; '.join(item.label for item in found[:8])}", ("tune", "spaces", idle[0], "for"))
    _refuse_untried(tuning, source.problem)
    first = [(item.levels, item.settings[0]) for item in found]  # which will be chosen is not known before the tuning
    draft = make_plan(scored_suite(declared.seeded, first), machine, source.problem, overridden,
                      Drawn(seed, declared.order_seed), folder=source.folder)
    for plan in (tuning, draft):
        refuse_credentials(plan, os.environ)
    # The scored phase is planned again after the tuning; programs whose files changed meanwhile are then refused.
    pinned = suite.model_copy(update={"programs": draft.suite.programs})
    return Phases(declared.model_copy(update={"suite": pinned}), tuple(found), tuning,
                  draft.model_copy(update={"notes": (DRAFT, *draft.notes)}))


def _refuse_untried(tuning: Plan, problem: Problem) -> None:
    """Refuse a contender of which some settings cannot be tried: its budget would be smaller than it says.

    A contender of which none can be tried is left out of the plan with its reason.

    Raises:
        SuiteError: there is one.
    """
    planned = {cell.cell_id for cell in tuning.cells}
    for contender, ids in tried_cells(tuning.suite, tuning.device):
        lost = [setting for setting, cell_id in zip(contender.settings, ids, strict=True) if cell_id not in planned]
        if lost and len(lost) < len(ids):
            why = next((item.reason for item in tuning.skipped), "excluded")
            first = ", ".join(f"{key}={as_text(value)}" for key, value in lost[0].items())
            raise problem(f"{contender.label}: {len(lost)} of its {len(ids)} settings cannot be tried, the first with "
                          f"{first} ({why}); every contender tries all of its settings: narrow the "
                          "space", ("tune", "spaces", contender.place))


def begin(phases: Phases, suite_text: str, out: Path | None) -> Path:
    """Create the run folder of a suite with two phases, ready for its tuning; return it.

    Raises:
        UsageError: a phase is larger than one run can be.
        OutputError: the folder cannot be written, or is not empty.
    """
    for plan in (phases.tuning, phases.draft):
        limits.check_size(plan)
    folder = RunFolder.create(out or dated(phases.draft.suite.suite))
    write_text(folder.suite, suite_text)
    write_model(folder.root / DECLARED, phases.declared)
    prepare(phases.tuning, suite_text, folder.tuning.root)
    return folder.root


def waits_for_choice(root: Path) -> bool:
    """Return whether a folder is a run whose tuning has not led to a plan yet."""
    return not (root / "plan.json").is_file() and (root / TUNING / "plan.json").is_file()


def choose(root: Path, tuning: Tuning, machine: Machine) -> Plan:
    """Write the frozen suite and the plan of the scored run; doing it twice gives the same.

    Raises:
        TrialError: a trial has no result.
        OutputError: no trial of any contender could be judged, or a file cannot be read or written.
        SuiteError: the chosen cells cannot be planned here.
    """
    if missing := tuning.record.missing():
        again = command(f"run --resume {shlex.quote(str(root))}")
        raise TrialError(f"{root}: {len(missing)} tuning trials have not run, so nothing was chosen; resume with: "
                         f"{again}")
    declared, folder = read_declared(root), RunFolder(root)
    suite = declared.scored(tuning)
    base = tuning.record.plan.base
    plan = make_plan(suite, machine, overridden=True, drawn=Drawn(declared.master_seed, declared.order_seed),
                     folder=(root / TUNING / base).resolve() if base else None)
    limits.check_size(plan)
    # As planned: overrides may have left no cell to a declared contrast.
    scored = plan.suite.model_copy(update={"master_seed": declared.suite.master_seed})
    write_text(root / FROZEN, frozen_text(scored, tuning))
    text = folder.suite.read_text(encoding="utf-8", errors="replace")
    fill(folder, plan, text, brought=RunFolder(root).tuning.code)
    return plan


def frozen_text(suite: Suite, tuning: Tuning) -> str:
    """Return the YAML text of a suite with its chosen settings, as `repro run` reads it."""
    data = suite.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert suite.tuned is not None
    data["tuned"] = suite.tuned.model_dump(mode="json", by_alias=True, exclude_none=True)  # defaults may change
    first = {"suite": data.pop("suite"), **data}
    text = (f"The choice of {tuning.cost.trials} tuning trials of {sum(item.budget for item in tuning.contenders)} "
            f"settings. Of every contender {RULE}. `settings` is the choice; `tuned` says where it comes from.")
    head = textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ")
    return f"{head}\n{yaml.safe_dump(first, sort_keys=False, allow_unicode=True, width=110)}"
