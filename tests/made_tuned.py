"""A tuned run by formula: two optimizers on two workloads, each tuned with the same budget, then scored."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.core.files import write_model
from repro.core.machine import Machine
from repro.record.folder.store import Record, RunFolder
from repro.record.tuning import DECLARED, Declared, tuning_of
from repro.suite.contenders import tuning_suite
from repro.suite.file import read_suite
from repro.suite.model import Suite, Trial
from repro.suite.planning.plan import make_plan
from tests.plans import suite
from tests.records import Course, write_record

TUNED = suite("tuned-contenders", """\
matrix:
  workload: [digits, mnist1d]
  optimizer: [{kind: sgd, momentum: 0.9}, adamw]
baseline: {optimizer: sgd}
tune:
  contenders: [workload, optimizer]
  trials: 5
  search: random
  metric: tta_wall
  spaces:
    - for: {optimizer: sgd}
      origin: a decade either way of 0.03
      space:
        optimizer.lr: {log: [0.003, 0.3]}
        optimizer.weight_decay: [0.0, 0.0005]
    - for: {optimizer: adamw}
      origin: three decades around the default
      space:
        optimizer.lr: {log: [0.00003, 0.03]}
""", seeds=6, head="title: Two optimizers on two workloads, tuned\nmaster_seed: 11\n", processes=2)
MACHINE = Machine("cpu", 0, 2)
Play = Callable[[Trial], Course]


def tuned_course(trial: Trial) -> Course:
    """The further the rate is from the best one, the slower; two decades away it misses."""
    best = 0.03 if trial.choices.optimizer.kind == "sgd" else 0.001
    off = abs(math.log10(trial.choices.rate / best))
    return Course(0.01 * (1 + off) * (1 + 0.02 * (trial.repeat % 3)), hits_at=None if off > 0.8 else 4)


def make_tuned(
    root: Path, text: str = TUNED, play: Play = tuned_course, tuning_drawn: str = "t",
    change: Callable[[Suite], Suite] = lambda suite: suite,
) -> Record:
    """Write the run folder of both phases; return the scored record.

    Args:
        tuning_drawn: mark of the tuning trials' hashes; "": they drew what the scored trials draw.
        change: the scored suite before its plan is made.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    path = root.parent / f"{root.name}-suite.yaml"
    path.write_text(text)
    suite = read_suite(str(path)).suite
    declared = Declared(suite=suite, master_seed=suite.master_seed or 0, order_seed=5)
    apart = root.parent / f"{root.name}-tuning"
    tuned = write_record(apart, make_plan(tuning_suite(declared.seeded), MACHINE), text,
                         lambda trial: replace(play(trial), drawn=tuning_drawn))
    scored = change(declared.scored(tuning_of(tuned)))
    record = write_record(root, make_plan(scored, MACHINE, overridden=True), text, play)
    apart.rename(RunFolder(root).tuning.root)
    write_model(root / DECLARED, declared)
    return record


def unchecked(suite: Suite, **changes: Any) -> Suite:
    """Return the suite with changes that its checks would refuse."""
    return suite.model_copy(update=changes)
