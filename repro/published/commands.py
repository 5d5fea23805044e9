"""`repro import mlperf|dawnbench|speedrun`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from repro.cli.options import FiniteRange, PlaceParam, echo_json, json_option
from repro.core.errors import UsageError

if TYPE_CHECKING:
    from repro.published.contest_rules import Contest
    from repro.published.record import Program

path_argument = click.argument("path", type=PlaceParam(path_type=Path))
out_option = click.option("--out", type=PlaceParam(path_type=Path), required=True, help="Folder to create.")


@click.group("import")
def import_() -> None:
    """Import published results as records."""


@import_.command()
@path_argument
@out_option
@json_option
def mlperf(path: Path, out: Path, as_json: bool) -> None:
    """Import an MLPerf results repository, or any part of one: rounds, organisations, systems, single logs.

    \b
    Example: repro import mlperf training_results_v4.0 --out published/v4.0
    """
    _import("mlperf", path, out, as_json)


@import_.command()
@path_argument
@out_option
@json_option
def dawnbench(path: Path, out: Path, as_json: bool) -> None:
    """Import DAWNBench's training entries: the time of the first evaluation at the target.

    \b
    Example: repro import dawnbench dawn-bench-entries --out published/dawnbench
    """
    _import("dawnbench", path, out, as_json)


@import_.command()
@path_argument
@out_option
@click.option("--alpha", type=FiniteRange(1e-6, 0.49), default=0.01, show_default=True,
              help="Level of the claim that the mean loss is at least as good as the target.")
@click.option("--margin", type=FiniteRange(1e-4, 1.0), default=0.005, show_default=True,
              help="Two arms are the same if their times are shown to be within this share.")
@click.option("--target", type=FiniteRange(0.0, 100.0), help="Loss of every record.  [default: that of the track]")
@json_option
def speedrun(
    path: Path, out: Path, alpha: float, margin: float, target: float | None, as_json: bool
) -> None:
    """Import public records of the nanoGPT speed-run: one log, one arm, one record, or the folder of all records.

    Declare --alpha, --margin and --target before you look at the results.

    \b
    Example: repro import speedrun modded-nanogpt/records --out published/speedrun
    """
    from repro.published.contest_rules import Contest

    _import("speedrun", path, out, as_json, Contest(alpha=alpha, margin=margin, target=target))


def _import(program: Program, path: Path, out: Path, as_json: bool, contest: Contest | None = None) -> None:
    from repro.published.importing import import_json, import_results
    from repro.published.reports import print_import
    from repro.published.store import REFUSED

    published = import_results(program, path, out, contest)
    if as_json:
        echo_json(import_json(published))
    else:
        print_import(published)
    if not published.results:
        raise UsageError(f"{path}: every file was refused; {published.folder / REFUSED} has the reasons")
