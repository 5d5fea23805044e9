"""`repro list`, `show`, `plan`, `schema`, `calibrate`, `gate`: what can be run, and checks of it before a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import click

from repro.cli.options import (
    PlaceParam,
    answer,
    design_options,
    echo_json,
    json_option,
    override_option,
    read_source,
    suite_argument,
)
from repro.cli.terminal import say, stdout
from repro.cli.workflows.starting import expand, planned
from repro.core import registry
from repro.core.errors import Exit, ReproError, UsageError, nearest
from repro.suite.file import bundled, read_suite

KINDS = {
    "suites": "", "runs": "", "workloads": "workload", "engines": "engine", "comm": "comm", "precisions": "precision",
    "optimizers": "optimizer", "preconditioners": "preconditioner", "measurements": "measurement",
    "launchers": "launcher", "reporters": "reporter",
}
"""What can be listed -> its seam."""


@click.command("list")
@click.argument("kind", default="suites", type=click.Choice([*KINDS]))
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=PlaceParam(path_type=Path))
@json_option
def list_(kind: str, folders: tuple[Path, ...], as_json: bool) -> None:
    """List the suites, the plug-ins of one KIND, or the runs in each FOLDER (./runs).

    Of a run: its trials, its verdict, its size, and how often its question was asked on this machine.

    \b
    Example: repro list engines
             repro list runs
             repro list runs elsewhere/runs "old/*"
    """
    if folders and kind != "runs":
        raise UsageError(f"{folders[0]}: only the runs of a folder are listed: repro list runs "
                         f"{quote(str(folders[0]))}")
    if kind == "runs":
        from repro.cli.workflows.listing import listed

        runs, where = list(listed(folders)), ", ".join(map(str, folders)) or "./runs"
        answer(as_json, runs, lambda: "\n".join(map(_run_line, runs)) or f"no run in {where} yet: repro run quickstart")
        return
    found = rows(kind)
    if as_json:
        echo_json(found)
        return
    width = max(len(row["name"]) for row in found)
    for row in found:
        expected = f"  [{row['expected']}]" if row.get("expected") else ""
        version = f"{row['version']}  " if row.get("version") else ""
        say(f"{row['name']:<{width}}  {version}{row['title']}{expected}")


def _run_line(row: Mapping[str, Any]) -> str:
    asked = f", asked {row['times_asked']} times" if (row["times_asked"] or 0) > 1 else ""
    counted = f"{row['trials']} of {row['planned']} trials" if row["planned"] is not None else "not readable"
    return f"{row['name']}  {row['started'] or '-'}  {counted}, {row['mib']:,.1f} MiB{asked}: {row['verdict']}"


def rows(kind: str) -> list[dict[str, str]]:
    """Return the name and a one-line title of everything of a kind."""
    if kind == "suites":
        suites = {name: read_suite(name).suite for name in bundled()}
        return [{"name": name, "version": suite.version, "title": suite.title, "expected": suite.expected}
                for name, suite in suites.items()]
    return [{"name": name, "title": _title(KINDS[kind], name)} for name in registry.names(KINDS[kind])]


def _title(seam: str, name: str) -> str:
    try:
        cls = registry.load(seam, name)
    except ReproError as error:
        return f"(not usable: {error})"
    title = getattr(cls, "title", "")
    return str(title or (cls.__doc__ or "").strip().splitlines()[0])


@click.command()
@suite_argument
@override_option
@json_option
def show(suite: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what SUITE compares and why.

    \b
    Example: repro show quickstart
    """
    from repro.cli.text.suite import suite_text

    found = read_source(suite, overrides)
    answer(as_json, found.suite, lambda: suite_text(found.suite, found.sources))


@click.command()
@suite_argument
@override_option
@design_options
@click.option("--pilot", type=PlaceParam(path_type=Path), metavar="RUN|BUNDLE", help="Run with the same cells: also "
              "print how long this plan takes by its trials, the smallest effect that these repeats can show, and the "
              "repeats that the margin requires.")
