"""`repro gate`: the parity gate alone."""

from __future__ import annotations

import sys

import click

from repro.cli.options import echo_json, json_option, override_option, planned, read_source, suite_argument
from repro.cli.terminal import say


@click.command()
@suite_argument
@override_option
@click.option("--only", multiple=True, metavar="CELL", help="Compare only these cells, by label, id or pattern "
              "(engine=ddp,processes=2); may be repeated.")
@json_option
def gate(suite: str, overrides: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> None:
    """Run only the parity gate of SUITE, for authors of plug-ins.

    Every cell takes the gate's steps and is compared with a plain loop in one process. Nothing is timed or kept.
    Exits with 1 if a check fails.

    \b
    Example: repro gate engines --only engine=ddp
    """
    from dataclasses import asdict

    from repro.cli.workflows.gate import gate_text, run_gate

    source = read_source(suite, overrides)
    plan, _ = planned(source, overrides)
    found = run_gate(plan, source.text, only)
    if as_json:
        echo_json([asdict(row) for row in found.rows])
    else:
        say(gate_text(found))
    sys.exit(found.exit_code)
