"""The `repro` command: parse, call one function, print, exit code. Heavy modules are imported by the command that
needs them, so that `--help` answers at once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import repro
from repro.core.errors import Exit, ReproError, UsageError, one_line
from repro.suite.metrics import METRICS

if TYPE_CHECKING:
    from repro.suite.file import SuiteFile
    from repro.suite.plan import Plan

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}


class Suites(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A bundled suite's name (completed by the shell) or a path."""

    name = "suite"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from repro.suite.file import bundled

        found = [CompletionItem(name) for name in bundled() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


suite_argument = click.argument("suite", type=Suites())
override_option = click.option(
    "-o", "overrides", multiple=True, metavar="KEY=VALUE[,VALUE...]",
    help="Set a field of every trial, or sweep it: -o processes=1,2,4 -o optimizer.lr=0.1",
)
seeds_option = click.option(
    "--seeds", type=click.IntRange(1, 1000), help="Repeats of every cell.  [default: the suite's]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for scripts.")


@click.group(context_settings=CONTEXT)
@click.version_option(repro.__version__, prog_name="repro")
def cli() -> None:
    """Time-to-accuracy benchmarks whose verdicts can be checked and re-run.

    \b
    Example:
      repro run quickstart        compare DDP with DeepSpeed on real data, about a minute on two cores
      repro ui                    look at the same runs in MLflow
    """


@cli.command("list")
@click.argument("kind", default="suites", type=click.Choice(
    ["suites", "workloads", "engines", "comm", "precisions", "optimizers", "launchers", "reporters"]))
@json_option
def list_(kind: str, as_json: bool) -> None:
    """What there is to choose from: KIND is suites, workloads, engines, ...

    \b
    Example: repro list engines
    """
    from repro.cli.listing import rows

    found = rows(kind)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    width = max(len(row["name"]) for row in found)
    for row in found:
        expected = f"  [{row['expected']}]" if row.get("expected") else ""
        click.echo(f"{row['name']:<{width}}  {row['title']}{expected}")


@cli.command()
@suite_argument
@override_option
@json_option
def show(suite: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """What SUITE compares and why.

    \b
    Example: repro show quickstart
    """
    from repro.cli import text as cli_text

    source = _suite(suite, overrides, None)
    click.echo(json.dumps(source.suite.model_dump(mode="json", by_alias=True), indent=1) if as_json
               else cli_text.suite_text(source.suite))


@cli.command("plan")
@suite_argument
@override_option
@seeds_option
@click.option("--pilot", type=click.Path(path_type=Path), metavar="RUN", help="A stored run with the same cells: the "
              "smallest effect that these repeats can show, and how many repeats the margin needs.")
@json_option
def plan_(suite: str, overrides: tuple[str, ...], seeds: int | None, pilot: Path | None, as_json: bool) -> None:
    """The trials SUITE would run here, what is skipped and why, and what it may cost. Trains nothing.

    \b
    Example: repro plan quickstart -o processes=1,2,4
    """
    from repro.cli import text as cli_text
    from repro.compare.power import power
    from repro.record import limits
    from repro.record.store import read_record
    from repro.suite.cost import estimate

    plan = _plan(_suite(suite, overrides, seeds), bool(overrides))
    shown = power(plan, read_record(pilot)) if pilot is not None else None
    refused = [f"cannot be run as it is: {why}"] if (why := limits.too_large(plan)) else limits.warnings(plan)
    for text in refused:
        click.echo(f"warning: {text}", err=True)
    if as_json:
        data = plan.model_dump(mode="json", by_alias=True) | {"cost": estimate(plan).model_dump(mode="json")}
        if shown is not None:
            data["power"] = shown.model_dump(mode="json")
        click.echo(json.dumps(data, indent=1))
        return
    click.echo(cli_text.plan_text(plan, estimate(plan)))
    if shown is not None:
        click.echo(f"\n{shown.text()}")


@cli.command()
@click.argument("suite", type=Suites(), required=False)
@override_option
@seeds_option
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on with a run that was cut short: "
              "run what is missing of its own plan.")
@click.option("--rerun-failed", "again", is_flag=True, help="With --resume: also trials that crashed or hung, as "
              "further attempts.")
@click.option("--force", is_flag=True, help="With --resume: also where machine, code or plan are not what they were; "
              "the report says so.")
@click.option("--strict", is_flag=True, help="Refuse where the machine would spoil the figures (busy, too few cores, "
              "little disk or shared memory), and stop when its clock is set.")
@click.option("--energy", is_flag=True, help="Track energy with CodeCarbon (pip install 'repro-harness[energy]'); "
              "where the machine has no counters it is modelled, and says so.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to make.  [default: runs/SUITE-DATE-TIME]")
@click.option("--mlflow/--no-mlflow", "track", default=True, help="Replay the run to MLflow (MLFLOW_TRACKING_URI, "
              "else a local SQLite store).")
@json_option
def run(
    suite: str | None, overrides: tuple[str, ...], seeds: int | None, resume: Path | None, again: bool, force: bool,
    strict: bool, energy: bool, out: Path | None, track: bool, as_json: bool,
) -> None:
    """Run SUITE: parity gate, timed trials, MLflow, HTML report. Or go on with a RUN.

    \b
    Example: repro run quickstart --seeds 6 -o batch.global=64
             repro run --resume runs/quickstart-20260101-120000
    """
    from repro.cli.run import resume_suite, run_suite

    if resume is not None:
        if suite is not None or overrides or seeds is not None or out is not None:
            raise click.UsageError("--resume RUN has its suite, seeds and folder in RUN; give no SUITE, -o, "
                                   "--seeds, --out")
        ended = resume_suite(resume, track, force, again, strict, energy)
    elif suite is None:
        raise click.UsageError("Missing argument 'SUITE' (or --resume RUN).")
    elif force or again:
        raise click.UsageError("--force and --rerun-failed are for --resume RUN")
    else:
        source = _suite(suite, overrides, seeds)
        plan = _plan(source, bool(overrides))
        ended = run_suite(plan, source.text, out, track, strict, energy)
    click.echo(json.dumps(ended.as_json(), indent=1) if as_json else ended.text())
    if ended.warning():
        click.echo(f"warning: {ended.warning()}", err=True)
    sys.exit(ended.exit_code)


@cli.command()
@click.argument("runs", nargs=-1, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--from-mlflow", "experiment", metavar="EXPERIMENT", help="Instead of RUN: the newest record of an "
              "MLflow experiment, fetched into --out (from MLFLOW_TRACKING_URI).")
@click.option("--to", "targets", default="html", help="Reporters, comma-separated: html, markdown, latex, figures, "
              "csv, parquet, jsonl, mllog, mlflow (see `repro list reporters`).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the files; the page's links to trials "
              "work from the default only. Of several runs: a new folder, which they are copied into.  "
              "[default: RUN/report]")
def report(runs: tuple[Path, ...], experiment: str | None, targets: str, out: Path | None) -> None:
    """Write the report of a run folder again, in any format, or replay it to MLflow.

    Several runs of one suite on one machine become one report, others one section each. With folders of published
    results among RUN...: one page of them, the runs in sections of their own.

    \b
    Example: repro report runs/quickstart-20260101-120000 --to html,markdown,latex
    Example: repro report published/v4.0 runs/quickstart-20260101-120000
    """
    from repro.cli.report import rebuild_and_report, report_runs
    from repro.cli.run import write_published_reports
    from repro.published.comparison.compare import any_published

    if bool(runs) == (experiment is not None):
        raise click.UsageError("name one RUN or more, or --from-mlflow EXPERIMENT")
    asked = targets.split(",")
    if experiment is not None:
        places = rebuild_and_report(experiment, asked, out)
    elif any_published(runs):
        places = write_published_reports(runs, asked, out)
    else:
        places = report_runs(runs, asked, out)
    for place in places:
        click.echo(place)


@cli.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN]", type=click.Path(path_type=Path))
@click.option("--metric", type=click.Choice(list(METRICS)),
              help="What to compare by.  [default: the primary contrast's]")
