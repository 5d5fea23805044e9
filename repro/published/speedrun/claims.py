"""The claims of every record, judged by its own logs: quality against the target, time against every baseline arm.

Times of two arms of one record are compared by Welch's test on their logarithms, under Holm over all such contrasts of
the import; only arms whose logs name one and the same machine get a verdict. An arm of a record without a baseline is
put next to the previous record, by a number and never with a verdict: it ran elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import Field

from repro.compare.design.standing import figures_in_words
from repro.compare.figures import ClaimVerdict
from repro.compare.verdict.family import ALPHA
from repro.core.frozen import Frozen
from repro.published.contest_rules import Contest, StatedMean
from repro.published.record import PublishedCell, PublishedResult
from repro.published.speedrun.place import agrees, is_baseline
from repro.published.store import Published
from repro.stats import holm, mean_interval, or_none, quality_claim, tost_welch, welch_p, welch_ratio
from repro.stats.sample import finite, mean
from repro.suite.design import LEAST_REPEATS


class ArmQuality(Frozen):
    """The claim and its figures, over all runs of an arm."""

    verdict: ClaimVerdict
    because: str
    n: int
    """Runs with a loss and a time at the end."""
    target: float
    mean: float | None = None
    deviation: float | None = None
    p: float | None = None
    """One-sided; None: not tested."""
    interval: tuple[float, float] | None = None
    """95 % interval of the mean loss."""


def final_loss(item: PublishedResult) -> float | None:
    """Return the loss at the end of a complete run."""
    return item.curve[-1].value if item.status == "ok" and item.curve else None


def judge_quality(results: Sequence[PublishedResult], refused: int, target: float, alpha: float) -> ArmQuality:
    """Test the claim; a run without a final loss forbids it, because leaving it out could make the claim true.

    Args:
        refused: logs of the arm that are no result: cut, unreadable, without an evaluation.
    """
    losses = [value for item in results if (value := final_loss(item)) is not None]
    missed = sum(item.status == "missed" for item in results)
    invalid = sum(item.status == "invalid" for item in results)
    total = len(results) + refused
    verdict: ClaimVerdict = "cannot be tested"
    claim = spread = None
    if missed:
        verdict = "not supported"
        because = f"{missed} of {total} runs ended without a finite loss, so there is no mean over all runs"
    elif refused or invalid:  # p of the runs that are left would be taken for that of all
        parts = [f"{refused} refused"] * bool(refused) + [f"{invalid} with an impossible clock"] * bool(invalid)
        because = (f"{refused + invalid} of {total} logs give no result ({', '.join(parts)}), and the claim is about "
                   "all of them")
    elif len(losses) < 2:
        because = f"{'one run' if losses else 'no run'}: a t test needs at least two"
    elif (claim := or_none(lambda: quality_claim(losses, target, "lower", alpha))) is None:
        because = f"all {len(losses)} losses are equal: a t test needs values that differ"
    else:
        spread = mean_interval(losses)
        verdict, because = figures_in_words(claim, target, "lower", alpha)
    return ArmQuality(
        verdict=verdict, because=because, n=len(losses), target=target, mean=mean(finite(losses)) if losses else None,
        deviation=claim.deviation if claim else None, p=claim.p if claim else None,
        interval=(spread.low, spread.high) if spread else None)


TimeVerdict = Literal["faster", "slower", "the same", "not decided", "another machine", "no comparison"]


class TimeClaim(Frozen):
    """The time of one arm against another."""

    verdict: TimeVerdict
    because: str
    against: str = ""
    """Cell of the other arm; empty: none."""
    ratio: float | None = None
    """Geometric mean time of this arm / of the other."""
    interval: tuple[float, float] | None = None
    """95 % interval by Welch's method on logs; None: another machine, or too few runs."""
    p: float | None = None
    p_adjusted: float | None = None
    """By Holm over all contrasts within records."""
    cautions: tuple[str, ...] = ()


