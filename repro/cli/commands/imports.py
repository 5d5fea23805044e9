"""`repro import mlperf|dawnbench`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from repro.cli.options import echo_json, json_option
from repro.cli.place import PlaceParam

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


def _import(program: Literal["mlperf", "dawnbench"], path: Path, out: Path, as_json: bool) -> None:
    from repro.cli.text.imports import print_import
    from repro.published.importing import import_json, import_results

    published = import_results(program, path, out)
    if as_json:
        echo_json(import_json(published))
    else:
        print_import(published)
