"""Compare the clock of a program with ours.

An arrival can be late, because output waited in a buffer or this process had to wait, but never early. So a claim of
more time than passed since the program started is impossible; every other comparison needs a tolerance. Of several
statements in one read the last is the freshest, and only those are compared. An arrival that may be late is no finding:
its statement was made between the read before and this one, and its time has these bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from repro.program.observation import Observation

SLACK, RELATIVE = 0.05, 0.02
"""Seconds, and share, by which the own clock may be ahead of ours since the program started."""
LATENESS = 0.25
"""Seconds by which one arrival may be late without meaning: a busy machine keeps this process waiting."""
SLOW, SHORTEST = 0.1, 1.0
"""Share by which the own clock may fall behind ours between steps; shortest stretch that is judged, in seconds."""
ENDS = 3
"""Last statements of a stretch that must all be behind: one late arrival is no slow clock."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement of the clocks; it makes the trial invalid."""

    kind: Literal["ahead", "slow", "impossible time", "unexplained"]
    """ahead: the own clock claims more time than passed. slow: between steps it falls behind ours. impossible time: a
    statement is dated before the start of the program or after it arrived. unexplained: too much of the time is in no
    training that the program states."""
    text: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result of the comparison of the clocks."""

    findings: tuple[Finding, ...]
    share: float | None
    """The own clock's seconds over ours, from its first statement to its last; None without two statements."""
    steps_share: float | None
    """The same over the stretches of steps alone, in which the two must agree; None if there are none to judge."""
    judged_seconds: float
    """Our seconds in these stretches."""
    earliest: Mapping[int, int] = field(default_factory=dict)
    """Index of a start or an evaluation whose arrival may be late -> monotonic nanoseconds before which it was not."""


def compare(
    observations: Sequence[Observation], started_ns: int, least_share: float | None = None,
    longest_delay: float | None = None,
) -> Agreement:
    """Compare the clocks over one run.

    Args:
        started_ns: monotonic nanoseconds just before the program was started.
        least_share: declared least share of the own clock in ours; None: none is declared.
        longest_delay: seconds within which a dated statement must arrive; None: its channel may hold it back.
    """
    clocked = [index for index in _fresh(observations) if observations[index].own_seconds is not None]
    findings = [*_dates(observations, started_ns), *_since_start(observations, started_ns),
                *_ahead(observations, clocked)]
    own_steps = our_steps = 0.0
    for stretch in _stretches(observations, frozenset(clocked)):
        own, ours = _passed(observations, stretch[0], stretch[-1])
        if ours < SHORTEST:
            continue
        own_steps, our_steps = own_steps + own, our_steps + ours
        if all(behind(*_passed(observations, stretch[0], end)) for end in stretch[1:][-ENDS:]):
            findings.append(Finding("slow", (
                f"the program's clock counts {own:.3g} s of the {ours:.3g} s between two steps without an evaluation "
                "between them: it runs slow, or leaves out work that it does not state")))
    share = None
    if len(clocked) > 1:
        own, ours = _passed(observations, clocked[0], clocked[-1])
        share = own / ours if ours > 0 else None
        # The last of the two arrivals may be late, which a program of half a second cannot help.
        if share is not None and least_share is not None and own < least_share * (ours - LATENESS):
            findings.append(Finding("unexplained", (
                f"the program's clock counts {own:.4g} s of {ours:.4g} s ({share:.0%}, declared at least "
                f"{least_share:.0%}); what the rest was, it does not state")))
    return Agreement(tuple(findings), share, own_steps / our_steps if our_steps else None, our_steps,
                     dict(_late(observations, started_ns, longest_delay)))


def behind(own: float, ours: float) -> bool:
    """Return True if the own clock falls behind ours by more than the tolerance."""
    return own < ours * (1 - SLOW) - SLACK


def _passed(observations: Sequence[Observation], first: int, last: int) -> tuple[float, float]:
    """Return the seconds between two observations by the own clock and by ours."""
    a, b = observations[first], observations[last]
    assert a.own_seconds is not None and b.own_seconds is not None
    return b.own_seconds - a.own_seconds, (b.arrived_ns - a.arrived_ns) / 1e9


def _fresh(observations: Sequence[Observation]) -> Iterator[int]:
    """Yield the index of the last observation of each read."""
    for index, seen in enumerate(observations):
        if index + 1 == len(observations) or observations[index + 1].read != seen.read:
            yield index