@click.option("--baseline", metavar="KEY=VALUE[,...]", help="Cells to compare against.  [default: the suite's]")
@click.option("--candidate", metavar="KEY=VALUE[,...]", help="Of published results: the cells to compare.  [default: "
              "all others of the baseline's benchmark and round]")
@click.option("--fail-if", multiple=True, metavar="'NAME OP NUMBER'",
              help="Exit 3 where the primary contrast has this: ratio, low, high, p, speedup, n, probability_less.")
@click.option("--fail-any", is_flag=True, help="Exit 3 where any contrast has it.")
@click.option("--force", is_flag=True, help="Compare runs of different suites or methods all the same.")
@json_option
def compare_(runs: tuple[Path, ...], as_json: bool, candidate: str | None, **asked: Any) -> None:
    """Verdicts over the cells of RUN; of two runs, the second's cells against the first's. RUN may be a folder of
    published results; the two kinds never share a ratio.

    \b
    Example: repro compare runs/old runs/new --fail-any --fail-if "ratio > 1.05"
    Example: repro compare published/v4.0 --baseline benchmark=resnet,system=dgx_h100
    """
    from repro.cli.compare import compare_runs
    from repro.cli.compare_table import print_compared
    from repro.published.comparison import compare as published

    if published.any_published(runs):
        ended = published.compare_published(runs, candidate=candidate, **asked)
        if as_json:
            click.echo(json.dumps(ended.as_json(), indent=1))
        else:
            published.show(ended)
        sys.exit(ended.exit_code)
    if candidate is not None:
        raise UsageError("--candidate is for published results; a run's cells are all compared with their baselines")
    found = compare_runs(runs, **asked)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        print_compared(found)
    sys.exit(found.exit_code)


