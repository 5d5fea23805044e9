"""`repro bench`: measurements of the harness itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from repro.cli.options import FiniteRange, echo_json, json_option
from repro.cli.place import PlaceParam
from repro.cli.terminal import say
from repro.core.errors import Exit, UsageError


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
@click.option("--program", is_flag=True, help="Measure `repro.watch` in a program instead.")
@json_option
@click.pass_context
def overhead(
    context: click.Context, pairs: int, launches: int, batch: int, steps: int, processes: int, program: bool,
    as_json: bool,
) -> None:
    """Measure the step time against bare DDP.

    Single steps under the harness alternate with steps of a hand-written DDP loop that does the same work.

    With --program, steps of 10 ms that are reported through `repro.watch` alternate with steps that are not: in a plain
    loop, and under each framework that is installed and has a callback; 2000 pairs each.

    \b
    Example: repro bench overhead --pairs 400 --launches 12 --batch 64
    """
    if program:
        from repro.bench.harness import program_overhead

        given = [name for name in ("pairs", "launches", "batch", "steps", "processes")
                 if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
        if given not in ([], ["pairs"]):
            raise UsageError(f"--{given[-1]} does not go with --program, whose steps take 10 ms in one process")
        _print(program_overhead.measure(pairs if given else program_overhead.PAIRS), as_json)
        return
    from repro.bench.harness.overhead import measure

    if batch % processes:
        raise UsageError(f"--batch {batch}: must be divisible by --processes {processes}")
    _print(measure(pairs, steps, batch, processes, launches), as_json)


@bench.command()
@click.option("--samples", type=click.IntRange(1, 1_000_000_000), default=1_281_167, help="Training samples.")
@click.option("--batch", type=click.IntRange(1, 1_000_000), default=256, help="Samples of one rank per step.")
@json_option
def order(samples: int, batch: int, as_json: bool) -> None:
    """Measure what the data order costs a step.

    Times the look-up of every step, also of the first ones of the next pass over the data.

    \b
    Example: repro bench order --samples 20000000
    """
    from repro.bench.harness.order import measure

    _print(measure(samples, batch), as_json)


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
    from repro.bench.harness.turnaround import measure

    _print(measure(pairs, nodes), as_json)


@bench.command()
@click.option("--rounds", type=click.IntRange(2, 100_000), default=800,
              help="Rounds, each with one block of each of the four arms.")
@click.option("--steps", type=click.IntRange(1, 10_000), default=100, help="Steps in a block.")
@click.option("--processes", type=click.IntRange(1, 8), default=2, help="Ranks.")
@click.option("--delay", type=FiniteRange(min=0), default=2.0,
              help="Seconds that the slow server takes per request.")
@click.option("--every", type=FiniteRange(min=0),
              help="Seconds between two replays of an arm.  [default: as in a run]")
@json_option
def tracking(rounds: int, steps: int, processes: int, delay: float, every: float | None, as_json: bool) -> None:
    """Measure the cost of a bad tracking server.

    Step times with a dead and with a slow tracking server alternate with those without one, in one training.
    Ctrl-C stops early and reports the completed rounds.

    \b
    Example: repro bench tracking --rounds 1000
    """
    from repro.bench.harness.tracking import measure

    _print(measure(rounds, steps, processes, delay, every), as_json)


@bench.command()
@click.option("--rounds", type=click.IntRange(1, 1000), default=6, help="Volumes, each with every number of workers.")
@click.option("--seconds", type=FiniteRange(min=0.5, max=3600), default=5.0, help="Length of a phase.")
@click.option("--delay", type=FiniteRange(min=0.01, max=60), default=0.25, help="Emulated computation of a task.")
@click.option("--most", type=click.IntRange(2, 64), default=4, help="Most workers that live at a time.")
@json_option
def workers(rounds: int, seconds: float, delay: float, most: int, as_json: bool) -> None:
    """Measure throughput as workers come and go.

    Workers of a volume (`repro volume run`) are started and killed; the table has tasks a second and live workers.

    \b
    Example: repro bench workers --rounds 6
    """
    from repro.bench.harness.live_workers import measure

    _print(measure(rounds, seconds, delay, most), as_json)


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
@click.option("--with-mpi", "mpi", is_flag=True, help="Also measure Open MPI's MPI_Allreduce over TCP, if installed.")
@click.option("--html", type=PlaceParam(dir_okay=False, path_type=Path), help="Write a page with plots.")
@click.option("--mlflow", is_flag=True, help="Log one MLflow run per algorithm and number of ranks.")
@json_option
def comm(html: Path | None, mlflow: bool, as_json: bool, **request: Any) -> None:
    """Compare all-reduce algorithms.

    Each is compared with the backend's own and with its bounds; measurements are interleaved and sums are checked.

    \b
    Example: repro bench comm --fabric nodes=8,rate=200mbit --sizes 4k:16m --html comm.html
    """
    from repro.bench.comm.options import read_options
    from repro.bench.comm.outputs import measure_and_write
    from repro.bench.comm.table import text

    outcome = measure_and_write(read_options(**request), html, mlflow)
    if as_json:
        echo_json(outcome.as_json())
    else:
        say(text(outcome))


@bench.command("compare")
@click.option("--cells", type=click.IntRange(32, 100_000), default=5000, help="Cells of the largest record.")
@click.option("--seeds", type=click.IntRange(6, 1000), default=20, help="Results per cell.")
@click.option("--sizes", type=click.IntRange(2, 10), default=4,
              help="Number of records, each with half the cells of the next.")
@click.option("--repetitions", type=click.IntRange(1, 100), default=3,
              help="Repetitions of every size; the fastest counts.")
@json_option
def bench_compare(cells: int, seeds: int, sizes: int, repetitions: int, as_json: bool) -> None:
    """Measure comparing a large record.

    Measures time and memory for records of up to 100,000 results, and their growth with the size.

    \b
    Example: repro bench compare --cells 1000
    """
    from repro.bench.harness.compare_scale import measure

    if cells >> (sizes - 1) < 8:
        raise click.UsageError(f"--cells {cells} halved {sizes - 1} times gives fewer than 8 cells; "
                               "lower --sizes or raise --cells")
    _print(measure(cells, seeds, sizes, repetitions), as_json)


@bench.command("import")
@click.option("--logs", type=click.IntRange(5, 100_000), default=2000,
              help="Minimum number of result logs of the round.")
@click.option("--megabytes", type=FiniteRange(0.1, 10_000), default=400.0,
              help="Total size of the logs, 10^6 bytes.")
@click.option("--from", "sample", type=PlaceParam(exists=True, file_okay=False, path_type=Path),
              help="Repeat the logs of this round (ORG/results/...).  [default: synthetic logs]")
@click.option("--program", type=click.Choice(["mlperf", "speedrun"]), default="mlperf", show_default=True,
              help="Program whose logs are repeated or made.")
@json_option
def bench_import(
    logs: int, megabytes: float, sample: Path | None, program: Literal["mlperf", "speedrun"], as_json: bool
) -> None:
    """Measure importing published results.

    Measures time and memory of importing and reporting a full round of results, or all records of a speed-run, and of
    opening its page.

    \b
    Example: repro bench import --from training_results_v4.0
    """
    from repro.bench.harness.import_scale import measure

    if sample is not None and program != "mlperf":
        raise click.UsageError("--from repeats logs of MLPerf only; leave it out for --program speedrun")
    _print(measure(logs, megabytes, sample, program), as_json)


@bench.command("board")
@click.option("--from", "folder", type=PlaceParam(exists=True, file_okay=False, path_type=Path), required=True,
              help="Folder of bundles to copy.")
@click.option("--bundles", type=click.IntRange(1, 100_000), default=500, help="Bundles of the board.")
@json_option
def bench_board(folder: Path, bundles: int, as_json: bool) -> None:
    """Measure building a board.

    Makes bundles that differ in when they ran, and times `repro board` on them: the first build, which verifies every
    log of every bundle, and the second.

    \b
    Example: repro bench board --from docs/gallery/records
    """
    from repro.bench.harness.board_scale import measure

    _print(measure(folder, bundles), as_json)


@bench.command("verdicts")
@click.option("--experiments", type=click.IntRange(20, 1_000_000), default=4000, help="Simulated experiments a row.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose name contains this; may be repeated.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, help="Rows simulated at the same time.")
@json_option
def bench_verdicts(experiments: int, only: tuple[str, ...], processes: int, as_json: bool) -> None:
    """Measure wrong verdicts and power.

    Simulates experiments of a known truth, from results to verdicts: equal cells, drift, coarse and unlike evaluation
    grids, missed targets, two runs, conditions of --fail-if, plans from pilots. All rows take about an hour. Exit
    code 3 if a row does not keep what is promised.

    \b
    Example: repro bench verdicts --experiments 400 --only drift
    """
    from repro.bench.verdicts.measure import SEED, measure
    from repro.bench.verdicts.outcome import Row, head

    def show(row: Row) -> None:
        if not as_json:
            say(row.text())

    if not as_json:
        say(head(experiments, SEED))
    try:
        found = measure(experiments, only, show, processes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _print(found, as_json)
    if not found.holds:
        raise SystemExit(int(Exit.NOT_REPRODUCED))


def _print(found: Any, as_json: bool) -> None:
    if as_json:
        echo_json(found.model_dump(mode="json"))
    else:
        say(found.text())
