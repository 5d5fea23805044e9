"""`repro report`."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.options import PlaceParam
from repro.cli.terminal import say
from repro.core.registry import BUILT_IN


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|BUNDLE|mlflow:EXPERIMENT...",
                type=PlaceParam(path_type=Path))
@click.option("--to", "targets", default="html", help="Reporters, comma-separated: "
              f"{', '.join(BUILT_IN['reporter'])} (see `repro list reporters`).")
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
    from repro.core import registry
    from repro.core.errors import OutputError
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
