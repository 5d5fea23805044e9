"""The scale model of a run or bundle, its page and its tables."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from repro.bundle.source import open_record
from repro.cli.terminal import Console, line, stdout, table_of
from repro.core.errors import OutputError
from repro.papers.predict import prediction
from repro.papers.predict.formula import read_epochs
from repro.papers.predict.predict import predict
from repro.papers.predict.prediction import ScaleModel, Scaling
from repro.record.folder.store import read_record

if TYPE_CHECKING:
    from repro.papers.predict.prediction import ScaleModel


def predict_run(
    run: Path, processes: Sequence[int], scaling: str | None, fitted: Sequence[int], epochs: Path | None,
    out: Path | None,
) -> ScaleModel:
    """Return the scale model of a run; with `out`, also write its page.

    Raises:
        UsageError: there is no run, nothing to predict from, or no table of epochs.
        OutputError: the page cannot be written.
    """
    table = read_epochs(epochs) if epochs else None
    with open_record(run) as root:
        found = predict(read_record(root), str(run), processes, cast(Scaling | None, scaling), fitted, table)
    if out:
        # Reporters are plug-ins, so they are imported by name.
        page = importlib.import_module("repro.reporters.papers.scale_model").render(found)
        try:
            out.write_text(page, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{out}: {error.strerror or error}") from error
        sys.stderr.write(f"page: {out}\n")
    return found


SHOWN = 15
"""Columns of a terminal; bytes are in the page and the JSON."""


def print_predicted(found: ScaleModel, console: Console | None = None) -> None:
    """Print every line with its rows and assumptions."""
    console = console or stdout(190)
    console.print(line(f"{found.suite}, {found.run} ({found.origin}), {found.scaling} scaling; all figures are "
                       "modelled, except columns called measured"), soft_wrap=True)
    for item in found.lines:
        console.print(line(""))
        console.print(line(item.label, style="bold"), soft_wrap=True)
        console.print(line(prediction.line_text(item)), soft_wrap=True)
        used = [at for at in range(SHOWN) if at == 0 or any(prediction.cells(row)[at] for row in item.rows)]
        table = table_of(*((prediction.HEAD[at], True) for at in used))
        for row in item.rows:
            table.add_row(*(line(prediction.cells(row)[at]) for at in used))
        console.print(table)
        for text in prediction.notes(item):
            console.print(line(f"  {text}"), soft_wrap=True)
    console.print(line(""))
    for text in found.assumptions:
        console.print(line(f"assumed: {text}"), soft_wrap=True)
    for text in found.left_out:
        console.print(line(f"left out: {text}"), soft_wrap=True)
    if check := prediction.check_text(found):
        console.print(line(check, style="bold"), soft_wrap=True)