@cli.command()
@click.argument("source", metavar="RUN|FOLDER|EXPERIMENT")
@click.option("--map", "mapping", type=click.Path(dir_okay=False, path_type=Path), metavar="YAML",
              help="SOURCE is an MLflow experiment (MLFLOW_TRACKING_URI); this file says what its metrics, parameters "
              "and tags mean.")
@json_option
def audit(source: str, mapping: Path | None, as_json: bool) -> None:
    """Which best practices a record keeps: FireCaffe, Hoefler & Belli, MLPerf, NeurIPS, ACM. Exit 3 where a required
    rule fails.

    \b
    Example: repro audit runs/quickstart-20260101-120000
    """
    from repro.audit import command
    from repro.audit.table import print_audit

    found = command.audit(source, mapping)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        print_audit(found)
    sys.exit(found.exit_code)


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  "
              "[default: SUITE-DIGEST.zip]")
@click.option("--license", "licence", default="not stated", metavar="TEXT", help="Under which others may use it (an "
              "address or an SPDX name).")
@json_option
def bundle(run: Path, out: Path | None, licence: str, as_json: bool) -> None:
    """Pack RUN to be sent: hashes of every file, RO-Crate metadata; no credentials, no paths of this machine.

    \b
    Example: repro bundle runs/quickstart-20260101-120000 -o quickstart.zip
    """
    from repro.cli.bundle import make_bundle

    made = make_bundle(run, out, licence)
    if as_json:
        click.echo(json.dumps({"path": str(made.path), "identity": made.identity, "files": made.files,
                               "scrubbed": list(made.scrubbed)}, indent=1))
        return
    if made.scrubbed:
        click.echo(f"credentials or paths were taken out of {len(made.scrubbed)} files: "
                   f"{', '.join(made.scrubbed[:5])}{' ...' if len(made.scrubbed) > 5 else ''}", err=True)
    click.echo(f"{made.path}: {made.files} files, sha256 of the index {made.identity}")


@cli.command()
@click.argument("source", metavar="BUNDLE|RUN", type=click.Path(path_type=Path))
@json_option
def verify(source: Path, as_json: bool) -> None:
    """Is a record whole and what it was: hashes, schemas, every result from its log again, conservation, pairing.

    \b
    Example: repro verify quickstart.zip
    """
    from repro.bundle.verify import text_of
    from repro.cli.bundle import verify as check

    found = check(source)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else text_of(found))
    sys.exit(Exit.DONE if found.sound else Exit.NOT_REPRODUCED)


@cli.command()
@click.argument("first", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("second", metavar="RUN", type=click.Path(path_type=Path))
@json_option
def diff(first: Path, second: Path, as_json: bool) -> None:
    """What differs between two runs or bundles: code, libraries, hardware, settings, hyper-parameters, data.

    \b
    Example: repro diff runs/old runs/new
    """
    from repro.cli.bundle import diff as compare_records

    found = compare_records(first, second)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else found.text())


@cli.command()
@click.argument("source", metavar="BUNDLE|RUN", type=click.Path(path_type=Path))
@click.option("--trials", metavar="N|ID[,ID...]", help="The first N seeds of every cell, or trials by their ids.  "
              "[default: all that have a result]")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to make.  "
              "[default: runs/SUITE-reproduce-DATE-TIME]")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on with a reproduction of this "
              "record that was cut short, and judge it.")