class ArmClaim(Frozen):
    """One arm with its claims."""

    cell_id: str
    record: str
    arm: str
    benchmark: str
    date: str | None
    accelerators: str | None
    baseline: bool
    runs: int
    """All logs of the arm that count, also refused ones."""
    quality: ArmQuality
    seconds: float | None
    """Arithmetic mean of the program's own clock at the end."""
    seconds_interval: tuple[float, float] | None
    times: tuple[TimeClaim, ...] = Field(min_length=1)
    """Against each baseline of its record, that of equal steps first; one without a baseline if it has none."""

    @property
    def time(self) -> TimeClaim:
        """The first of them."""
        return self.times[0]


class StatedClaim(Frozen):
    """A stated mean that no arm of its record gives."""

    stated: StatedMean
    because: str


@dataclass(frozen=True, slots=True)
class Claims:
    """Everything that an import of a contest says."""

    arms: tuple[ArmClaim, ...]
    """By track, date, record and arm."""
    stated: tuple[StatedClaim, ...]
    rules: Contest

    @property
    def tracks(self) -> dict[str, list[ArmClaim]]:
        """The arms of each track."""
        found: dict[str, list[ArmClaim]] = {}
        for item in self.arms:
            found.setdefault(item.benchmark, []).append(item)
        return found


@dataclass(frozen=True, slots=True)
class _Arm:
    cell: PublishedCell
    runs: tuple[PublishedResult, ...]
    quality: ArmQuality

    @property
    def name(self) -> str:
        return self.cell.factors["system"]

    @property
    def baseline(self) -> bool:
        return is_baseline(self.name.partition(" [")[0])

    @property
    def date(self) -> str:
        return self.cell.factors.get("date", "")

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.cell.factors["benchmark"], self.date, self.cell.factors["round"], self.name

    @property
    def times(self) -> list[float]:
        return [item.seconds for item in self.runs if item.seconds is not None]

    def stated(self, name: str) -> list[str]:
        """Return the different values of a setting over the runs; `""` where a log does not state it."""
        return sorted({str(item.hyperparameters.get(name, "")) for item in self.runs})


Pair = tuple[str, str]
"""Cells of an arm and of a baseline."""


def judge_claims(published: Published) -> Claims:
    """Judge every arm of an import of a contest; the same import gives the same claims."""
    rules = published.record.contest or Contest()
    arms = _arms(published, rules)
    records: dict[str, list[_Arm]] = {}
    for arm in arms:
        records.setdefault(arm.cell.factors["round"], []).append(arm)
    decided = _decided({(arm.cell.cell_id, other.cell.cell_id): (arm, other) for arm in arms
                        for other in _baselines_of(arm, records[arm.cell.factors["round"]])}, rules.margin)
    found = []
    for arm in arms:
        times = [time for (ours, _), time in decided.items() if ours == arm.cell.cell_id]
        spread = or_none(partial(mean_interval, arm.times))
        found.append(ArmClaim(
            cell_id=arm.cell.cell_id, record=arm.cell.factors["round"], arm=arm.name,
            benchmark=arm.cell.factors["benchmark"], date=arm.date or None,
            accelerators=" x ".join(text for name in ("accelerators", "accelerator")
                                    if (text := arm.cell.factors.get(name))) or None,
            baseline=arm.baseline, runs=len(arm.runs) + arm.cell.refused, quality=arm.quality,
            seconds=math.fsum(arm.times) / len(arm.times) if arm.times else None,
            seconds_interval=(spread.low, spread.high) if spread else None,
            times=tuple(_with_quality(time, arm.quality)
                        for time in times or [_without_baseline(arm, arms, records)])))
    return Claims(tuple(found), tuple(_unstated(rules.stated, records)), rules)


def claim_tracks(published: Published) -> dict[str, list[ArmClaim]]:
    """Return the judged arms of each track; {} for an import that is no contest."""
    return {} if published.record.contest is None else judge_claims(published).tracks


def _arms(published: Published, rules: Contest) -> list[_Arm]:
    found, runs = [], published.by_cell()
    for cell in published.record.cells:
        own = runs[cell.cell_id]
        quality = judge_quality(own, cell.refused, float(cell.factors["target"]), rules.alpha)
        if not own and not cell.refused:
            quality = quality.model_copy(update={"because": cell.score.reason})
        found.append(_Arm(cell, own, quality))
    return sorted(found, key=lambda arm: arm.key)


