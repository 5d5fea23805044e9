"""What `repro report` and `repro compare` do with published results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repro.cli.options import echo_json
from repro.cli.workflows.run import reporter
from repro.core.errors import UsageError
from repro.published.comparison.compare import any_published, compare_published
from repro.published.store import read_published
from repro.published.terminal import print_published
from repro.record.folder.store import read_record


def report(folders: Sequence[Path], targets: Sequence[str], out: Path | None) -> list[str]:
    """Write published results with each reporter, and the runs among `folders` in separate sections.

    Raises:
        UnknownName: no such reporter.
        UsageError: a reporter cannot write published results.
        OutputError: a folder is neither kind or is damaged, or `out` cannot be written.
    """
    named = {name.strip(): reporter(name.strip()) for name in targets if name.strip()}
    if not named:
        raise UsageError("--to names no reporter; see `repro list reporters`")
    # Reporters are plug-ins, so they are imported by name.
    known = importlib.import_module("repro.reporters.published.formats").WRITERS
    writers = []
    for name, item in named.items():  # before anything is written
        writer = partial(known[name], item) if name in known else getattr(item, "write_published", None)
        if item.unpublishable or writer is None:
            reason = item.unpublishable or "it supports only runs of this harness"
            raise UsageError(f"--to {name} cannot write published results: {reason}")
        writers.append(writer)
    foreign = [folder for folder in folders if any_published([folder])]
    imports = [read_published(folder) for folder in foreign]
    own = [read_record(folder) for folder in folders if folder not in foreign]
    place = out or foreign[0] / "report"
    return [written for writer in writers for written in writer(imports, own, place)]


def compare(runs: Sequence[Path], as_json: bool, candidate: str | None, request: dict[str, Any]) -> None:
    """Compare published results, print them, and exit."""
    found = compare_published(runs, candidate=candidate, **request)
    if as_json:
        echo_json(found.as_json())
    else:
        print_published(found)
    sys.exit(found.exit_code)
