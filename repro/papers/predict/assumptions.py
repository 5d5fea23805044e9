"""The assumptions of a scale model as sentences; every one that its output rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro.papers.advise.exchange import Exchange
from repro.papers.predict.observed import Observed
from repro.papers.predict.prediction import ScaleLine, Scaling
from repro.record.folder.store import Record

BUSY = 0.5
"""Share of the cores in use from which on times wait for cores: only bytes are compared then."""
EVERYTHING = "all figures are modelled, except the columns called measured or counted; the trials were {origin}"
WORDS = {
    "strong": "strong scaling: the global batch stays that of the record, so that a worker has fewer samples",
    "weak": "weak scaling: a worker keeps its samples, so that the global batch grows with the processes",
}
LARGE_ERROR = 0.1
"""Relative error of the fitted steps from which on a caution is given."""


def of_record(record: Record, lines: Sequence[ScaleLine], scaling: Scaling) -> tuple[str, ...]:
    """Return what all lines assume."""
    return (
        EVERYTHING.format(origin=record.plan.cells[0].choices.origin),
        WORDS[scaling],
        "a step is as long as its slowest worker: the expected maximum of one draw a worker from the step times of the "
        "smallest number of processes; draws are independent, so a disturbance of all workers at once is not modelled",
        "communication: alpha x rounds + beta x bytes on the path of the algorithm's own schedule (Hockney 1994), "
        "fitted for each seed to what steps take beyond that maximum; links stay as fast with more nodes, nothing else "
        "uses them, and no switch is full",
        "the wait for input is that of the smallest number of processes, the time of an evaluation that of the largest "
        "fitted number that is not larger; checkpoints, logging and starting are left out",
        "the samples to a target depend on the global batch alone",
        "intervals: 95 %, t on logarithms over the seeds; they contain no error of the model itself",
        *_shared(record, lines),
    )


def _shared(record: Record, lines: Sequence[ScaleLine]) -> Iterator[str]:
    most = max((row.processes for line in lines for row in line.rows if row.fitted), default=1)
    if most > record.plan.cores and record.plan.device == "cpu":
        yield (f"up to {most} fitted processes shared {record.plan.cores} cores: what they lost to each other counts "
               "as communication")
    busy = sorted({row.processes for line in lines for row in line.rows if row.busy is not None and row.busy > BUSY})
    if busy:
        yield (f"more than {100 * BUSY:.0f} % of the cores were in use with {', '.join(map(str, busy))} processes: "
               "measured times there wait for cores, so only their bytes are worth comparing")
    for line in lines:
        if line.fit_error > LARGE_ERROR:
            yield f"{line.label}: the fitted steps are up to {100 * line.fit_error:.0f} % off: the model does not hold"


def of_line(
    trials: Sequence[Observed], fit: Sequence[int], exchange: Exchange, shares: Mapping[int, float], scaling: Scaling,
    shared: bool, most: int,
) -> tuple[str, ...]:
    """Return what one line assumes.

    Args:
        trials: those that were fitted.
        shares: computation by samples of a worker, as measured.
        shared: messages of different rounds share links.
        most: largest number of processes predicted.
    """
    return tuple(_of_line(trials, fit, exchange, shares, scaling, shared, most))


def _of_line(
    trials: Sequence[Observed], fit: Sequence[int], exchange: Exchange, shares: Mapping[int, float], scaling: Scaling,
    shared: bool, most: int,
) -> Iterator[str]:
    hidden = [item.hidden_share for item in trials if item.hidden_share is not None]
    if hidden and max(hidden) > 0.01:
        yield (f"overlap: {100 * min(hidden):.0f} to {100 * max(hidden):.0f} % of communication ran during computation "
               "(counted); only the rest is fitted, and the same is taken to be hidden with more processes")
    else:
        yield "overlap: none was counted and none is assumed" if hidden else "overlap: not counted; none is assumed"
    if shared:
        yield ("messages start as soon as their data are there and share the links they meet on: this fits the "
               "measured steps better than rounds, one after the other")
    if not exchange.counted:
        yield "bytes were not counted: all gradients are taken to go in one all-reduce"
    if len([count for count in fit if count > 1]) == 1:
        yield ("one number of processes communicates: latency and rate of the links cannot be separated, so all of it "
               "is taken as bytes")
    if scaling == "strong" and len(shares) < 2:
        yield ("one batch was measured with the smallest number of processes: computation is in proportion to the "
               "samples")
    elif scaling == "strong":
        yield (f"computation of other samples lies on a line fitted to {', '.join(map(str, sorted(shares)))} samples "
               "of the smallest number of processes")
    steps = min(len(item.steps) for item in trials if item.processes == fit[0])
    if most / fit[0] > steps:
        yield (f"beyond {steps * fit[0]} processes the slowest worker is the slowest of the {steps} steps seen: rarer "
               "delays are not in the data")
