"""What the command `repro bench comm` does with what was found: a table, a page, tracked runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from repro.bench.comm.bench import measure
from repro.bench.comm.options import CommOptions, read_algorithms, read_launcher, read_sizes, read_worlds
from repro.bench.comm.result import CommOutcome
from repro.core.errors import OutputError


def read_options(
    algorithms: tuple[str, ...], sizes: str, world: str | None, fabric: str | None, repetitions: int, seconds: float,
    seed: int, mpi: bool,
) -> CommOptions:
    """The command line's text as checked values.

    Raises:
        UsageError: something that cannot be measured.
    """
    launcher = read_launcher(fabric)
    return CommOptions(
        algorithms=read_algorithms(algorithms), sizes=read_sizes(sizes), worlds=read_worlds(world, launcher),
        launcher=launcher, repetitions=repetitions, seconds=seconds, seed=seed, mpi=mpi,
    )


def run(options: CommOptions, html: Path | None, mlflow: bool) -> CommOutcome:
    """Measure, and write what was asked for; where it lies is said on stderr.

    Raises:
        OutputError: the page cannot be written; found out before anything is measured.
        TrackingError: the tracking store did not take the runs.
    """
    if html:
        _writable(html)
    outcome = measure(options, _show)
    if html:
        # Reporters are plug-ins: torch-free, and reached by name.
        page = importlib.import_module("repro.reporters.page.comm_bench").render(outcome)
        html.write_text(page, encoding="utf-8")
        _show(f"page: {html}")
    if mlflow:
        for place in importlib.import_module("repro.reporters.tracking.comm_bench").track(outcome):
            _show(f"mlflow: {place}")
    return outcome


def _writable(path: Path) -> None:
    try:
        with path.open("a", encoding="utf-8"):
            return
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