@click.option("--force", is_flag=True, help="Also from a record that was altered; with --resume also where machine or "
              "code are no longer the same.")
@json_option
def reproduce(
    source: Path, trials: str | None, out: Path | None, resume: Path | None, force: bool, as_json: bool
) -> None:
    """Run a record again: reproduced, not reproduced or inconclusive; exit 0 for the first alone, else 3.

    Bit for bit where the suite says `determinism: bitwise`, else the time to the target within the suite's margin.

    \b
    Example: repro reproduce quickstart.zip --trials 6
    """
    from repro.cli.reproduce import reproduce as again

    if resume is not None and (trials or out):
        raise click.UsageError("--resume goes on with what was begun: its folder and its trials stand; leave out "
                               "--trials and --out")
    found = again(source, trials, out, force, resume)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else found.text())
    sys.exit(found.exit_code)


@cli.command()
@suite_argument
@override_option
@click.option("--from", "stored", type=click.Path(path_type=Path), metavar="RUN",
              help="Replay a stored run instead of running anything: its repeats are dealt out to two sides.")
@click.option("--cell", metavar="KEY=VALUE[,...]", help="Cells to run against themselves.  [default: the primary "
              "contrast's baseline; with --from every cell]")
@click.option("--pairs", type=click.IntRange(min=1), help="Pairs of each comparison, 6 at least.  "
              "[default: the suite's repeats]")
@click.option("--nulls", type=click.IntRange(min=1), default=1, help="Comparisons of each cell; more make the rate "
              "more certain.")
@click.option("--keep", is_flag=True, help="Keep the run folder.")
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), help="File of the nulls.  [default: the user's "
              "data folder; with --from beside the run]")
@json_option
def calibrate(
    suite: str, overrides: tuple[str, ...], stored: Path | None, cell: str | None, pairs: int | None, nulls: int,
    keep: bool, to: Path | None, as_json: bool,
) -> None:
    """How often SUITE's verdicts see a difference between a cell and itself: the false-positive rate.

    \b
    Example: repro calibrate quickstart --nulls 5
    """
    from repro.cli import calibrate as cli_calibrate
    from repro.cli.compare import read_pattern

    source = _suite(suite, overrides, None)
    plan, wanted = _plan(source, bool(overrides)), read_pattern(cell, "--cell") if cell is not None else None
    found = cli_calibrate.replay(stored, plan, wanted, pairs, to) if stored is not None else \
        cli_calibrate.calibrate(plan, source.text, wanted, pairs, nulls, keep, to)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else found.text())


@cli.command()
@click.option("--fix", is_flag=True, help="End processes that earlier runs left behind, and with them their networks.")
@json_option
def doctor(fix: bool, as_json: bool) -> None:
    """What this machine has, what is missing, and the command that mends it.

    \b
    Example: repro doctor --fix
    """
    from repro.cli.doctor import end_leftovers, examine

    if fix:
        click.echo(f"processes of earlier runs ended: {len(end_leftovers())}", err=True)
    findings = examine(Path("runs"))
    if as_json:
        click.echo(json.dumps([item.model_dump() for item in findings], indent=1))
    else:
        for item in findings:
            mend = f"\n{'':<9}to mend: {item.mend}" if item.mend else ""
            click.echo(f"{item.state:<8} {item.what}: {item.found}{mend}")
    sys.exit(Exit.TRIAL_FAILED if any(item.state == "missing" for item in findings) else Exit.DONE)


@cli.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on loopback; 0: a free one.")
@click.option("--experiment", help="Open on this experiment (a suite's name).")
def ui(port: int, experiment: str | None) -> None:
    """MLflow's UI on the store in use.

    \b
    Example: repro ui --experiment quickstart
    """
    from repro.cli.ui import open_ui

    open_ui(os.environ.get("MLFLOW_TRACKING_URI"), port=port, experiment=experiment)


@cli.command()
def schema() -> None:
    """JSON Schema of a suite file, for editors.

    \b
    Example: repro schema > suite.schema.json
    """
    from repro.suite.schema import suite_schema

    click.echo(json.dumps(suite_schema(), indent=1))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Shell completion script.

    \b
    Example: eval "$(repro completion bash)"
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "repro", "_REPRO_COMPLETE").source())


