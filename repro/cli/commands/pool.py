"""The hidden `repro lane` and `repro probe`, which a pool starts on its nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from repro.cli.options import PlaceParam, allow_code_option, allow_option


@click.command(hidden=True)
@click.argument("run", type=PlaceParam(path_type=Path))
@click.argument("number", type=click.IntRange(1))
@click.option("--cores", help="Cores of this lane.  [default: those of this process]")
@click.option("--tied", is_flag=True, help="End when the process that started this one does.")
@click.option("--strict", is_flag=True, help="As of `repro run`.")
@click.option("--energy", is_flag=True, help="As of `repro run`.")
@allow_option
@allow_code_option
def lane(
    run: Path, number: int, cores: str | None, tied: bool, strict: bool, energy: bool, allowed: tuple[str, ...],
    code: str | None,
) -> None:
    """Run the blocks of shard NUMBER of RUN."""
    from repro.cli.workflows.pool import run_lane
    from repro.runner.context import Options

    sys.exit(run_lane(run, number, Options(strict=strict, energy=energy), allowed, code, cores, tied))


@click.command(hidden=True)
@click.argument("file", type=PlaceParam(path_type=Path))
def probe(file: Path) -> None:
    """Write the cores and GPUs that a process sees here into FILE."""
    from repro.cli.workflows.pool import write_machine

    write_machine(file)