def _baselines_of(arm: _Arm, record: Sequence[_Arm]) -> list[_Arm]:
    """Return the baselines of an arm's record that have times, those of equal steps first; [] if it is one itself.

    Where the record has baselines on the arm's number and kind of accelerators, those on others are left out.
    """
    if arm.baseline or not arm.times:
        return []
    found = [other for other in record if other.baseline and other.times]
    alike = [other for other in found
             if other.cell.factors.get("accelerators") == arm.cell.factors.get("accelerators")]
    return sorted(alike or found, key=lambda other: (other.stated("steps") != arm.stated("steps"), other.name))


def _contrast(arm: _Arm, other: _Arm) -> TimeClaim:
    """Return the figures of an arm and a baseline of its record; `because` is empty if a verdict is possible."""
    cautions = tuple(_cautions(arm, other))
    if lost := _lost(arm) or _lost(other):  # the figures of the runs that are left would be taken for those of all
        return TimeClaim(verdict="not decided", because=lost, against=other.cell.cell_id, cautions=cautions)
    ours, theirs = arm.times, other.times
    found, p = or_none(lambda: welch_ratio(ours, theirs)), or_none(lambda: welch_p(ours, theirs))
    refusal = _refusal(arm, other)
    if not refusal and p is None:
        refusal = "the times of each arm are all equal: without a spread nothing can be tested"
    return TimeClaim(
        verdict="not decided", because=refusal, against=other.cell.cell_id, ratio=_ratio(ours, theirs),
        interval=(found[1].low, found[1].high) if found else None, p=p, cautions=cautions)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    logs = [math.fsum(map(math.log, times)) / len(times) for times in (ours, theirs)]
    return math.exp(logs[0] - logs[1])


def _lost(arm: _Arm) -> str:
    """Return how many logs of an arm give no time; empty: all do."""
    total = len(arm.runs) + arm.cell.refused
    return f"{total - len(arm.times)} of {total} logs of {arm.name} give no time" if total > len(arm.times) else ""


def _refusal(arm: _Arm, other: _Arm) -> str:
    """Return the reason why no verdict on the times is possible; empty: one is."""
    machines = different_machines(arm.runs, other.runs)
    if machines:
        return machines
    least = min(len(arm.times), len(other.times))
    if least < LEAST_REPEATS:
        return f"{len(arm.times)} against {len(other.times)} runs; a verdict needs at least {LEAST_REPEATS} each"
    return ""


def different_machines(ours: Sequence[PublishedResult], theirs: Sequence[PublishedResult]) -> str:
    """Return the reason why two sets of runs cannot be taken as runs of one machine; empty: they can."""
    found = sorted({str(item.hyperparameters.get("machine", "")) for item in (*ours, *theirs)})
    if "" in found:
        return "not every log names its machine (GPUs, driver, addresses on the bus)"
    return "the logs name different machines (GPUs, driver or addresses on the bus)" if len(found) > 1 else ""


def _cautions(arm: _Arm, other: _Arm) -> list[str]:
    found = []
    for name in ("python", "pytorch", "triton"):
        ours, theirs = arm.stated(name), other.stated(name)
        if ours != theirs:
            found.append(f"{name} {' or '.join(filter(None, ours)) or 'not stated'} against "
                         f"{' or '.join(filter(None, theirs)) or 'not stated'}")
    starts = [item.stated("started") for item in (arm, other)]
    if all(times and times[0] for times in starts):
        first, second = ([time.replace("T", " ") for time in times] for times in sorted(starts))
        if first[-1] < second[0]:
            found.append(f"one arm ran after the other ({first[0]} to {first[-1]}, then {second[0]} to {second[-1]}): "
                         "a drift of the machine is in the ratio")
    return found


