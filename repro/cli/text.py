"""Suites, plans and outcomes as text for a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.cli.progress import duration
from repro.compare import METRICS, Comparison, Summary
from repro.core import pattern
from repro.suite.cost import Cost
from repro.suite.model import Suite
from repro.suite.plan import Plan


def suite_text(suite: Suite) -> str:
    """What a suite compares, in a screenful."""
    lines = [f"{suite.suite}: {suite.title}"]
    if suite.description:
        lines += ["", *(line.strip() for line in suite.description.strip().splitlines())]
    lines.append("")
    for label, value in (("source", suite.source), ("expected", suite.expected), ("repeats", suite.seeds)):
        if value:
            lines.append(f"{label + ':':<12}{value}")
    for key, levels in suite.matrix.items():
        lines.append(f"{'factor:':<12}{key} = {', '.join(_level(level) for level in levels)}")
    if suite.baseline:
        lines.append(f"{'baseline:':<12}{_pattern(suite.baseline)}")
    if suite.primary:
        lines.append(f"{'primary:':<12}{_pattern(suite.primary.candidate)} against "
                     f"{_pattern(suite.primary.baseline)}, {suite.primary.metric}")
    lines.append(f"{'margin:':<12}{suite.margin:g} counts as the same")
    if suite.horizon is not None:
        lines.append(f"{'horizon:':<12}{suite.horizon:g}, up to where runs that missed are compared")
    for key in ("workload", "precision", "optimizer", "batch", "stop"):
        if pattern.get(suite.trial, key) is not None:
            lines.append(f"{key + ':':<12}{_level(suite.trial[key])}")
    return "\n".join(lines)


def plan_text(plan: Plan, cost: Cost) -> str:
    """Trials, what is skipped and why, and the cost."""
    seeds = plan.suite.seeds
    lines = [f"{plan.suite.suite}: {len(plan.order)} trials = {len(plan.cells)} cells x {seeds} repeats on "
             f"{_place(plan)}", f"suite digest {plan.digest[:16]}, method {plan.method}", ""]
    width = max(len(cell.label) for cell in plan.cells)
    lines += [f"  {cell.label:<{width}}  {_batch(cell.choices)}" for cell in plan.cells]
    if plan.skipped:
        lines += ["", "skipped:"]
        lines += [f"  {item.label}: {item.reason}" for item in plan.skipped]
    lines += [f"note: {note}" for note in plan.notes]
    lines += ["", f"about {duration(cost.full_budget_seconds)} if every trial runs to its budget ({cost.label})"]
    return "\n".join(lines)


def _place(plan: Plan) -> str:
    return f"{plan.device_count} GPU(s)" if plan.device == "cuda" else f"{plan.cores} CPU cores"


def _batch(choices: Any) -> str:
    batch = choices.batch
    return f"batch {batch.global_} = {batch.micro} x {batch.accumulation} x {choices.processes}"


def _level(level: Any) -> str:
    if isinstance(level, dict):
        kind = level.get("kind")
        rest = ", ".join(f"{key}={value}" for key, value in level.items() if key != "kind")
        return (f"{kind} ({rest})" if rest else str(kind)) if kind else rest
    return str(level)


def _pattern(wanted: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_level(value)}" for key, value in wanted.items())


def outcome_text(summaries: Sequence[Summary], comparisons: Sequence[Comparison]) -> str:
    """Cells with their medians, and the primary contrast in one sentence."""
    width = max((len(item.label) for item in summaries), default=0)
    lines = [f"{item.label:<{width}}  {item.ok} of {item.n} reached the target, median {_median(item)}{_resumed(item)}"
             for item in summaries]
    primary = next((item for item in comparisons if item.primary), None)
    return "\n".join([*lines, "", sentence(primary) if primary else "no primary contrast was declared"])


def _resumed(item: Summary) -> str:
    return f" ({item.resumed} went on from a checkpoint, with what was lost on the clock)" if item.resumed else ""


def _median(item: Summary) -> str:
    return "not reached" if item.median is None else f"{item.median:.3g} {METRICS[item.metric].unit}".rstrip()


def sentence(found: Comparison) -> str:
    """A comparison as one sentence."""
    versus = f"{found.candidate_label} against {found.baseline_label} ({found.metric})"
    settles = f"; {found.settles}" if found.settles else ""
    if found.ratio is None:
        return f"{versus}: {found.verdict}; {found.because}{settles}"
    counted = f"{found.n} pairs" if found.paired else f"{found.n} trials at least, not paired"
    limits = f"95 % interval {found.interval.low:.3f} to {found.interval.high:.3f}, " if found.interval else ""
    return (f"{versus}: {found.verdict}, {found.ratio:.3f} x {METRICS[found.metric].times} ({limits}{counted}); "
            f"{found.because}{settles}")


def command(arguments: str) -> str:
    """How to call `repro` here: by its place where it is not on the PATH (a virtual environment not activated)."""
    beside = Path(sys.executable).with_name("repro")
    if shutil.which("repro") or not beside.exists():
        return f"repro {arguments}"
    return f"{os.path.relpath(beside)} {arguments}"
