"""`repro run`, and hidden commands: `track`, which a run starts; `lane` and `probe`, which a pool starts on nodes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from repro.cli.options import (
    DurationParam,
    PlaceParam,
    SuiteParam,
    allow_code_option,
    allow_option,
    answer,
    design_options,
    json_option,
    override_option,
    read_source,
)
from repro.cli.terminal import say
from repro.cli.workflows.starting import planned
from repro.core.errors import UsageError, visible
from repro.core.machine import Machine, detect


@click.command()
@click.argument("suite", type=SuiteParam(), required=False)
@click.argument("scheduler", nargs=-1, type=click.UNPROCESSED, metavar="[-- SBATCH OPTIONS]")
@override_option
@click.option("--launcher", metavar="KIND", help="Short for -o launcher=KIND; KIND may also be '{kind: slurm, nodes: "
              "4}'. Outside a job, slurm submits one.")
@click.option("--pool", metavar="KIND", help="Run blocks of one seed side by side: '{kind: slurm, lanes: 16}' in a job "
              "array, '{kind: agents, lanes: 4}' on computers that join by `repro agent`, gpus on each GPU of this "
              "machine, '{kind: cores, lanes: 2}' on shares of its cores.")
@design_options
@click.option("--resume", type=PlaceParam(path_type=Path), metavar="RUN", help="Resume an interrupted run: run the "
              "missing trials of its own plan.")
@click.option("--rerun-failed", "again", is_flag=True, help="With --resume: also rerun trials that crashed or hung, "
              "each as a new attempt; their pairs then count for metrics without a clock only.")
@click.option("--force", is_flag=True, help="With --resume: resume even if the machine, code or plan have changed; the "
              "report says so.")
@click.option("--budget", type=DurationParam(), metavar="TIME", help="For a sequential run: end at the last look "
              "within this time (90s, 45m, 2h); --resume continues with the next pairs.")
@click.option("--strict", is_flag=True, help="Refuse to start if the machine would distort the figures (busy, too few "
              "cores, little disk or shared memory), and stop if its clock is set.")
@click.option("--energy", is_flag=True, help="Measure energy with CodeCarbon (pip install 'repro-harness[energy]'); "
              "if the machine has no counters, the energy is modelled and labelled so.")
@click.option("--register", type=PlaceParam(dir_okay=False, path_type=Path), metavar="KEY|FILE", help="Sign the plan "
              "before the first trial with an SSH key, or write it into a file that others see: a trial left out later "
              "is missed.")
@click.option("--out", type=PlaceParam(path_type=Path), help="Run folder to create.  [default: runs/SUITE-DATE-TIME]")
@click.option("--mlflow/--no-mlflow", "track", default=True, help="Replay the run to MLflow (MLFLOW_TRACKING_URI, "
              "or a local SQLite store).")
@allow_option
@allow_code_option
@json_option
def run(
    suite: str | None, scheduler: tuple[str, ...], overrides: tuple[str, ...], launcher: str | None,
    pool: str | None, resume: Path | None, again: bool, force: bool, budget: float | None, strict: bool, energy: bool,
    register: Path | None, out: Path | None, track: bool, allowed: tuple[str, ...], code: str | None, as_json: bool,
    **design: Any,
) -> None:
    """Run SUITE, or resume an interrupted run.

    A suite with `tune:` is tuned first, in a separate record, then scored with the best settings.
    A run has a parity gate, timed trials, a replay to MLflow and an HTML report. Every run draws its own order and, if
    the suite states no master seed, its own data.

    \b
    Example: repro run engines --seeds 10 -o batch.global=64
             repro run engines --until-settled --budget 2h
             repro run --resume runs/quickstart-20260101-120000
             repro run engines --launcher '{kind: slurm, nodes: 4}' -- --partition gpu
             repro run --resume runs/mine -- --partition gpu
             repro run engines --pool '{kind: slurm, lanes: 16}' -- --partition cpu
    """
    from repro.cli.text.suite import ended_text
    from repro.cli.workflows.pool import declared_pool, pool_machine, unit_problem, with_solo
    from repro.cli.workflows.run import (
        machines_of_job,
        resume_suite,
        run_phases,
        run_suite,
        submitted,
        submitted_again,
    )
    from repro.cli.workflows.seen_data import refuse_same_data
    from repro.runner.context import Options
    from repro.runner.pool.engines import parse_pool
    from repro.runner.run import dated

    overrides = (*overrides, *([f"launcher={launcher}"] if launcher else []))
    options = Options(force, again, strict, energy, budget, register)
    if resume is not None:
        if suite is not None and suite.startswith("-"):  # the first option after --, as no suite is given
            scheduler, suite = (suite, *scheduler), None
        _refuse_with_resume(suite, out, overrides, register, design)
        if pool is not None:
            raise click.UsageError("--resume RUN keeps the pool of RUN; leave out --pool")
        if job := submitted_again(resume, scheduler, sys.argv[1:]):
            say(job)
            return
        ended = resume_suite(resume, track, options, allowed, code)
    elif suite is None:
        raise click.UsageError("Missing argument 'SUITE' (or --resume RUN).")
    elif force or again or allowed or code:
        raise click.UsageError("--force, --rerun-failed, --allow and --allow-code require --resume RUN")
    else:
        source = read_source(suite, overrides, **design)
        stated = source.suite.master_seed is not None and ("master_seed",) not in source.overrides
        chosen = parse_pool(pool) if pool is not None else None
        if problem := unit_problem(source.suite, chosen):
            raise UsageError(problem)
        if chosen is not None:
            out = out or dated(source.suite.suite)
            machines: tuple[Machine, ...] = (pool_machine(chosen, source.suite, out, scheduler),)
        else:
            machines = machines_of_job(source, scheduler, lambda text: say(text, err=True))
        plan, phases = planned(source, overrides, machines)
        if source.suite.master_seed is not None:
            refuse_same_data(phases.tuning if phases else plan, Path("runs"), stated)
        flags = [flag for flag, given in (("--no-mlflow", not track), ("--strict", strict), ("--energy", energy))
                 if given] + (["--register", str(register.resolve())] if register else [])
        of_lanes = [flag for flag in flags if flag in ("--strict", "--energy")]
        stored = declared_pool(chosen, plan, scheduler, of_lanes) if chosen else None
        plan = with_solo(plan, chosen) if chosen else plan
        if stored is None and (job := submitted(plan, scheduler, sys.argv[1:], out, flags)):
            say(job)
            return
        ended = run_phases(phases, source.text, out, track, options) if phases else \
            run_suite(plan, source.text, out, track, options, pool=stored)
    answer(as_json, ended.as_json(), lambda: ended_text(ended))
    if ended.unwritten:
        say(visible(f"error: {ended.unwritten}"), err=True)
    if ended.warning():
        say(visible(f"warning: {ended.warning()}"), err=True)
    sys.exit(ended.exit_code)


def _refuse_with_resume(
    suite: str | None, out: Path | None, overrides: tuple[str, ...], register: Path | None, design: Mapping[str, Any]
) -> None:
    """Refuse what a run that is resumed has from its own plan."""
    if {suite, out, design["seeds"], design["master_seed"]} != {None} or overrides:
        raise click.UsageError("--resume RUN takes its suite, seeds and folder from RUN; leave out SUITE, -o, --seeds, "
                               "--master-seed and --out")
    if register is not None:
        raise click.UsageError("--register: a plan is registered before its first trial; leave it out")
    if design["until_settled"] or design["anytime"]:
        raise click.UsageError("--resume RUN keeps the design of RUN; leave out --until-settled and --anytime")


@click.command(hidden=True)
@click.argument("run", type=PlaceParam(path_type=Path))
def track(run: Path) -> None:
    """Replay RUN to MLflow on request; the parent process talks to this one over pipes."""
    from repro.runner.tracking_process import serve

    serve(run, sys.stdin, sys.stdout)


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
    from repro.core.files import write_json

    write_json(file, asdict(detect()))
