"""`repro scores`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from repro.cli.options import FiniteRange, PlaceParam, answer, json_option
from repro.suite.metrics import METRICS

if TYPE_CHECKING:
    from repro.scores.runs import Scored

TO_TARGET = [name for name, spec in METRICS.items() if spec.to_target]


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|BUNDLE ...", type=PlaceParam(path_type=Path))
@click.option("--metric", type=click.Choice(TO_TARGET),
              help="Metric of the scores.  [default: that of the primary contrast, else tta_wall]")
@click.option("--by", multiple=True, metavar="FACTOR", help="A factor that names a contender; may be repeated. All "
              "others distinguish workloads.  [default: the factors that vary on one workload]")
@click.option("--baseline", metavar="KEY=VALUE[,...]", help="The contender that the ratios are relative to.  "
              "[default: the suite's baseline]")
@click.option("--tau-max", type=FiniteRange(1, min_open=True), default=4.0,
              help="End of the area under a profile, as a factor of the best time.")
@json_option
def scores(
    runs: tuple[Path, ...], metric: str | None, by: tuple[str, ...], baseline: str | None, tau_max: float, as_json: bool
) -> None:
    """Score contenders over several workloads: performance profiles and geometric means, with bands over seeds.

    A contender's time on a workload is the median over its seeds. If at most half of the seeds reach the target of a
    workload, its time counts as infinite, and the contender has no geometric mean.

    Runs of one experiment count as one; runs of other suites add their workloads, if made on the same machine.

    \b
    Example: repro scores runs/optimizers --by optimizer
    Example: repro scores runs/digits runs/text --by optimizer.kind --metric samples
    """
    from repro.bundle.source import open_records
    from repro.scores.runs import score_runs

    with open_records(runs) as folders:
        found = score_runs(folders, metric, by, baseline, tau_max)
    answer(as_json, found.model_copy(update={"runs": tuple(map(str, runs))}), lambda: print_scored(found))


def print_scored(scored: Scored) -> None:
    """Print medians, scores and what they rest on."""
    from repro.cli.terminal import stdout
    from repro.cli.text.compare import print_table
    from repro.scores.score_tables import score_table, score_time_table

    console, found = stdout(200), scored.scores
    console.lines(
        *(f"{of.suite}, digest {of.suite_digest[:16]}, method {of.method}: {METRICS[found.metric].noun}"
          for of in scored.suites),
        f"{len(found.workloads)} workloads, {len(found.contenders)} contenders by {', '.join(found.by)}; ratios to "
        f"{found.reference}; {' and '.join(found.origins)} on {scored.machine}")
    print_table(score_time_table(found, digits=4), console)
    print_table(score_table(found).without(("Withheld",)), console)
    console.lines(*(f"withheld: {item.name}: {item.withheld}" for item in found.contenders if item.withheld),
                  *(f"left out: {name}: {reason}" for name, reason in found.left_out),
                  *(f"caution: {text}" for text in found.cautions),
                  *(f"note: {text}" for text in (*found.notes, *scored.notes)))
