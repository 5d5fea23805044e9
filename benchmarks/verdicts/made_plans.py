"""Plans of two or four cells for simulated experiments; nothing of them is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from repro.core.machine import Machine
from repro.suite.model import Suite
from repro.suite.planning.plan import Plan, make_plan, planned_order

OTHER = {"kind": "deepspeed", "stage": 1}


@lru_cache(maxsize=64)
def made_plan(cells: int, seeds: int, sequential: str = "", contest: bool = False) -> Plan:
    """Return a plan with a primary contrast.

    Args:
        cells: 2 or 4.
        sequential: the suite's key of that name, as JSON; "" for a fixed number of pairs.
        contest: design contest instead of stop_at_target.
    """
    processes = [1] if cells == 2 else [1, 2]
    data: dict[str, Any] = {
        "suite": "made-for-a-simulation", "seeds": seeds, "baseline": {"engine": "ddp"},
        "matrix": {"engine": ["ddp", OTHER], "processes": processes},
        "trial": {"workload": "digits", "engine": "ddp", "batch": {"global": 64}, "evaluate_every": 64,
                  "device": "cpu", "optimizer": {"kind": "sgd", "lr": 0.1},
                  "stop": {"metric": "top1", "target": 0.9, "max_epochs": 8,
                           "design": "contest" if contest else "stop_at_target"}},
        "primary": {"candidate": _cell("deepspeed"), "baseline": _cell("ddp")},
    }
    if sequential:
        data["sequential"] = json.loads(sequential)
    return make_plan(Suite.model_validate(data), Machine("cpu", 0, 2))


def ordered(plan: Plan, order_seed: int) -> Plan:
    """Return the plan in the order of execution of this seed."""
    drawn = plan.model_copy(update={"order_seed": order_seed})
    return drawn.model_copy(update={"order": tuple(planned_order(drawn))})


def _cell(engine: str) -> Mapping[str, Any]:
    return {"engine": engine, "processes": 1}


@lru_cache(maxsize=64)
def places_of(cells: int) -> tuple[int, int]:
    """Return the places of the primary contrast's candidate and baseline among the cells of a plan."""
    single = {cell.training.engine.kind: place for place, cell in enumerate(made_plan(cells, 1).cells)
              if cell.choices.processes == 1}
    return single["deepspeed"], single["ddp"]
