"""`repro predict`: the command and what it prints."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from repro.cli.options import PlaceParam, echo_json, json_option
from repro.cli.terminal import line, say, stdout, table_of
from repro.core.files import write_text
from repro.papers.advise.cli import CountsParam

if TYPE_CHECKING:
    from repro.papers.predict.prediction import ScaleModel, Scaling

PROCESSES = CountsParam("processes", "16,64,256", 1, 1 << 16)


@click.command()
@click.argument("run", metavar="RUN|BUNDLE", type=PlaceParam(path_type=Path))
@click.option("--processes", type=PROCESSES, required=True, metavar="16,64,256",
              help="Numbers of processes to predict; those of the record are shown as well.")
@click.option("--scaling", type=click.Choice(["strong", "weak"]), help="Keep the global batch, or the samples of a "
              "worker.  [default: strong if the record keeps the global batch, else weak]")
@click.option("--fit", "fitted", type=PROCESSES, default=(), metavar="1,2,4", help="Fit to these numbers of the "
              "record only, and check with the others.  [default: all]")
@click.option("--epochs", type=PlaceParam(path_type=Path), metavar="FILE",
              help="Published epochs to the target by global batch, as YAML: source: TEXT, epochs: {8192: 42}.  "
              "[default: the record's own]")
@click.option("--out", type=PlaceParam(path_type=Path, file_okay=True), metavar="FILE", help="Also write a page with "
              "plots.")
@json_option
def predict(
    run: Path, processes: tuple[int, ...], scaling: str | None, fitted: tuple[int, ...], epochs: Path | None,
    out: Path | None, as_json: bool,
) -> None:
    """Model the times of RUN with other numbers of processes.

    RUN needs at least two numbers of processes. A step is the slowest of its workers, plus the communication of the
    algorithm's own schedule over links fitted to the run, plus the wait for input. All predictions are labelled
    modelled, and all assumptions are listed.

    \b
    Example: repro predict runs/firecaffe --processes 16,64,256,1024 --out predict.html
             repro predict runs/guidelines --processes 6,8 --fit 1,2,3,4
    """
    from repro.bundle.source import open_record
    from repro.papers.predict.formula import read_epochs
    from repro.papers.predict.predict import predict as modelled
    from repro.record.folder.store import read_record

    table = read_epochs(epochs) if epochs else None
    with open_record(run) as root:
        found = modelled(read_record(root), str(run), processes, cast("Scaling | None", scaling), fitted, table)
    if out:
        # Reporters are plug-ins, so they are imported by name.
        write_text(out, importlib.import_module("repro.reporters.papers.scale_model").render(found))
        say(f"page: {out}", err=True)
    if as_json:
        echo_json(found.model_dump(mode="json"))
    else:
        print_predicted(found)


SHOWN = 15
"""Columns of a terminal; bytes are in the page and the JSON."""


def print_predicted(found: ScaleModel) -> None:
    """Print every line with its rows and assumptions."""
    from repro.papers.predict import prediction

    console = stdout(190)
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