@cli.group("import")
def import_() -> None:
    """Results that others published, as records of their own."""


published_argument = click.argument("path", type=click.Path(path_type=Path))
published_out = click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to make.")


@import_.command()
@published_argument
@published_out
@json_option
def mlperf(path: Path, out: Path, as_json: bool) -> None:
    """A results repository of MLPerf, or any part of one: rounds, organisations, systems, single logs.

    \b
    Example: repro import mlperf training_results_v4.0 --out published/v4.0
    """
    _import("mlperf", path, out, as_json)


@import_.command()
@published_argument
@published_out
@json_option
def dawnbench(path: Path, out: Path, as_json: bool) -> None:
    """DAWNBench's training entries: time of the first evaluation at the target.

    \b
    Example: repro import dawnbench dawn-bench-entries --out published/dawnbench
    """
    _import("dawnbench", path, out, as_json)


def _import(program: Literal["mlperf", "dawnbench"], path: Path, out: Path, as_json: bool) -> None:
    from repro.published import command

    published = command.run(program, path, out)
    if as_json:
        click.echo(json.dumps(command.as_json(published), indent=1))
    else:
        command.show(published)


@cli.group()
def bench() -> None:
    """The harness measured against bare alternatives: ratios with intervals."""


@bench.command()
@click.option("--pairs", type=click.IntRange(2, 1000), default=100, help="Interleaved pairs of blocks.")
@click.option("--steps", type=click.IntRange(1, 10_000), default=25, help="Steps in a block.")
@click.option("--processes", type=click.IntRange(1, 8), default=2, help="Ranks.")
@json_option
def overhead(pairs: int, steps: int, processes: int, as_json: bool) -> None:
    """Step time under the harness over a bare hand-written DDP loop's, same work, interleaved.

    \b
    Example: repro bench overhead --pairs 100
    """
    from repro.bench.harness.overhead import measure

    _print_bench(measure(pairs, steps, processes), as_json)


@bench.command()
@click.option("--pairs", type=click.IntRange(2, 200), default=6, help="Interleaved pairs of starts.")
@json_option
def turnaround(pairs: int, as_json: bool) -> None:
    """A 2-rank trial of one step, start to end, over a bare `torchrun` of the same script.

    \b
    Example: repro bench turnaround --pairs 10
    """
    from repro.bench.harness.turnaround import measure

    _print_bench(measure(pairs), as_json)


@bench.command()
@click.option("--rounds", type=click.IntRange(2, 100_000), default=800,
              help="Of one block in each of four arms.")
@click.option("--steps", type=click.IntRange(1, 10_000), default=100, help="Steps in a block.")
@click.option("--processes", type=click.IntRange(1, 8), default=2, help="Ranks.")
@click.option("--delay", type=click.FloatRange(min=0), default=2.0, help="Seconds the slow server takes a request.")
@click.option("--every", type=click.FloatRange(min=0),
              help="Seconds that an arm works between two replays.  [default: as a run]")
@json_option
def tracking(rounds: int, steps: int, processes: int, delay: float, every: float | None, as_json: bool) -> None:
    """Step time with a dead and with a slow tracking server over none, in one training, blocks in turn.

    Ctrl-C ends it early, with the rounds until then.

    \b
    Example: repro bench tracking --rounds 1000
    """
    from repro.bench.harness.tracking import measure

    _print_bench(measure(rounds, steps, processes, delay, every), as_json)


@bench.command()
@click.option("-a", "--algorithm", "algorithms", multiple=True, metavar="NAME",
              help="ring, or '{kind: tree, arity: 4}'; several times.  [default: all, with their defaults]")
@click.option("--sizes", default="1k:64m", help="1k:64m is every power of 4 in between; 4k,1m are those two.")
@click.option("--world", metavar="2,4,8", help="Ranks.  [default: the fabric's nodes, else 2,4]")
@click.option("--fabric", metavar="nodes=8,rate=200mbit", help="An emulated cluster instead of loopback.")
@click.option("--repetitions", type=click.IntRange(2, 1000), default=10, help="Of every algorithm at every size.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=20.0,
              help="At most, of one algorithm at one size; what cannot keep to it is skipped.")
