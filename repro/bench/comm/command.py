"""Work of the command `repro bench comm`: measure, then write a page and tracked runs."""

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
    """Parse the text of the command line.

    Raises:
        UsageError: an option that cannot be measured.
    """
    launcher = read_launcher(fabric)
    return CommOptions(
        algorithms=read_algorithms(algorithms), sizes=read_sizes(sizes), worlds=read_worlds(world, launcher),
        launcher=launcher, repetitions=repetitions, seconds=seconds, seed=seed, mpi=mpi,
    )


def run(options: CommOptions, html: Path | None, mlflow: bool) -> CommOutcome:
    """Measure, write the requested outputs, and print their places on stderr.

    Raises:
        OutputError: the page cannot be written; checked before the measurement.
        TrackingError: the tracking store refused the runs.
    """
    if html:
        _check_writable(html)
    outcome = measure(options, _show)
    if html:
        # Reporters are plug-ins: loaded by name.
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
