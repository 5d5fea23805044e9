"""The outcome of the parity gate as a table for a terminal."""

from __future__ import annotations

from repro.cli.workflows.gate import Gated, Row

REQUESTS = ("optimizer",)
"""Checks of what was requested. They run last, but what they find explains differences from the first step on."""
HEAD = ("candidate", "group", "check", "result", "step", "tensor", "difference", "tolerance")


def gate_text(found: Gated) -> str:
    """Return a table with a line for each check, and the failures in words below it, causes before symptoms."""
    table = [HEAD, *(_cells(row) for row in found.rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    compared = list(dict.fromkeys((row.candidate, row.group) for row in found.rows))
    failed = sorted((row for row in found.rows if not row.passed), key=lambda row: (
        compared.index((row.candidate, row.group)), row.check not in REQUESTS, row.step or 0))
    return "\n".join([*lines, "", *([f"{row.candidate}: {row.text}" for row in failed] or ["all checks passed"])])


def _cells(row: Row) -> tuple[str, ...]:
    return (row.candidate, row.group, row.check, "pass" if row.passed else "FAIL",
            "" if row.step is None else str(row.step), row.tensor,
            "" if row.size is None else f"{row.size:.3g}", "" if row.tolerance is None else f"{row.tolerance:.3g}")
