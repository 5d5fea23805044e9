"""`repro bench`: what the harness costs on this machine, and what its communication algorithms do there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from repro.cli.options import FiniteRange, PlaceParam, answer, json_option
from repro.core.errors import UsageError


@click.group()
def bench() -> None:
    """Measure the harness itself."""


@bench.command()
@click.option("--pairs", type=click.IntRange(2, 1_000_000), default=400,
              help="Interleaved pairs of single steps in a launch.")
@click.option("--launches", type=click.IntRange(2, 1000), default=12, help="Launches; each gives one ratio.")
@click.option("--batch", type=click.IntRange(1, 1024), default=64, help="Samples per step, which set its length.")
@click.option("--steps", type=click.IntRange(1, 10_000), default=50, help="Steps between two lines in the log.")
@click.option("--processes", type=click.IntRange(1, 8), default=2, help="Ranks.")
@json_option
def overhead(pairs: int, launches: int, batch: int, steps: int, processes: int, as_json: bool) -> None:
    """Measure the step time against bare DDP.

    Single steps under the harness alternate with steps of a hand-written DDP loop that does the same work.

    \b
    Example: repro bench overhead --pairs 400 --launches 12 --batch 64
    """
    from repro.bench.overhead import measure

    if batch % processes:
        raise UsageError(f"--batch {batch}: must be divisible by --processes {processes}")
    found = measure(pairs, steps, batch, processes, launches)
    answer(as_json, found, found.text)


@bench.command()
@click.option("--pairs", type=click.IntRange(2, 200), default=6, help="Interleaved pairs of starts.")
@click.option("--nodes", type=click.IntRange(1, 16), default=1, help="Agents, all on this machine, with a rank each; "
              "against as many torchrun at once.")
@json_option
def turnaround(pairs: int, nodes: int, as_json: bool) -> None:
    """Measure a short trial against torchrun.

    A 2-rank trial of one step, from start to end, alternates with a bare `torchrun` of the same script.

    \b
    Example: repro bench turnaround --pairs 10
    """
    from repro.bench.turnaround import measure

    found = measure(pairs, nodes)
    answer(as_json, found, found.text)


@bench.command()
@click.option("-a", "--algorithm", "algorithms", multiple=True, metavar="NAME",
              help="ring, or '{kind: tree, arity: 4}'; may be repeated.  [default: all, with their defaults]")
@click.option("--sizes", default="1k:64m", help="1k:64m: every power of 4 in this range; 4k,1m: these two.")
@click.option("--world", metavar="2,4,8", help="Ranks.  [default: the fabric's nodes, else 2,4]")
@click.option("--fabric", metavar="nodes=8,rate=200mbit", help="An emulated cluster instead of loopback.")
@click.option("--repetitions", type=click.IntRange(2, 1000), default=10,
              help="Repetitions of every algorithm at every size.")
@click.option("--seconds", type=FiniteRange(min=0.1), default=20.0,
              help="Limit for one algorithm at one size; a combination that would exceed it is skipped.")
@click.option("--seed", type=click.IntRange(min=0), default=20151102, help="Seed of the order of execution.")
@click.option("--html", type=PlaceParam(dir_okay=False, path_type=Path), help="Write a page with plots.")
@click.option("--mlflow", is_flag=True, help="Log one MLflow run per algorithm and number of ranks.")
@json_option
def comm(html: Path | None, mlflow: bool, as_json: bool, **request: Any) -> None:
    """Compare all-reduce algorithms.

    Each is compared with the backend's own and with its bounds; measurements are interleaved and sums are checked.

    \b
    Example: repro bench comm --fabric nodes=8,rate=200mbit --sizes 4k:16m --html comm.html
    """
    from repro.bench.comm.bench import measure_and_write, read_options
    from repro.bench.comm.table import text

    outcome = measure_and_write(read_options(**request), html, mlflow)
    answer(as_json, outcome.as_json(), lambda: text(outcome))