@click.option("--seed", type=click.IntRange(min=0), default=20151102, help="Of the order of execution.")
@click.option("--with-mpi", "mpi", is_flag=True, help="Open MPI's MPI_Allreduce over TCP beside, where installed.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots.")
@click.option("--mlflow", is_flag=True, help="One MLflow run per algorithm and number of ranks.")
@json_option
def comm(html: Path | None, mlflow: bool, as_json: bool, **asked: Any) -> None:
    """All-reduce algorithms against the backend's own and their bounds, interleaved, sums checked.

    \b
    Example: repro bench comm --fabric nodes=8,rate=200mbit --sizes 4k:16m --html comm.html
    """
    from repro.bench.comm.command import read_options, run
    from repro.bench.comm.table import text

    outcome = run(read_options(**asked), html, mlflow)
    click.echo(json.dumps(outcome.as_json(), indent=1) if as_json else text(outcome))


@bench.command("compare")
@click.option("--cells", type=click.IntRange(32, 100_000), default=5000, help="Cells of the largest record.")
@click.option("--seeds", type=click.IntRange(6, 1000), default=20, help="Results of every cell.")
@click.option("--sizes", type=click.IntRange(2, 10), default=4, help="Records, each with half the cells of the next.")
@click.option("--repetitions", type=click.IntRange(1, 100), default=3, help="Of every size; the fastest counts.")
@json_option
def bench_compare(cells: int, seeds: int, sizes: int, repetitions: int, as_json: bool) -> None:
    """Seconds and memory of comparing a record of 100,000 results, and how they grow.

    \b
    Example: repro bench compare --cells 1000
    """
    from repro.bench.harness.compare_scale import measure

    if cells >> (sizes - 1) < 8:
        raise click.UsageError(f"--cells {cells} halved {sizes - 1} times leaves fewer than 8 cells; "
                               "fewer --sizes would do")
    _print_bench(measure(cells, seeds, sizes, repetitions), as_json)


@bench.command("import")
@click.option("--logs", type=click.IntRange(5, 100_000), default=2000, help="Result logs of the round, at least.")
@click.option("--megabytes", type=click.FloatRange(0.1, 10_000), default=400.0, help="Of all logs, 10^6 bytes.")
@click.option("--from", "sample", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Repeat the logs of this round (ORG/results/...).  [default: made-up logs]")
@json_option
def bench_import(logs: int, megabytes: float, sample: Path | None, as_json: bool) -> None:
    """Seconds and memory of importing and reporting a full round of published results, and of opening its page.

    \b
    Example: repro bench import --from training_results_v4.0
    """
    from repro.bench.harness.import_scale import measure

    _print_bench(measure(logs, megabytes, sample), as_json)


def _print_bench(found: Any, as_json: bool) -> None:
    click.echo(json.dumps(found.model_dump(mode="json"), indent=1) if as_json else found.text())


@cli.command(hidden=True)
@click.argument("run", type=click.Path(path_type=Path))
def track(run: Path) -> None:
    """Replay RUN to MLflow on request; the parent talks to this process over its pipes."""
    from repro.runner.tracking_process import serve

    serve(run, sys.stdin, sys.stdout)


def _suite(name: str, overrides: tuple[str, ...], seeds: int | None) -> SuiteFile:
    from repro.suite.file import read_suite

    extra = () if seeds is None else (f"seeds={seeds}",)
    return read_suite(name, (*overrides, *extra))


def _plan(source: SuiteFile, overridden: bool) -> Plan:
    from repro.core.machine import detect
    from repro.suite.plan import make_plan

    return make_plan(source.suite, detect(), source.problem, overridden)


def _shown(error: Exception) -> str:
    """Its message without credentials: libraries like to quote the address that they could not reach."""
    from repro.core.redact import masked

    return one_line(masked(str(error)))


def main() -> None:
    """The command line's border: every failure becomes one line and an exit code."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(Exit.INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(Exit.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except ReproError as error:
        click.echo(f"error: {_shown(error)}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output went away: nothing to tell it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.DONE)
    except Exception as error:  # our own mistake, whatever it is: one line for the user, REPRO_DEBUG=1 for us
        if os.environ.get("REPRO_DEBUG"):
            raise
        click.echo(f"internal error: {type(error).__name__}: {_shown(error)} (REPRO_DEBUG=1 shows where)", err=True)
        sys.exit(Exit.TRIAL_FAILED)
