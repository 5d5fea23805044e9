"""Measurements of all-reduce algorithms, and their outputs: a page and tracked runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from repro.bench.comm.bench import measure
from repro.bench.comm.comm_options import CommOptions
from repro.bench.comm.result import CommOutcome
from repro.core.errors import OutputError


def measure_and_write(options: CommOptions, html: Path | None, mlflow: bool) -> CommOutcome:
    """Measure, write the requested outputs, and print their places on stderr.

    Raises:
        OutputError: the page cannot be written; checked before anything is measured.
        TrackingError: the tracking store rejected the runs.
    """
    if html:
        _check_writable(html)
    outcome = measure(options, _show)
    if html:
        # Reporters are plug-ins, so they are imported by name.
        page = importlib.import_module("repro.reporters.page.comm_bench").render(outcome)
        html.write_text(page, encoding="utf-8")
        _show(f"page: {html}")
    if mlflow:
        for place in importlib.import_module("repro.reporters.tracking.comm_bench").track(outcome):
            _show(f"mlflow: {place}")
    return outcome


def _check_writable(path: Path) -> None:
    try:
        with path.open("a", encoding="utf-8"):
            return
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