@click.option("--pool", metavar="KIND", help="Also print rounds, speed-up and cost in a pool, as of `repro run`.")
@json_option
def plan(
    suite: str, overrides: tuple[str, ...], pilot: Path | None, pool: str | None, as_json: bool, **design: Any
) -> None:
    """Show the trials that SUITE runs here.

    Also shows the skipped combinations with the reason, and an estimate of the cost. Trains nothing. The seeds in the
    JSON that `drawn_again_by_run` names are drawn for this call only: `repro run` draws its own.

    \b
    Example: repro plan quickstart -o processes=1,2,4
             repro plan engines --pool '{kind: slurm, lanes: 16}'
    """
    from repro.bundle.source import open_record
    from repro.cli.text.suite import PoolCost, plan_text
    from repro.cli.workflows.pool import unit_problem, with_solo
    from repro.cli.workflows.seen_data import seen_data, seen_words
    from repro.compare.design.power import out_of_reach, power
    from repro.compare.runs.asked import asked_before
    from repro.record.folder import limits
    from repro.record.folder.store import read_record, seconds_by_cell
    from repro.runner.pool.engines import parse_pool
    from repro.runner.preflight import absent_data
    from repro.suite.planning.cost import estimate, over_time_limits
    from repro.suite.planning.question import seen_by

    source = read_source(suite, overrides, **design)
    found, phases = planned(source, overrides)
    drawn = [*(["master_seed"] if source.suite.master_seed is None else []), "order_seed"]
    shown = each = None
    if pilot is not None:
        with open_record(pilot) as root:
            record = read_record(root)
            seen = seen_by(found, record.plan.model_dump(mode="json", by_alias=True))
            if seen == "other target":
                raise UsageError(seen_words(found, str(pilot), seen, stated=True))
            each = seconds_by_cell(record)
            shown = power(found, record).model_copy(update={"pilot": str(pilot)})
    warnings = [f"this plan cannot be run: {why}"] if (why := limits.too_large(found)) else limits.warnings(found)
    warnings += over_time_limits(found)
    if phases is not None and (why := limits.too_large(phases.tuning)):
        warnings.append(f"this plan cannot be run: {why}")
    if source.suite.master_seed is not None and (
            why := seen_data(found, Path("runs"), ("master_seed",) not in source.overrides)):
        warnings.append(f"this plan cannot be run: {why}")
    if asked := asked_before(found):
        warnings.append(f"this would be the {asked}")
    chosen = parse_pool(pool) if pool is not None else None
    if why := unit_problem(source.suite, chosen):
        warnings.append(f"this plan cannot be run so: {why}")
    found = with_solo(found, chosen) if chosen else found
    absent = absent_data(found)
    warnings += [f"this plan cannot be run here: {text}" for text in absent]
    for text in warnings:
        say(f"warning: {text}", err=True)
    cost = estimate(found, each)
    pooled = PoolCost.of(found, chosen, cost) if chosen is not None else None
    if as_json:
        data = found.model_dump(mode="json", by_alias=True) | {"cost": cost.model_dump(mode="json")}
        data |= {"out_of_reach": out_of_reach(found), "drawn_again_by_run": drawn, "absent_data": absent}
        data |= {"tuning": phases.as_json()} if phases else {}
        data |= {"pool": asdict(pooled)} if pooled else {}
        echo_json(data | ({"power": shown.model_dump(mode="json")} if shown is not None else {}))
        return
    say(plan_text(found, cost, out_of_reach(found), drawn, phases))
    if pooled is not None:
        say(pooled.text())
    if shown is not None:
        say(f"\n{shown.text()}")


@click.command()
@click.argument("what", nargs=-1, metavar="[suite | record | COMMAND]")
def schema(what: tuple[str, ...]) -> None:
    """Print the JSON Schema of a suite file, for editors; of the files of a run folder (`record`), by name; or of what
    a command prints with --json.

    \b
    Example: repro schema > suite.schema.json
             repro schema record > record.schema.json
             repro schema compare
    """
    from repro.cli.json_outputs import OUTPUTS, output_schema
    from repro.record.record_schema import record_schema
    from repro.suite.schema import suite_schema

    name = " ".join(what) or "suite"
    if name not in ("suite", "record", *OUTPUTS):
        raise UsageError(f"schema {name}: unknown{nearest(name, ('suite', 'record', *OUTPUTS))}")
    found = suite_schema() if name == "suite" else record_schema() if name == "record" else output_schema(name)
    click.echo(json.dumps(found, indent=1))


@click.command()
@suite_argument
@click.argument("scheduler", nargs=-1, type=click.UNPROCESSED, metavar="[-- SBATCH OPTIONS]")
@override_option
@click.option("--from", "stored", type=PlaceParam(path_type=Path), metavar="RUN|BUNDLE",
              help="Use the twins of a stored calibration, such as an interrupted one, instead of running anything.")