def _decided(pairs: Mapping[Pair, tuple[_Arm, _Arm]], margin: float) -> dict[Pair, TimeClaim]:
    """Decide every contrast; both families, differences and equivalences, are corrected by Holm."""
    claims = {pair: _contrast(*arms) for pair, arms in pairs.items()}
    judged = [pair for pair, claim in claims.items() if not claim.because]
    adjusted = dict(zip(judged, holm([claims[pair].p or 0.0 for pair in judged]), strict=True))
    same = dict[Pair, float]()
    for pair in judged:
        arm, other = pairs[pair]
        if (found := or_none(partial(tost_welch, arm.times, other.times, margin))) is not None:
            same[pair] = found.p
    alike = dict(zip(same, holm(list(same.values())), strict=True))
    return {pair: claim if claim.because else _verdict(claim, adjusted[pair], alike.get(pair, 1.0), margin)
            for pair, claim in claims.items()}


def _verdict(claim: TimeClaim, p: float, same: float, margin: float) -> TimeClaim:
    ratio = claim.ratio or 1.0
    percent = f"{100 * margin:g} %"
    verdict: TimeVerdict = "not decided"
    because = f"p = {p:.3g} is above {ALPHA:g}, and the ratio is not shown to be within {percent} of 1"
    if p <= ALPHA:
        verdict = "faster" if ratio < 1 else "slower"
        because = f"p = {p:.3g} (Welch on logs, Holm)"
        because += f"; the difference is within {percent}" if same <= ALPHA else ""
    elif same <= ALPHA:
        verdict = "the same"
        because = f"shown to be within {percent} (two one-sided tests, p = {same:.3g}, Holm)"
    return claim.model_copy(update={"verdict": verdict, "because": because, "p_adjusted": p})


def _without_baseline(arm: _Arm, arms: Sequence[_Arm], records: Mapping[str, Sequence[_Arm]]) -> TimeClaim:
    """Compare with the previous record, by a number alone."""
    if arm.baseline:
        return TimeClaim(verdict="no comparison", because="the other arms are compared with it")
    if not arm.times:
        return TimeClaim(verdict="no comparison", because="it has no time")
    record = records[arm.cell.factors["round"]]
    named = [other for other in record if other.baseline]
    reason = (f"its baseline has no run of its own: {named[0].cell.score.reason}" if named else
              "its record has no arm named as a baseline")
    other = _previous(arm, arms, records)
    if other is None:
        return TimeClaim(verdict="no comparison", because=f"{reason}, and no earlier record of this track is here")
    return TimeClaim(verdict="another machine", against=other.cell.cell_id, ratio=_ratio(arm.times, other.times),
                     because=f"{reason}; the number is against {other.cell.label}, which ran elsewhere: no verdict")


def _previous(arm: _Arm, arms: Sequence[_Arm], records: Mapping[str, Sequence[_Arm]]) -> _Arm | None:
    """Return the main arm of the latest earlier record of the track; a record with several has none."""
    earlier = [other for other in arms if other.times and not other.baseline and "" < other.date < arm.date
               and other.cell.factors["benchmark"] == arm.cell.factors["benchmark"]
               and main_arm([item.name for item in records[other.cell.factors["round"]] if not item.baseline])
               == other.name]
    return earlier[-1] if earlier else None


def main_arm(names: Sequence[str]) -> str | None:
    """Return the arm that a record is about, of the arms that are no baseline: the only one, or `this_pr`."""
    if len(names) == 1:
        return names[0]
    return "this_pr" if "this_pr" in names else None


def _with_quality(time: TimeClaim, quality: ArmQuality) -> TimeClaim:
    if time.verdict != "faster" or quality.verdict == "supported":
        return time
    return time.model_copy(update={"cautions": (
        f"faster, but its claim of quality is {quality.verdict.replace('cannot be tested', 'not tested')}: "
        f"{quality.because}", *time.cautions)})


def _unstated(stated: Sequence[StatedMean], records: Mapping[str, Sequence[_Arm]]) -> list[StatedClaim]:
    found = []
    for item in stated:
        means = {arm.name: arm.quality.mean for arm in records.get(item.round, ()) if arm.quality.mean is not None}
        if any(agrees(item, value) for value in means.values()):
            continue
        given = ", ".join(f"{name} {value:.5f}" for name, value in means.items()) or "none"
        found.append(StatedClaim(stated=item, because=(
            f"{item.source} states a mean of {item.value:.{item.decimals}f}; the means of the logs here are: {given}. "
            "It may belong to runs whose logs are not here")))
    return found
