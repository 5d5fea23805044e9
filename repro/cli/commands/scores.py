"""`repro scores`."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.options import FiniteRange, echo_json, json_option
from repro.cli.place import PlaceParam
from repro.suite.metrics import METRICS

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
    from repro.cli.text.scores import print_scored
    from repro.compare.ranking.score_runs import score_runs

    with open_records(runs) as folders:
        found = score_runs(folders, metric, by, baseline, tau_max)
    if as_json:
        echo_json(found.as_json() | {"runs": [str(run) for run in runs]})
    else:
        print_scored(found)
