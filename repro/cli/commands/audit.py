"""`repro audit`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from repro.cli.options import echo_json, json_option
from repro.cli.place import PlaceParam


@click.command()
@click.argument("source", metavar="RUN|BUNDLE|FOLDER|EXPERIMENT", type=PlaceParam())
@click.option("--map", "mapping", type=PlaceParam(dir_okay=False, path_type=Path), metavar="YAML",
              help="For an MLflow experiment (MLFLOW_TRACKING_URI): the file that says what its metrics, parameters "
              "and tags mean.")
@json_option
def audit(source: str, mapping: Path | None, as_json: bool) -> None:
    """Check a record against best practices.

    The record is a run folder, a bundle, a folder of published results, or an MLflow experiment.

    The rules come from FireCaffe, Hoefler & Belli, MLPerf, NeurIPS and ACM. Exit code 3 if a required rule fails.

    \b
    Example: repro audit runs/quickstart-20260101-120000
    """
    from repro.audit.audit import audit as audit_source
    from repro.cli.text.audit import print_audit

    found = audit_source(source, mapping)
    if as_json:
        echo_json(found.as_json())
    else:
        print_audit(found)
    sys.exit(found.exit_code)
