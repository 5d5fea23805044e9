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
    (folder / "suite.yaml").write_text(text)
    return plan_file(folder / "suite.yaml", *overrides, machine=machine)


def plan_file(suite: Path | str, *overrides: str, machine: Machine = CPU) -> Plan:
    """Read a suite, a file or one of this package, and plan it."""
    found = read_suite(str(suite), overrides)
    return make_plan(found.suite, machine, found.problem, bool(overrides), folder=found.folder)


def setting(**changes: Any) -> Setting:
    """Two processes of ddp on a CPU, with `changes`."""
    known: dict[str, Any] = {
        "workload": "digits", "engine": "ddp", "comm": "backend", "precision": "fp32", "optimizer": "sgd",
        "launcher": "local", "processes": 2, "accumulation": 1, "device": "cpu", "device_count": 0}
    return Setting(**known | changes)


TRIAL: dict[str, object] = {
    "workload": "digits", "engine": "ddp", "batch": "{global: 64}", "optimizer": "{kind: sgd, lr: 0.1}",
    "stop": "{metric: top1, target: 0.9, max_epochs: 8}", "evaluate_every": 1437, "device": "cpu"}
"""The trial of `suite` where a test does not say otherwise."""


def suite(name: str, more: str = "", *, head: str = "", seeds: int = 1, **trial: object) -> str:
    """Return a suite of small trials as YAML text.

    Args:
        more: the sections after the trial; what a matrix in it varies is not stated in the trial.
        head: the keys before the trial, but for `suite` and `seeds`.
        trial: entries of the trial next to or in place of `TRIAL`, as YAML; None leaves one out.
    """
    stated = {key: value for key, value in (TRIAL | trial).items()
              if value is not None and (key in trial or f"\n  {key}:" not in more)}
    lines = "".join(f"  {key}: {value}\n" for key, value in stated.items())
    return f"suite: {name}\nseeds: {seeds}\n{head}trial:\n{lines}{more}"


def measurement_suite(name: str, measurement: str, more: str = "", seeds: int = 1, **trial: object) -> str:
    """Return a suite of trials of kind measurement as YAML text; for the arguments see `suite`."""
    left_out = dict.fromkeys(("workload", "engine", "batch", "optimizer", "evaluate_every"))
    return suite(name, more, seeds=seeds, kind="measurement", measurement=measurement, **left_out | trial)
