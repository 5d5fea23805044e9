"""`repro predict`: the command and what it prints."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from repro.cli.options import PlaceParam, echo_json, json_option
from repro.cli.terminal import line, say, stdout, table_of
from repro.core.files import write_text
from repro.papers.advise.cli import CountsParam

if TYPE_CHECKING:
    from repro.papers.predict.prediction import LinkCost, ScaleModel, Scaling

PROCESSES = CountsParam("processes", "16,64,256", 1, 1 << 16)
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class LinkParam(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """Rate and latency of links: 100gbit,5us."""

    name = "link"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> LinkCost:
        from repro.papers.predict.prediction import LinkCost

        number = r"(\d{1,9}(?:\.\d{1,9})?)"
        found = re.fullmatch(f"{number}({'|'.join(BITS)}),{number}({'|'.join(SECONDS)})",
                             str(value).lower().replace(" ", ""), re.ASCII)
        if found is None or not float(found[1]):
            self.fail(f"{str(value)[:40]!r} are no rate and latency; write for example 100gbit,5us (rate: kbit, "
                      "mbit, gbit or tbit a second; latency: ns, us, ms or s)", param, ctx)
        return LinkCost(alpha=float(found[3]) * SECONDS[found[4]], beta=8 / (float(found[1]) * BITS[found[2]]))


@click.command()
@click.argument("run", metavar="RUN|BUNDLE", type=PlaceParam(path_type=Path))
@click.option("--processes", type=PROCESSES, required=True, metavar="16,64,256",
              help="Numbers of processes to predict; those of the record are shown as well.")
@click.option("--scaling", type=click.Choice(["strong", "weak"]), help="Keep the global batch, or the samples of a "
              "worker.  [default: strong if the record keeps the global batch, else weak]")
@click.option("--fit", "fitted", type=PROCESSES, default=(), metavar="1,2,4", help="Fit to these numbers of the "
              "record only, and check with the others.  [default: all]")
@click.option("--ranks-per-node", type=click.IntRange(1, 1 << 16), help="Ranks, one a device, that fill a node before "
              "the next one is used.  [default: as the record's most processes on several nodes, else all that its one "
              "node takes]")
@click.option("--between", type=LinkParam(), metavar="RATE,LATENCY", help="Link of a node to all others, for example "
              "100gbit,5us; for numbers of processes that are not fitted.  [default: fitted]")
@click.option("--within", type=LinkParam(), metavar="RATE,LATENCY", help="Links of the ranks within a node, likewise.  "
              "[default: fitted]")
@click.option("--epochs", type=PlaceParam(path_type=Path), metavar="FILE",
              help="Published epochs to the target by global batch, as YAML: source: TEXT, epochs: {8192: 42}.  "
              "[default: the record's own]")
@click.option("--out", type=PlaceParam(path_type=Path, file_okay=True), metavar="FILE", help="Also write a page with "
              "plots.")
@json_option
def predict(
    run: Path, processes: tuple[int, ...], scaling: str | None, fitted: tuple[int, ...], ranks_per_node: int | None,
    between: LinkCost | None, within: LinkCost | None, epochs: Path | None, out: Path | None, as_json: bool,
) -> None:
    """Model the times of RUN with other numbers of processes.

    RUN needs at least two numbers of processes. A step is the slowest of its workers, plus the communication of the
    algorithm's own schedule over links fitted to the run, plus the wait for input. All predictions are labelled
    modelled, and all assumptions are listed.

    \b
    Example: repro predict runs/firecaffe --processes 16,64,256,1024 --out predict.html
             repro predict runs/guidelines --processes 6,8 --fit 1,2,3,4
             repro predict runs/one-node --processes 16,64 --ranks-per-node 8 --between 100gbit,5us
    """
    from repro.bundle.source import open_record
    from repro.papers.predict.formula import read_epochs
    from repro.papers.predict.predict import predict as modelled
    from repro.papers.predict.prediction import Topology
    from repro.record.folder.store import read_record

    table = read_epochs(epochs) if epochs else None
    with open_record(run) as root:
        found = modelled(read_record(root), str(run), processes, cast("Scaling | None", scaling), fitted, table,
                         Topology(ranks_per_node=ranks_per_node, between=between, within=within))
    if out:
        # Reporters are plug-ins, so they are imported by name.
        write_text(out, importlib.import_module("repro.reporters.papers.scale_model").render(found))
        say(f"page: {out}", err=True)
    if as_json:
        echo_json(found)
    else:
        print_predicted(found)


SHOWN = 16
"""Columns of a terminal; bytes are in the page and the JSON."""


def print_predicted(found: ScaleModel) -> None:
    """Print every line with its rows and assumptions."""
    from repro.papers.predict import prediction

    console = stdout(190)
    console.lines(f"{found.suite}, {found.run} ({found.origin}), {found.scaling} scaling; all figures are modelled, "
                  "except columns called measured")
    for item in found.lines:
        console.lines("")
        console.print(line(item.label, style="bold"), soft_wrap=True)
        console.lines(prediction.line_text(item))
        used = [at for at in range(SHOWN) if at == 0 or any(prediction.cells(row)[at] for row in item.rows)]
        table = table_of(*((prediction.HEAD[at], True) for at in used))
        for row in item.rows:
            table.add_row(*(line(prediction.cells(row)[at]) for at in used))
        console.print(table)
        console.lines(*(f"  {text}" for text in prediction.notes(item)))
    console.lines("", *(f"assumed: {text}" for text in found.assumptions),
                  *(f"left out: {text}" for text in found.left_out))
    if check := prediction.check_text(found):
        console.print(line(check, style="bold"), soft_wrap=True)
