"""`repro advise`: the command and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from repro.cli.options import (
    FiniteRange,
    PlaceParam,
    SuiteParam,
    echo_json,
    json_option,
    override_option,
    read_source,
)
from repro.cli.terminal import Console, line, stdout, table_of
from repro.cli.workflows.starting import expand

if TYPE_CHECKING:
    from repro.papers.advise.exchange import Estimated
    from repro.papers.advise.predict import Advice, FamilyAdvice
    from repro.papers.advise.workflow import Advised, CheckRow


FORMULAS = (
    "a step of G workers: T + alpha x rounds + beta x bytes of the algorithm's schedule, nothing hidden (Hockney 1994)",
    "speed-up: G T / that; worth it: the most workers whose speed-up is at least the requested share of G",
    "one server: efficiency (1 + R) / (1 + G R) with R = 2 S beta / T (Zou et al. 2017)",
    "shards: ceil(2 S G beta / T) (Zou et al. 2017); with room: ceil(S G beta / (0.6 (T + 2 S beta))), links "
    "in both directions at most 60 % full",
)


def print_advised(found: Advised) -> None:
    """Print what was measured, what follows and how, and the check."""
    console = stdout(160)
    advice = found.advice
    console.lines(
        f"pilot: {advice.pilot} ({advice.origin}); all predictions are modelled:", *(f"  {text}" for text in FORMULAS),
        *(f"caution: {text}" for text in advice.cautions), *(f"left out: {text}" for text in advice.left_out))
    for item in advice.families:
        _print_family(item, advice, console)
    if found.checked:
        console.lines("")
        console.print(_check(found.checked))
        known = [abs(row.ratio - 1) for row in found.checked if row.ratio is not None]
        if known:
            console.lines(f"largest difference {100 * max(known):.3g} % of {len(known)} predictions; run: "
                          f"{found.check}")


def _print_family(item: FamilyAdvice, advice: Advice, console: Console) -> None:
    assumed = "" if item.counted else "assumed: "
    rate = f"{8e-6 / item.beta:.4g} Mbit/s" if item.beta else "no cost of bytes seen"
    console.lines("")
    if item.family:
        console.print(line(item.family, style="bold"), soft_wrap=True)
    console.lines(
        f"measured: a step of one worker {item.step_seconds:.4g} s for {item.samples} samples (input "
        f"{item.input_seconds:.2g} s); {assumed}{item.gradient_bytes:,} bytes of gradient in {item.all_reduces} "
        f"all-reduce{'s' if item.all_reduces > 1 else ''} ({item.algorithm}); fitted to two and three workers: alpha "
        f"{1e6 * item.alpha:.3g} us, {rate}, within {100 * item.fit_error:.2g} %")
    table = table_of(("workers", True), ("step, s", True), ("speed-up", True), ("95 % interval", True),
                     ("efficiency", True), ("one server", True), ("shards", True), ("with room", True))
    for row in item.workers:
        table.add_row(*map(line, (
            str(row.workers), f"{row.step_seconds:.4g}", f"{row.speed_up.value:.3g}", _ends(row.speed_up),
            f"{100 * row.efficiency:.0f} %", _known(row.one_server, percent=True), _known(row.shards_by_lemma),
            _known(row.shards_with_room))), style="bold" if row.workers == item.worth else "")
    console.print(table)
    console.lines(
        f"worth it: {item.worth} worker{'s' if item.worth > 1 else ''} at an efficiency of at least "
        f"{100 * advice.efficiency:.0f} %",
        "batch of a worker: " + "; ".join(
            f"{row.batch}: {row.samples_per_second:.4g} samples/s"
            + (f", {row.peak_mib:.4g} MiB" if row.peak_mib else "") for row in item.batches))
    if item.convolutions:
        console.lines("convolutions: " + "; ".join(
            f"{row.options or 'as they are'}: {row.step_seconds:.4g} s"
            + (f", {row.peak_mib:.4g} MiB" if row.peak_mib else "") + ("" if row.fits else ", does not fit")
            + (" (the fastest that fits)" if row.chosen else "") for row in item.convolutions))
    gains = "; ".join(f"of {row.batch} {row.gain.value:.3g} x ({_ends(row.gain)})" for row in item.doublings)
    pays = f"a larger one pays up to {item.stops_paying}" if item.stops_paying else \
        f"whether it gains 10 % at {item.unsettled} is open: pilot again with more --steps" if item.unsettled else \
        f"a larger one still pays at {item.batches[-1].batch}"
    console.lines(f"samples/s by a doubling {gains}: {pays}; {_fitting(item)}")


def _fitting(item: FamilyAdvice) -> str:
    if item.available_mib is None:
        return "what fits is not known"
    if item.largest_batch is None:
        return "memory does not grow measurably"
    fits = "all training samples fit" if item.largest_batch >= item.train_samples else f"{item.largest_batch} fit"
    return f"{fits} into {item.available_mib:,.0f} MiB (linear, modelled)"


def _check(rows: tuple[CheckRow, ...]) -> Table:
    table = table_of(("family", False), ("workers", True), ("predicted", True), ("95 % interval", True),
                     ("measured", True), ("95 % interval", True), ("predicted / measured", True))
    for row in rows:
        measured = row.measured
        table.add_row(*map(line, (
            row.family, str(row.workers), f"{row.predicted.value:.3g}", _ends(row.predicted),
            f"{measured.value:.3g}" if measured else row.why, _ends(measured) if measured else "",
            f"{row.ratio:.3f}" if row.ratio else "")))
    return table


def _ends(item: Estimated) -> str:
    return "" if item.low is None or item.high is None else f"{item.low:.3g} to {item.high:.3g}"


def _known(value: float | None, percent: bool = False) -> str:
    return "-" if value is None else f"{100 * value:.0f} %" if percent else str(value)


class CountsParam(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """Numbers of processes or workers: 2,4,8."""

    name = "counts"

    def __init__(self, noun: str, example: str, least: int, most: int) -> None:
        self.noun, self.example, self.least, self.most = noun, example, least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) <= 5 and self.least <= int(part) <= self.most
                   for part in parts):
            self.fail(f"{str(value)[:40]!r} are not numbers of {self.noun}; write for example {self.example} "
                      f"({self.least} to {self.most} each)", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


@click.command()
@click.argument("suite", type=SuiteParam())
@override_option
@click.option("--pilot", type=PlaceParam(path_type=Path), metavar="RUN|BUNDLE", help="Take the advice from this pilot "
              "of the suite.  [default: run one, of 3 seeds]")
@click.option("--out", type=PlaceParam(path_type=Path), help="Run folder of the pilot; -check is appended for "
              "the check.  [default: runs/SUITE-pilot-DATE-TIME]")
@click.option("--workers", type=CountsParam("workers", "2,4,8", 2, 4096), default="2,4,8,16,32,64",
              help="Numbers of workers to predict.")
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
    from repro.papers.advise.workflow import advise_suite

    plan = expand(read_source(suite, overrides), overrides)
    found = advise_suite(plan, pilot, out, workers, efficiency, memory or _available_mib(), steps,
                         checked)
    if as_json:
        echo_json(found)
    else:
        print_advised(found)


def _available_mib() -> float | None:
    """Memory that a process can have on this machine, MiB; None with a GPU, whose memory has to be stated."""
    import psutil

    from repro.core.devices import on_gpu
    from repro.core.machine import detect

    return None if on_gpu(detect().device) else float(psutil.virtual_memory().available) / 2**20
