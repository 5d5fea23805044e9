"""`repro doctor` and `repro ui`: this machine, and the MLflow store in use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from repro.cli.options import echo_json, json_option
from repro.cli.terminal import say
from repro.core.errors import Exit


@click.command()
@click.option("--fix", is_flag=True, help="End orphaned processes of earlier runs, and with them their networks.")
@json_option
def doctor(fix: bool, as_json: bool) -> None:
    """Check that this machine can run trials.

    Shows what the machine has, what is missing, and the command that fixes it.

    \b
    Example: repro doctor --fix
    """
    from repro.runner.doctor import end_orphans, examine

    if fix:
        say(f"orphaned processes ended: {len(end_orphans())}", err=True)
    findings = examine(Path("runs"))
    if as_json:
        echo_json([item.model_dump() for item in findings])
    else:
        for item in findings:
            fix_text = f"\n{'':<9}fix: {item.mend}" if item.mend else ""
            say(f"{item.state:<8} {item.what}: {item.found}{fix_text}")
    sys.exit(Exit.TRIAL_FAILED if any(item.state == "missing" for item in findings) else Exit.DONE)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on the loopback interface; 0: a free one.")
@click.option("--experiment", help="Open this experiment (the name of a suite).")
def ui(port: int, experiment: str | None) -> None:
    """Serve MLflow's UI for the store in use.

    \b
    Example: repro ui --experiment quickstart
    """
    from repro.runner.mlflow_ui import open_ui

    open_ui(os.environ.get("MLFLOW_TRACKING_URI"), port=port, experiment=experiment)
