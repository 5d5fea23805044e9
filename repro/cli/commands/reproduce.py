"""`repro reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from repro.cli.options import allow_code_option, allow_option, echo_json, json_option
from repro.cli.place import PlaceParam
from repro.cli.terminal import say


@click.command()
@click.argument("source", metavar="BUNDLE|RUN", type=PlaceParam(path_type=Path))
@click.option("--trials", metavar="N|ID[,ID...]", help="The first N seeds of every cell, or the trials with these ids."
              "  [default: all trials that have a result]")
@click.option("--out", type=PlaceParam(path_type=Path), help="Run folder to create.  "
              "[default: runs/SUITE-reproduce-DATE-TIME]")
@click.option("--resume", type=PlaceParam(path_type=Path), metavar="RUN", help="Resume an interrupted reproduction of "
              "this record, and judge it.")
@click.option("--force", is_flag=True, help="Reproduce even if the record was modified; with --resume also if the "
              "machine or code have changed.")
@allow_option
@allow_code_option
@json_option
def reproduce(
    source: Path, trials: str | None, out: Path | None, resume: Path | None, force: bool, allowed: tuple[str, ...],
    code: str | None, as_json: bool,
) -> None:
    """Run a record again and judge the result.

    The answer is reproduced, not reproduced or inconclusive. Trials are judged bit for bit if the suite says
    `determinism: bitwise`, else by the time to the target within the suite's margin. Exit code 0 if reproduced, else 3.

    \b
    Example: repro reproduce quickstart.zip --trials 6
    """
    from repro.cli.workflows.reproduce import reproduce as reproduce_record

    if resume is not None and (trials or out):
        raise click.UsageError("--resume RUN keeps the folder and the trials of RUN; leave out --trials and --out")
    found = reproduce_record(source, trials, out, force, resume, allowed, code)
    if as_json:
        echo_json(found.as_json())
    else:
        say(found.text())
    sys.exit(found.exit_code)
