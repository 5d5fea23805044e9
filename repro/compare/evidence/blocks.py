"""Blocks as they ran: which pairs kept theirs, what ran before each trial, and whether one cell failed more often.

The two trials of a pair share the state of the machine only if they ran next to each other, in an order that was drawn.
A trial that runs again later (`--rerun-failed`, a resumed run) meets another machine, and it is always the later one
of its pair. So such pairs are left out of every figure that a clock is in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from repro.record.folder.execution import Execution
from repro.record.folder.ledger import WASH_OUT, Attempt
from repro.record.result.results import Result
from repro.record.result.status import INTERRUPTED, STARTED, meaning
from repro.stats import holm
from repro.suite.planning.plan import Plan

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a run: unbroken rows of starts of one repeat.

    No other repeat started between them, the run was not resumed between them, and all ran on the same places. In a
    pool they are those of one lane, of one shard.
    """

    lanes: Sequence[Sequence[Result]]
    """The results of each lane, in order of execution; without a pool there is one lane."""
    numbers: Mapping[str, Mapping[int, int]]
    """Cell -> repeat -> number of the block that the trial of the result ran in."""
    before: Mapping[str, Mapping[int, str]]
    """Cell -> repeat -> cell of the start before it; without the first start, and the first after a pause."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Cell -> trials of which a start crashed, hung or vanished."""
    again: frozenset[str] = frozenset()
    """Cells with a failed trial that ran again."""
    crashed: Mapping[str, int] = field(default_factory=dict)
    """Cell -> trials of which a start crashed or hung, and which ran again; one that vanished may have been killed with
    the run."""
    places: Mapping[tuple[str, ...], frozenset[int]] = field(default_factory=dict)
    """Names of the places that trials ran on -> repeats of these trials."""
    pooled: bool = False
    """The places are lanes of a pool, which never divide a pair."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """In a pool: cell -> how often one of its trials ran when its lane was lost."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """In a pool: cell -> time that its trials that count took."""

    def apart(self, candidate: str, baseline: str) -> frozenset[int]:
        """Return the repeats whose two trials did not run in one block."""
        ours, theirs = self.numbers.get(candidate, {}), self.numbers.get(baseline, {})
        return frozenset(repeat for repeat, number in ours.items() if theirs.get(repeat, number) != number)

    @property
    def broken(self) -> frozenset[int]:
        """The repeats whose trials did not all run in one block."""
        found = Counter(repeat for repeat, _ in {(repeat, number) for numbers in self.numbers.values()
                                                 for repeat, number in numbers.items()})
        return frozenset(repeat for repeat, count in found.items() if count > 1)

    def suspects(self) -> dict[str, str]:
        """Return cell -> that lanes were lost while it ran, more often than its share of the time explains (exact
        binomial test, Holm over all cells)."""
        from scipy.stats import binomtest

        losses, whole = sum(self.in_flight.values()), sum(self.seconds.values())
        if not losses or not whole:
            return {}
        cells = [*self.seconds, *(self.in_flight.keys() - self.seconds.keys())]
        ps = holm([1.0 if cell not in self.in_flight else float(binomtest(
            self.in_flight[cell], losses, self.seconds.get(cell, 0.0) / whole, alternative="greater").pvalue)
            for cell in cells])
        return {cell: f"{self.in_flight[cell]} of {losses} lanes were lost while it ran, in "
                      f"{100 * self.seconds.get(cell, 0.0) / whole:.0f} % of the time (binomial p = {p:.2g}); their "
                      "blocks ran again, and which times are left may depend on what takes a lane down"
                for cell, p in zip(cells, ps, strict=True) if p <= ALPHA}

    def selected(self, candidate: str, baseline: str) -> str:
        """Return that one cell failed more often and failed trials ran again, so that failing may have selected the
        times; "" if that is not shown (Fisher's exact test)."""
        from scipy.stats import fisher_exact

        if not self.again & {candidate, baseline}:
            return ""
        failed = [self.failed.get(name, 0) for name in (candidate, baseline)]
        trials = [len(self.numbers.get(name, {})) for name in (candidate, baseline)]
        table = np.array([failed, [n - count for n, count in zip(trials, failed, strict=True)]])
        p = float(fisher_exact(table).pvalue)
        if p > ALPHA:
            return ""
        return (f"{failed[0]} of {trials[0]} trials of the candidate failed and {failed[1]} of {trials[1]} of the "
                f"baseline (Fisher's exact p = {p:.2g}), and failed trials ran again: which times are left may depend "
                "on what made the others fail")


def blocks_of(plan: Plan, results: Sequence[Result], execution: Execution | None = None) -> Blocks:
    """Return the blocks in which the trials of these results ran, by the starts of all trials.

    Starts at the same moment are in the order of the plan; so is everything without the start of some result.
    """
    places = {(plan.cells[index].cell_id, repeat): place for place, (index, repeat) in enumerate(plan.order)}
    known = [item for item in results if (item.cell_id, item.repeat) in places]
    starts = _starts(known, execution or Execution(), places)
    numbers: dict[str, dict[int, int]] = {}
    before: dict[str, dict[int, str]] = {}
    placed = _Places()
    counted = {(item.trial_id, item.attempt): item for item in known}
    number, lanes = -1, list[list[Result]]()
    pauses = sorted(execution.resumed_ms) if execution else []
    for lane in _lanes(starts):
        last, placed.current, ran = None, -1, list[Result]()
        for start in lane:
            # A coordinator that is resumed pauses no lane.
            paused = last is not None and (last.shard != start.shard or (not start.shard and any(
                last.started_ms < moment <= start.started_ms for moment in pauses)))
            moved = placed.take(start.nodes)
            paused |= last is not None and moved  # as good as another time
            number += last is None or paused or last.repeat != start.repeat
            if (result := counted.get((start.trial_id, start.attempt))) is not None:
                ran.append(result)
                if start.nodes:
                    placed.repeats[placed.current].add(start.repeat)
                numbers.setdefault(start.cell_id, {})[start.repeat] = number
                if last is not None and not paused:
                    before.setdefault(start.cell_id, {})[start.repeat] = last.cell_id
            last = start
        if ran:
            lanes.append(ran)
    return Blocks(lanes, numbers, before, *_failures(known, starts),
                  {names: frozenset(repeats) for names, repeats in zip(placed.names, placed.repeats, strict=True)
                   if repeats}, any(item.shard for item in starts), *_losses(counted, starts))


def _losses(
    counted: Mapping[tuple[str, int], Result], starts: Sequence[Attempt]
) -> tuple[dict[str, int], dict[str, float]]:
    """Return cell -> starts that no lane ended, and cell -> seconds of its starts that count, of those in shards."""
    pooled = [item for item in starts if item.shard and item.attempt != WASH_OUT]
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in pooled:
        if (item.trial_id, item.attempt) in counted:
            seconds[item.cell_id] += item.seconds
    return dict(Counter(item.cell_id for item in pooled if item.status in (STARTED, INTERRUPTED))), dict(seconds)


def _lanes(starts: Sequence[Attempt]) -> list[list[Attempt]]:
    """Divide starts by lane: those of all shards that ran on the same places, and those of no shard."""
    places: dict[str, tuple[str, ...]] = {}
    for start in starts:
        places[start.shard] = max(places.get(start.shard, ()), start.nodes, key=len) if start.shard else ()
    found: dict[tuple[str, ...], list[Attempt]] = {}
    for start in starts:
        found.setdefault(places[start.shard] or (start.shard,), []).append(start)
    return list(found.values())


@dataclass(slots=True)
class _Places:
    """The places of starts, in their order. One with fewer ranks may take fewer of the same nodes."""

    names: list[tuple[str, ...]] = field(default_factory=list)
    repeats: list[set[int]] = field(default_factory=list)
    current: int = -1

    def take(self, nodes: tuple[str, ...]) -> bool:
        """Take the next start; return True if it ran on another place than those before it."""
        before = self.current
        if before < 0 or self._differ(self.names[before], nodes):
            self.current = next((place for place, known in enumerate(self.names) if not self._differ(known, nodes)),
                                len(self.names)) if nodes else before
            if self.current == len(self.names):
                self.names.append(nodes)
                self.repeats.append(set())
        if self.current >= 0:
            self.names[self.current] = max(self.names[self.current], nodes, key=len)
        return before not in (-1, self.current)

    @staticmethod
    def _differ(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
        return any(ours != theirs for ours, theirs in zip(one, other, strict=False))


def _starts(
    results: Sequence[Result], execution: Execution, places: Mapping[tuple[str, int], int]
) -> list[Attempt]:
    """Return all starts in order of execution, made up from the plan if the ledger lacks that of a result."""
    listed = {(item.trial_id, item.attempt) for item in execution.attempts}
    if all((item.trial_id, item.attempt) in listed for item in results):
        found = [item for item in execution.attempts if (item.cell_id, item.repeat) in places]
    else:
        found = [Attempt(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=item.attempt,
                         started_ms=0, seconds=0, status=item.status) for item in results]
    return sorted(found, key=lambda item: (item.started_ms, places[item.cell_id, item.repeat], item.attempt))


def _failures(
    results: Sequence[Result], starts: Sequence[Attempt]
) -> tuple[dict[str, int], frozenset[str], dict[str, int]]:
    """Return cell -> trials of which a start failed, the cells in which one ran again, and cell -> trials that ran
    again after a crash or a hang."""
    final = {item.trial_id: item.attempt for item in results}
    starts = [item for item in starts if item.attempt != WASH_OUT]
    failed = {item.trial_id: item.cell_id for item in starts if item.attempt <= final.get(item.trial_id, 0)
              and (meaning(item.status).reruns or (item.status == STARTED and item.attempt < final[item.trial_id]))}
    again = {item.cell_id for item in starts if item.trial_id in failed and item.attempt < final[item.trial_id]}
    crashed = {item.trial_id: item.cell_id for item in starts
               if meaning(item.status).reruns and item.attempt < final.get(item.trial_id, 0)}
    return dict(Counter(failed.values())), frozenset(again), dict(Counter(crashed.values()))
