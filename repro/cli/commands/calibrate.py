"""`repro calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.options import echo_json, expand, json_option, override_option, read_source, suite_argument
from repro.cli.place import PlaceParam
from repro.cli.terminal import say


@click.command()
@suite_argument
@override_option
@click.option("--from", "stored", type=PlaceParam(path_type=Path), metavar="RUN|BUNDLE",
              help="Use a stored run instead of running anything: the repeats of each cell are split into two sides.")
@click.option("--cell", metavar="KEY=VALUE[,...]", help="Cells to run against themselves.  [default: the baseline of "
              "the primary contrast; with --from every cell]")
@click.option("--pairs", type=click.IntRange(min=1), help="Pairs of each comparison, at least 6.  "
              "[default: the suite's repeats]")
@click.option("--nulls", type=click.IntRange(min=1), default=1, help="Comparisons of each cell; more of them make the "
              "rate more precise.")
@click.option("--keep", is_flag=True, help="Keep the run folder.")
@click.option("--to", type=PlaceParam(dir_okay=False, path_type=Path), help="File of the calibration.  [default: in "
              "the user's data folder; with --from in the run folder; a bundle requires it]")
@json_option
def calibrate(
    suite: str, overrides: tuple[str, ...], stored: Path | None, cell: str | None, pairs: int | None, nulls: int,
    keep: bool, to: Path | None, as_json: bool,
) -> None:
    """Measure the false-positive rate of SUITE.

    Compares cells with themselves and counts how often the verdict is a difference.

    \b
    Example: repro calibrate quickstart --nulls 5
    """
    from repro.cli.workflows import calibrate as calibration
    from repro.compare.runs.runs import read_pattern

    source = read_source(suite, overrides)
    plan, wanted = expand(source, overrides), read_pattern(cell, "--cell") if cell is not None else None
    found = calibration.replay(stored, plan, wanted, pairs, to) if stored is not None else \
        calibration.calibrate(plan, source.text, wanted, pairs, nulls, keep, to)
    if as_json:
        echo_json(found.as_json())
    else:
        say(found.text())
