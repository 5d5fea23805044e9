"""`repro compare`, `audit` and `report`: what records show."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

from repro.cli.options import PlaceParam, answer, json_option
from repro.cli.terminal import say
from repro.core import registry
from repro.core.errors import OutputError, UsageError
from repro.suite.metrics import METRICS


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|BUNDLE ...", type=PlaceParam(path_type=Path))
@click.option("--metric", type=click.Choice(list(METRICS)),
              help="Metric to compare.  [default: that of the primary contrast]")
@click.option("--baseline", metavar="KEY=VALUE[,...]", help="Cells to compare against.  [default: the suite's]")
@click.option("--candidate", metavar="KEY=VALUE[,...]", help="With --baseline: a cell to compare with it; what "
              "the suite does not declare is exploratory. Of published results: [default: all others of the baseline's "
              "benchmark and round]")
@click.option("--against", multiple=True, metavar="RUN", type=PlaceParam(path_type=Path),
              help="A run of the baseline; may be repeated. Each RUN is then a run of the candidate, and the test "
              "compares runs, not trials.")
@click.option("--fail-if", multiple=True, metavar="CONDITION",
              help="Exit 3 if the condition holds for the primary contrast: a verdict (slower, faster, higher, lower, "
              "different, same; not-same: all others), or NAME OP NUMBER with ratio.low, ratio.high, speedup.low, "
              "speedup.high, n.")
@click.option("--fail-any", is_flag=True, help="Exit 3 if the condition holds for any contrast; all form one family.")
@click.option("--markdown", metavar="FILE", type=PlaceParam(path_type=Path, file_okay=True),
              help="Also write a short comment in Markdown: verdict, table, cautions; without paths of this machine.")
@click.option("--force", is_flag=True, help="Compare runs even if their suites or methods differ.")
@json_option
def compare(
    runs: tuple[Path, ...], as_json: bool, candidate: str | None, markdown: Path | None, **request: Any
) -> None:
    """Compare the cells of one run or of two, or combine three or more records of one suite.

    Of two runs, the cells of the second are compared with the same cells of the first.

    Times and memory of two runs get no verdict: a machine 1 % slower in one of them looks like a difference. Several
    runs of each, made in turns (ABBA ABBA), do: name those of the baseline with --against.

    Three or more RUNs of one suite, each with its own seeds, give the mean ratio over runs (random effects), without a
    verdict.

    RUN may be a bundle, or a folder of published results. A ratio never mixes runs and published results.

    \b
    Example: repro compare runs/latest --fail-if slower
    Example: repro compare runs/latest --fail-if slower --markdown comment.md
    Example: repro compare runs/latest --fail-any --fail-if "ratio.low > 1.05"
    Example: repro compare published/v4.0 --baseline benchmark=resnet,system=dgx_h100
    """
    from repro.bundle.source import expanded, is_bundle, open_records

    if registry.part("published", "found")(runs):
        if request.pop("against"):
            raise UsageError("--against takes runs, not published results")
        if markdown is not None:
            raise UsageError("--markdown takes runs; of published results: repro report FOLDER --to markdown")
        with open_records(runs) as folders:
            registry.part("published", "compare")(folders, as_json, candidate, request)
    from repro.cli.text.compare import print_compared
    from repro.compare.runs.runs import compare_runs
    from repro.compare.runs.together import independent, together
    from repro.compare.two_cells import compare_two

    against = expanded(request.pop("against"))
    named = (*against, *expanded(runs))
    with open_records(named) as folders:
        before = len(against)
        if candidate is None and not before and independent(folders):
            if request["fail_if"] or request["baseline"] or markdown is not None:
                raise UsageError("several records together have no verdict, so no --fail-if, --baseline or "
                                 "--markdown; with --against they are runs of one side")
            combined = together(folders, request["metric"])
            answer(as_json, combined.as_json(), combined.text, "compare together")
            return
        if candidate is None:
            found = compare_runs(folders[before:], against=folders[:before], **request)
        elif len(named) > 1 or request["baseline"] is None:
            raise UsageError("--candidate names a cell of one run, and --baseline the cell that it is compared with")
        else:
            found = compare_two(folders[0], candidate, request["baseline"], request["metric"], request["fail_if"])
    derived = [f"{place}: its figures are those that it states; repro verify {quote(str(place))} derives them from its "
               "logs again" for place in named if is_bundle(place)]
    found = replace(found, runs=tuple(map(str, named)), notes=(*found.notes, *derived))
    if markdown is not None:
        from repro.cli.text.compare import comment
        from repro.core.files import write_text

        write_text(markdown, comment(found, request["fail_if"]))
    answer(as_json, found.as_json(), lambda: print_compared(found))
    sys.exit(found.exit_code)


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
    from repro.cli.text.compare import print_audit

    found = audit_source(source, mapping)
    answer(as_json, found, lambda: print_audit(found))
    sys.exit(found.exit_code)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|BUNDLE|mlflow:EXPERIMENT...",
                type=PlaceParam(path_type=Path))
@click.option("--to", "targets", default="html", help="Reporters, comma-separated: "
              f"{', '.join(registry.BUILT_IN['reporter'])} (see `repro list reporters`).")
@click.option("--out", type=PlaceParam(path_type=Path), help="Folder for the files; the links of the page to trials "
              "work only from the default. For several runs: a new folder into which they are copied.  "
              "[default: RUN/report; for a bundle, which is never changed, BUNDLE-report in the working directory]")
@click.option("--only", type=click.Choice(["primary"]), help="Write only what belongs to the declared primary contrast "
              "(latex).")
@click.option("--prefix", metavar="LETTERS", default="", help="Letters that start the names of macros, labels and "
              "figures, for a paper with several runs (latex).")
def report(runs: tuple[Path, ...], targets: str, out: Path | None, only: str | None, prefix: str) -> None:
    """Write the report of a run again.

    Writes any format, or replays the run to MLflow.

    A RUN may be a bundle or an MLflow experiment (the newest record in it): the report is written to NAME-report in the
    working directory.

    Several runs of one suite on one machine become one report; other runs get one section each. If a RUN is a folder of
    published results, one page shows all of them, with the runs in separate sections.

    \b
    Example: repro report runs/quickstart-20260101-120000 --to html,markdown,latex
    Example: repro report published/v4.0 runs/quickstart-20260101-120000
    """
    from repro.bundle.source import expanded, open_records
    from repro.bundle.verify import unsound
    from repro.cli.workflows.report import report_place, report_runs
    from repro.reporting import reporters

    names, runs = targets.split(","), tuple(expanded(runs))
    if only:
        for whole in (name for name, item in reporters(names).items() if not item.narrows):
            say(f"--only {only} does not apply to {whole}: it is written in full", err=True)
    folder = out or report_place(runs)
    with open_records(runs) as folders:
        changed = [text for place, opened in zip(runs, folders, strict=True) if (text := unsound(place, opened))]
        if changed and len(runs) > 1:
            raise OutputError(f"{changed[0]}; report it alone, which the page then says")
        for text in changed:
            say(f"warning: {text}", err=True)
        if registry.part("published", "found")(runs):
            if only:
                raise click.UsageError("--only applies to runs; published results declare no contrast")
            if prefix:
                raise click.UsageError("--prefix applies to runs; published results have no macros")
            places = registry.part("published", "report")(folders, names, folder)
        else:
            places = report_runs(folders, names, folder, only, prefix, "; ".join(changed))
    for place in places:
        say(place)