@click.option("--cell", metavar="KEY=VALUE[,...]", help="Cells to run against themselves.  [default: the baseline of "
              "the primary contrast; with --from every cell]")
@click.option("--pairs", type=click.IntRange(min=1), help="Pairs of each comparison, at least 6.  "
              "[default: the suite's repeats]")
@click.option("--nulls", type=click.IntRange(min=1), default=1, help="Comparisons of each cell; more of them make the "
              "rate more precise.")
@click.option("--pool", metavar="KIND", help="Run it in a pool, all lanes at once, as `repro run` does: its rate is "
              "that of records from a pool.")
@click.option("--to", type=PlaceParam(dir_okay=False, path_type=Path), help="File of the calibration.  [default: in "
              "the user's data folder; with --from in the run folder; a bundle requires it]")
@json_option
def calibrate(
    suite: str, scheduler: tuple[str, ...], overrides: tuple[str, ...], stored: Path | None, cell: str | None,
    pairs: int | None, nulls: int, pool: str | None, to: Path | None, as_json: bool,
) -> None:
    """Measure the false-positive rate of SUITE, and look for a bias of the harness.

    Runs cells twice and compares them with themselves. Exit code 3 if too many verdicts are a difference, or one of the
    two is favoured.

    \b
    Example: repro calibrate quickstart --nulls 5
    """
    from repro.cli.workflows import calibrate as calibration
    from repro.cli.workflows.pool import declared_pool, pool_machine
    from repro.compare.cells import read_pattern
    from repro.runner.pool.engines import parse_pool
    from repro.runner.run import dated

    source, chosen = read_source(suite, overrides), parse_pool(pool) if pool is not None else None
    if scheduler and chosen is None:
        raise UsageError(f"{scheduler[0]}: only --pool of kind slurm takes options after --")
    machine = pool_machine(chosen, source.suite, dated(source.suite.suite), scheduler) if chosen else None
    plan, wanted = expand(source, overrides, machine), read_pattern(cell, "--cell") if cell is not None else None
    if stored is not None:
        found = calibration.replay(stored, plan, wanted, pairs, to)
    else:
        click.echo(calibration.reach(plan, wanted, pairs, nulls), err=True)
        lanes = declared_pool(chosen, plan, scheduler, ()) if chosen else None
        if chosen and chosen.solo:
            raise UsageError("--pool: solo: a calibration compares cells with themselves, under the load of all lanes; "
                             "leave solo out")
        found = calibration.calibrate(plan, source.text, wanted, pairs, nulls, to, lanes)
    answer(as_json, found.as_json(), found.text)
    sys.exit(found.exit_code)


@click.command()
@suite_argument
@override_option
@click.option("--only", multiple=True, metavar="CELL", help="Compare only these cells, by label, id or pattern "
              "(engine=ddp,processes=2); may be repeated.")
@click.option("--against", type=PlaceParam(exists=True, dir_okay=False, path_type=Path), metavar="TRACE.zip",
              help="Programs: compare all cells with this stored trace instead of the baseline.")
@click.option("--save", type=PlaceParam(dir_okay=False, path_type=Path), metavar="TRACE.zip",
              help="Programs: store the trace of the baseline, for --against elsewhere or later.")
@json_option
def gate(
    suite: str, overrides: tuple[str, ...], only: tuple[str, ...], against: Path | None, save: Path | None,
    as_json: bool,
) -> None:
    """Run only the parity gate of SUITE, which compares how its cells train.

    Every cell takes the gate's steps and is compared with a plain loop in one process; programs that call
    `watch.trace` are compared with the suite's baseline. Nothing is timed or kept. Exits with 1 if a check fails.

    \b
    Example: repro gate engines --only engine=ddp
             repro gate mine.yaml --save trace.zip
    """
    from repro.cli.text.compare import print_gate
    from repro.cli.workflows.gate import run_gate

    source = read_source(suite, overrides)
    found = run_gate(planned(source, overrides)[0], source.text, only, against, save)
    answer(as_json, found, lambda: print_gate(found, stdout(200)))
    sys.exit(Exit.DONE if all(row["passed"] for row in found) else Exit.TRIAL_FAILED)
