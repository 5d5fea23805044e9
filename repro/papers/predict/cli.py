"""`repro predict`."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.options import PlaceParam, echo_json, json_option
from repro.papers.advise.cli import CountsParam

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
    from repro.papers.predict.workflow import predict_run, print_predicted

    found = predict_run(run, processes, scaling, fitted, epochs, out)
    if as_json:
        echo_json(found.model_dump(mode="json"))
    else:
        print_predicted(found)
