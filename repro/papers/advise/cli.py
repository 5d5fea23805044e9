"""`repro advise`."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.options import (
    FiniteRange,
    PlaceParam,
    SuiteParam,
    echo_json,
    expand,
    json_option,
    override_option,
    read_source,
)


class CountsParam(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """Numbers of workers: 2,4,8."""

    name = "counts"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isascii() and part.strip().isdigit() and 2 <= int(part) <= 4096 for part in parts):
            self.fail(f"{str(value)[:40]!r} are not numbers of workers; write for example 2,4,8 (2 to 4096 each)",
                      param, ctx)
        return tuple(sorted({int(part) for part in parts}))


@click.command()
@click.argument("suite", type=SuiteParam())
@override_option
@click.option("--pilot", type=PlaceParam(path_type=Path), metavar="RUN|BUNDLE", help="Take the advice from this pilot "
              "of the suite.  [default: run one, of 3 seeds]")
@click.option("--out", type=PlaceParam(path_type=Path), help="Run folder of the pilot; -check is appended for "
              "the check.  [default: runs/SUITE-pilot-DATE-TIME]")
@click.option("--workers", type=CountsParam(), default="2,4,8,16,32,64", help="Numbers of workers to predict.")
@click.option("--efficiency", type=FiniteRange(0, 1, min_open=True), default=0.5,
              help="Lowest efficiency (speed-up / workers) that is worth it.")
@click.option("--memory", type=FiniteRange(0, min_open=True), metavar="MIB", help="Memory for one worker.  [default: "
              "what this machine has available; required with a GPU]")
@click.option("--steps", type=click.IntRange(1, 10_000), default=12, help="Timed steps of a trial of pilot and check.")
@click.option("--check", "checked", is_flag=True, help="Run the suite's workers for a few steps, and show predicted "
              "next to measured.")
@json_option
def advise(
    suite: str, overrides: tuple[str, ...], pilot: Path | None, out: Path | None, workers: tuple[int, ...],
    efficiency: float, memory: float | None, steps: int, checked: bool, as_json: bool,
) -> None:
    """Predict from a short pilot how many workers, servers and samples a step SUITE should have.

    The pilot measures one worker with three batches, and two and three workers. Each worker has as many samples in a
    step as in the suite's first cell: twice the workers, twice the batch.

    \b
    Example: repro advise guidelines --workers 2,4,8 --check
             repro advise guidelines --pilot runs/guidelines-pilot-20260101-120000 --json
    """
    from repro.papers.advise.terminal import print_advised
    from repro.papers.advise.workflow import advise_suite

    plan = expand(read_source(suite, overrides), overrides)
    found = advise_suite(plan, pilot, out, workers, efficiency, memory or _available_mib(), steps,
                         checked)
    if as_json:
        echo_json(found.as_json())
    else:
        print_advised(found)


def _available_mib() -> float | None:
    """Memory that a process can have on this machine, MiB; None with a GPU, whose memory has to be stated."""
    import psutil

    from repro.core.machine import detect

    return None if detect().device == "cuda" else float(psutil.virtual_memory().available) / 2**20
