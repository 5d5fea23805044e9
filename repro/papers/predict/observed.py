"""What the scale model takes from a record, and what it must assume: step times, gradients, evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from repro.core.errors import UsageError
from repro.papers.advise.exchange import Exchange, all_reduces_alone, exchange_of, gradient_lines
from repro.papers.advise.pilot import SET_BY_PILOT, families_of, samples_of_worker
from repro.papers.predict.prediction import ScaleLine, Scaling
from repro.record.derive.trial_log import TrialLog
from repro.record.folder.store import Record
from repro.record.log.reading import read_log
from repro.record.log.schema import RankSteps, SystemSample
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.seams.launching import Launcher
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell

BUSY = 0.5
"""Share of the cores in use from which on times wait for cores: only bytes are compared then."""
WORDS = {
    "strong": "strong scaling: the global batch stays that of the record, so that a worker has fewer samples",
    "weak": "weak scaling: a worker keeps its samples, so that the global batch grows with the processes",
}
FOLLOW = {
    "in turn": "one after the other",
    "in pairs": "two at a time, which share its link: this fits the measured steps better than one after the other",
}
LARGE_ERROR = 0.1
"""Relative error of the fitted steps from which on a caution is given."""
WITHHELD_ERROR = 0.5
"""The same, from which on the model predicts nothing."""


def of_record(record: Record, lines: Sequence[ScaleLine], scaling: Scaling) -> tuple[str, ...]:
    """Return what all lines assume."""
    return (
        "all figures are modelled, except the columns called measured or counted; the trials were "
        f"{record.origin_of(record.plan.cells[0])}",
        WORDS[scaling],
        "a step is as long as its slowest worker: the expected maximum of one draw a worker from the step times of the "
        "smallest number of processes; draws are independent, so a disturbance of all workers at once is not modelled",
        "communication: alpha x rounds + beta x bytes on the path of the algorithm's own schedule (Hockney 1994), "
        "fitted for each seed to what steps take beyond that maximum; links within a node and between nodes are apart, "
        "stay as fast with more nodes, nothing else uses them, and no switch is full",
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
            holds = "the model does not hold" if line.fit_error > WITHHELD_ERROR else "predictions may be further off"
            yield f"{line.label}: the fitted steps are up to {100 * line.fit_error:.0f} % off: {holds}"


def of_line(
    trials: Sequence[Observed], fit: Sequence[int], exchange: Exchange, shares: Mapping[int, float], scaling: Scaling,
    way: str, most: int,
) -> Iterator[str]:
    """Yield what one line assumes.

    Args:
        trials: those that were fitted.
        shares: computation by samples of a worker, as measured.
        way: how the messages of a rank follow each other.
        most: largest number of processes predicted.
    """
    hidden = [item.hidden_share for item in trials if item.hidden_share is not None]
    if hidden and max(hidden) > 0.01:
        yield (f"overlap: {100 * min(hidden):.0f} to {100 * max(hidden):.0f} % of communication ran during computation "
               "(counted); only the rest is fitted, and the same is taken to be hidden with more processes")
    else:
        yield "overlap: none was counted and none is assumed" if hidden else "overlap: not counted; none is assumed"
    if way in FOLLOW:
        yield f"messages start as soon as their data are there, those of a rank {FOLLOW[way]}"
    if not exchange.counted:
        yield "bytes were not counted: all gradients are taken to go in one all-reduce"
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


@dataclass(frozen=True, slots=True)
class Observed:
    """One trial."""

    processes: int
    batch: int
    """Global."""
    samples: int
    """Of a worker in a step."""
    repeat: int
    steps: tuple[float, ...]
    """Seconds of every timed step, of the slowest rank, without input."""
    input_seconds: float
    """Mean wait for input of a step."""
    exposed_seconds: float | None
    """Counted: mean time of a step in which training waited for communication, mean over ranks."""
    hidden_share: float | None
    """Counted: share of communication that ran during computation."""
    evaluation_seconds: float
    """Of one evaluation; 0: it has none."""
    samples_to_target: int | None
    seconds_to_target: float | None
    """On the wall clock of training and evaluation."""
    exchange: Exchange | None
    """None: of one process, which sends nothing."""
    sent_bytes: int | None
    """Counted: gradients that the busiest rank sent in a step."""
    nodes: int
    """Nodes that it ran on, in equal blocks of ranks."""
    busy: float | None
    """Mean share of all cores in use during training, this machine's other work included, 0 to 1."""

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step, input included."""
        return mean(self.steps) + self.input_seconds


@dataclass(frozen=True, slots=True)
class Family:
    """Cells that differ only in processes and batch."""

    label: str
    cell: Cell
    """One of them."""
    trials: tuple[Observed, ...]


def families_in(record: Record) -> tuple[list[Family], list[str]]:
    """Return the families of a record that a scale model can be made of, and why others are left out."""
    found, left_out = list[Family](), list[str]()
    for label, each in families_of(record.plan, SET_BY_PILOT).items():
        try:
            found.append(Family(label, each[0], tuple(_trials(record, label, each))))
        except UsageError as error:
            left_out.append(str(error))
    return found, left_out


def _trials(record: Record, label: str, cells: Sequence[Cell]) -> Iterator[Observed]:
    name = label or record.plan.suite.suite
    for cell in cells:
        choices = cell.choices
        if not isinstance(choices, TrainingConfig) or not choices.needs_parts:
            raise UsageError(f"{name}: {cell.label} trains no model here; a scale model needs trainings")
        if not all_reduces_alone(cell):
            raise UsageError(f"{name}: engine {choices.engine.kind} does not send gradients by all-reduce alone; a "
                             "scale model is for engines that do: ddp, and deepspeed of stage 0")
        for item in record.of_cell(cell.cell_id):
            if meaning(item.status).counts and item.samples:
                found = _observed(record, cell, item, name)
                if found.steps:
                    yield found


def _observed(record: Record, cell: Cell, item: Result, name: str) -> Observed:
    choices = cell.training
    log = TrialLog(read_log(record.folder.log(item.trial_id, item.attempt)))
    slowest = [value for block in log.all(RankSteps) for value in block.slowest_seconds]
    taken = max(1, (item.samples or 0) // choices.batch.global_)
    spent = item.traffic.training if item.traffic else None
    evaluations = len(item.curve)
    return Observed(
        processes=choices.processes, batch=choices.batch.global_, samples=samples_of_worker(cell), repeat=item.repeat,
        steps=tuple(slowest[choices.stop.warmup:]), input_seconds=item.input_wait_seconds or 0.0,
        exposed_seconds=spent.exposed_seconds / taken if spent else None,
        hidden_share=spent.overlapped_seconds / spent.busy_seconds if spent and spent.busy_seconds else None,
        evaluation_seconds=item.phases.get("eval", 0.0) / evaluations if evaluations else 0.0,
        samples_to_target=item.samples_to_target, seconds_to_target=item.tta_wall,
        exchange=exchange_of(item, cell, taken, name) if choices.processes > 1 else None, sent_bytes=_sent(item, taken),
        nodes=len(set(item.network.node_of_rank)) if item.network else
        choices.launcher.get(Launcher).nodes_of(choices.ranks),
        busy=_busy(record, item, log),
    )


def _sent(item: Result, steps: int) -> int | None:
    if item.traffic is None:
        return None
    each = [[line.sent_bytes for line in gradient_lines(rank)] for rank in item.traffic.ranks]
    if any(value is None for row in each for value in row) or not any(each):
        return None
    return max(sum(value or 0 for value in row) for row in each) // steps


def _busy(record: Record, item: Result, log: TrialLog) -> float | None:
    """Return the mean use of all cores between start and stop of the timed part; None: it was shorter than a sample."""
    file = record.folder.system_log(item.trial_id, item.attempt)
    if not file.exists() or log.run_start is None or log.run_stop is None:
        return None
    # A sample describes the second before it.
    used = [recorded.event.cpu_utilization_percentage / 100 for recorded in read_log(file)
            if isinstance(recorded.event, SystemSample) and recorded.at_ns is not None
            and log.run_start + 1e9 <= recorded.at_ns <= log.run_stop]
    return mean(used) if used else None