def _stretches(observations: Sequence[Observation], clocked: frozenset[int]) -> Iterator[list[int]]:
    """Yield the clocked steps of each stretch of steps with nothing but steps between them, at least two."""
    stretch: list[int] = []
    for index, seen in enumerate(observations):
        if seen.seen != "step":
            if len(stretch) > 1:
                yield stretch
            stretch = []
        elif index in clocked:
            stretch.append(index)
    if len(stretch) > 1:
        yield stretch


def _since_start(observations: Sequence[Observation], started_ns: int) -> Iterator[Finding]:
    """Yield the first claim of more training than there was time since the program started."""
    for seen in observations:
        ours = (seen.arrived_ns - started_ns) / 1e9
        if seen.own_seconds is not None and seen.own_seconds > ours * (1 + RELATIVE) + SLACK:
            yield Finding("ahead", (
                f"the program's clock claims {seen.own_seconds:.4g} s of training {ours:.4g} s after the program was "
                "started: impossible"))
            return


def _ahead(observations: Sequence[Observation], clocked: Sequence[int]) -> Iterator[Finding]:
    """Yield the pair of statements between which the own clock claims most beyond ours, if that is too much."""
    worst, pair, lowest = 0.0, None, None
    for index in clocked:
        seen = observations[index]
        assert seen.own_seconds is not None
        excess = seen.own_seconds - seen.arrived_ns / 1e9 * (1 + RELATIVE)
        if lowest is None or excess < lowest[0]:
            lowest = (excess, index)
        elif excess - lowest[0] > worst:
            worst, pair = excess - lowest[0], (lowest[1], index)
    if pair is not None and worst > LATENESS:
        own, ours = _passed(observations, *pair)
        yield Finding("ahead", (
            f"the program's clock claims {own:.4g} s between two statements that arrived {ours:.4g} s apart: it runs "
            "fast, or the first was held back"))


def _dates(observations: Sequence[Observation], started_ns: int) -> Iterator[Finding]:
    """Yield the first statement whose date cannot be."""
    for seen in observations:
        if seen.own_ns is None:
            continue
        after, delay = (seen.own_ns - started_ns) / 1e9, (seen.arrived_ns - seen.own_ns) / 1e9
        if after < -SLACK or delay < -SLACK:
            when = f"{-after:.3g} s before the program was started" if after < 0 else f"{-delay:.3g} s after it arrived"
            yield Finding("impossible time", f"a statement is dated {when}")
            return


def _late(
    observations: Sequence[Observation], started_ns: int, longest_delay: float | None
) -> Iterator[tuple[int, int]]:
    """Yield (index, earliest monotonic nanoseconds) of each start and evaluation whose arrival may be late.

    That is: another evaluation came with it and no clock tells how far apart they were; the own clock of a later
    statement in the same read is later by more than an arrival may be late; it is dated long before; or it was found
    in a file, which is looked at from time to time. A buffer is emptied as a whole, so whatever one read brings was
    printed after the read before; if the statement is dated, not before its date either.
    """
    before = started_ns
    for _, run in groupby(range(len(observations)), key=lambda index: observations[index].read):
        indices = list(run)
        evaluations = [index for index in indices if observations[index].seen == "evaluation"]
        latest = max((own for index in indices if (own := observations[index].own_seconds) is not None), default=0.0)
        clocked = all(observations[index].own_seconds is not None for index in evaluations)
        late = [index for index in evaluations if observations[index].since_ns is not None
                or (len(evaluations) > 1 and not clocked)
                or latest - (observations[index].own_seconds or latest) > LATENESS]
        late += [index for index in indices if index not in late and _is_old(observations[index], longest_delay)]
        trained = [index for index in evaluations if observations[index].step != 0]
        if any(observations[index].seen == "start" for index in indices) and (trained or latest > LATENESS):
            late = [index for index in indices if observations[index].seen in ("start", "evaluation")]
        for index in late:
            seen = observations[index]
            since = seen.since_ns if seen.since_ns is not None and len(indices) == 1 else before
            yield index, min(seen.arrived_ns, max(since, seen.own_ns or 0))
        before = observations[indices[-1]].arrived_ns


def _is_old(seen: Observation, longest_delay: float | None) -> bool:
    """Return True if a dated statement arrived later after its date than its channel explains."""
    return longest_delay is not None and seen.own_ns is not None and seen.seen in ("start", "evaluation") and (
        seen.arrived_ns - seen.own_ns > longest_delay * 1e9)
