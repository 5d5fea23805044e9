"""Plans of suites that a test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.core.machine import Machine
from repro.seams.plugin import Setting
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan

CPU = Machine("cpu", 0, 2)


def planned(folder: Path, text: str, *overrides: str, machine: Machine = CPU) -> Plan:
    """Write `text` as a suite into `folder`, read it and plan it."""
    path = folder / "suite.yaml"
    path.write_text(text)
    found = read_suite(str(path), overrides)
    return make_plan(found.suite, machine, found.problem, bool(overrides), folder=found.folder)


def setting(**changes: Any) -> Setting:
    """Two processes of ddp on a CPU, with `changes`."""
    known: dict[str, Any] = {
        "workload": "digits", "engine": "ddp", "comm": "backend", "precision": "fp32", "optimizer": "sgd",
        "launcher": "local", "processes": 2, "accumulation": 1, "device": "cpu", "device_count": 0}
    return Setting(**known | changes)
