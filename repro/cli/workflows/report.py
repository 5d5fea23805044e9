"""Reports of stored runs: one is reported in its own folder, several become sections of a new folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.bundle.source import folder_name, is_foreign
from repro.compare.runs.merge import Section, sections
from repro.core import registry
from repro.core.errors import UsageError
from repro.core.files import write_text
from repro.core.numbers import spelled
from repro.reporting import reporters, write_reports

INDEX = "index.md"


def report_place(runs: Sequence[Path]) -> Path | None:
    """Return the folder for the report of a bundle or of others' run, in the working directory; None: in the run."""
    published = registry.part("published", "found")
    first = next((run for run in runs if published([run])), None) if len(runs) > 1 else runs[0]
    return Path(f"{folder_name(first)}-report") if first is not None and is_foreign(first) else None


def report_runs(
    runs: Sequence[Path], targets: Sequence[str], out: Path | None, only: str | None = None, prefix: str = "",
    changed: str = "",
) -> list[str]:
    """Write the runs with each of the reporters `targets`; return the paths and URLs written.

    Of several sections each has its number, spelled, after the `prefix`.

    Args:
        changed: how a single run contradicts itself (`unsound`), for its page.

    Raises:
        UnknownName: no such reporter.
        UsageError: several runs without `out`, or to a reporter that takes one run at a time.
        OutputError: a run is no run folder, or `out` cannot be written.
        TrackingError: a tracking server rejected the run.
    """
    if len(runs) == 1:
        return write_reports(runs[0], targets, out, only, prefix, changed)
    named = reporters(targets, prefix=prefix)
    if "mlflow" in named:
        raise UsageError(f"--to mlflow takes one run at a time, not {len(runs)}")
    if out is None:
        raise UsageError(f"{len(runs)} runs are copied into one folder; name it with --out")
    found = sections(runs, out)
    prefixes = [prefix + spelled(number) for number, _ in enumerate(found, 1)] if len(found) > 1 else [prefix]
    paths = [place for section, own in zip(found, prefixes, strict=True)
             for place in write_reports(section.record.folder.root, [*named], None, only, own)]
    joined = [place for item in named.values() for place in item.write_sections(found, out)] if len(found) > 1 else []
    write_text(out / INDEX, index(found))
    return [*joined, str(out / INDEX), *paths]


def index(found: Sequence[Section]) -> str:
    """Return the list of sections and their runs as a code block, in which names have no Markdown effect."""
    lines = []
    for number, section in enumerate(found, 1):
        place = f"{section.name}/report" if section.name else "report"
        lines += [f"section {number}: {place}", f"  runs: {'; '.join(section.sources)}",
                  f"  suite: {section.record.plan.suite.suite}, digest {section.record.plan.digest}"]
        lines += [f"  separate from section 1: {section.why}"] if section.why else []
        lines += [f"  note: {note}" for note in section.notes]
    body = "\n".join(f"    {' '.join(line.splitlines())}" for line in lines)
    return f"# Reports of several runs\n\nOne section is one experiment on one machine.\n\n{body}\n"
