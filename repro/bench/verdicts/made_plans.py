"""Plans of one to four cells for simulated experiments; nothing of them is run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from repro.core.machine import Machine
from repro.suite.model import SEEDS_BELOW, Suite
from repro.suite.plan import Plan, make_plan, planned_order

OTHER = {"kind": "deepspeed", "stage": 1}


def made_plan(cells: int, seeds: int, generator: np.random.Generator, sequential: str = "") -> Plan:
    """Return a plan with a primary contrast, in an order of execution drawn from the generator.

    Args:
        cells: 2 or 4.
        sequential: the suite's key of that name, as JSON; "" for a fixed number of pairs.
    """
    return drawn_again(_expanded(cells, seeds, sequential), generator)


def drawn_again(plan: Plan, generator: np.random.Generator) -> Plan:
    """Return the plan in another order of execution."""
    drawn = plan.model_copy(update={"order_seed": int(generator.integers(SEEDS_BELOW))})
    return drawn.model_copy(update={"order": tuple(planned_order(drawn))})


@lru_cache(maxsize=64)
def _expanded(cells: int, seeds: int, sequential: str) -> Plan:
    import json

    processes = [1] if cells == 2 else [1, 2]
    data: dict[str, Any] = {
        "suite": "made-for-a-simulation", "seeds": seeds, "baseline": {"engine": "ddp"},
        "matrix": {"engine": ["ddp", OTHER], "processes": processes},
        "trial": {"workload": "digits", "engine": "ddp", "batch": {"global": 64}, "evaluate_every": 64,
                  "device": "cpu", "optimizer": {"kind": "sgd", "lr": 0.1},
                  "stop": {"metric": "top1", "target": 0.9, "max_epochs": 8}},
        "primary": {"candidate": _cell("deepspeed"), "baseline": _cell("ddp")},
    }
    if sequential:
        data["sequential"] = json.loads(sequential)
    return make_plan(Suite.model_validate(data), Machine("cpu", 0, 2))


def _cell(engine: str) -> Mapping[str, Any]:
    return {"engine": engine, "processes": 1}


def places_of(plan: Plan) -> tuple[str, str]:
    """Return the ids of the primary contrast's candidate and baseline."""
    primary = plan.suite.primary
    assert primary is not None
    found = {cell.choices.engine.kind: cell.cell_id for cell in plan.cells if cell.choices.processes == 1}
    return found["deepspeed"], found["ddp"]
