"""What `repro report` does with its runs: one is reported where it lies, several become sections in a new folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from repro.cli.run import reporter, write_reports
from repro.compare.merge import Section, sections
from repro.core import registry
from repro.core.errors import UsageError
from repro.core.files import write_text

INDEX = "index.md"


def rebuild_and_report(experiment: str, targets: Sequence[str], out: Path | None) -> list[str]:
    """Fetch the newest record of an MLflow experiment into the new folder `out`, then report it like any run.

    Raises:
        UsageError: no `out`, no such experiment, no record in it.
        OutputError: `out` is not empty or cannot be written.
        TrackingError: the store cannot be reached, or holds too little of the record.
    """
    if out is None:
        raise UsageError("--from-mlflow makes a run folder: name it with --out")
    found: Any = registry.load("reporter", "mlflow")()
    folder, older = found.rebuild(experiment, out)
    if older:
        click.echo(f"the newest record of {experiment!r}; {older} older ones are there too", err=True)
    return write_reports(folder, list(targets), None)


def report_runs(runs: Sequence[Path], targets: Sequence[str], out: Path | None) -> list[str]:
    """Let each reporter named write the runs; the paths and URLs written.

    Raises:
        UnknownName: no such reporter.
        UsageError: several runs without a folder to put them, or to a place that takes one at a time.
        OutputError: no run folder, or `out` cannot be written.
        TrackingError: a tracking server did not take it.
    """
    if len(runs) == 1:
        return write_reports(runs[0], list(targets), out)
    names = [name.strip() for name in targets if name.strip()]
    for name in names:
        reporter(name)
    if not names:
        raise UsageError("--to names no reporter; see `repro list reporters`")
    if "mlflow" in names:
        raise UsageError(f"--to mlflow takes one run at a time, not {len(runs)}")
    if out is None:
        raise UsageError(f"{len(runs)} runs are copied into one folder: name it with --out")
    found = sections(runs, out)
    paths = [place for section in found for place in write_reports(section.record.folder.root, names, None)]
    joined = [place for name in names for place in reporter(name).write_sections(found, out)] if len(found) > 1 else []
    write_text(out / INDEX, index(found))
    return [*joined, str(out / INDEX), *paths]


def index(found: Sequence[Section]) -> str:
    """Which runs stand in which section, and why not in one; as a code block, where names cannot do anything."""
    lines = []
    for number, section in enumerate(found, 1):
        place = f"{section.name}/report" if section.name else "report"
        lines += [f"section {number}: {place}", f"  runs: {'; '.join(section.sources)}",
                  f"  suite: {section.record.plan.suite.suite}, digest {section.record.plan.digest}"]
        lines += [f"  apart from section 1: {section.why}"] if section.why else []
        lines += [f"  note: {note}" for note in section.notes]
    body = "\n".join(f"    {' '.join(line.splitlines())}" for line in lines)
    return f"# Reports of several runs\n\nOne section is one experiment on one machine.\n\n{body}\n"
