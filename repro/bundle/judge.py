"""Judgement of a second execution: bit for bit if the suite promises that, else the claims within the margin.

In the words of ACM's Artifact Review and Badging v1.1 this is *results reproduced*: the same experiment, run with the
first team's artifacts, gives the same results within a tolerance stated beforehand. (The same team on the same machine
is *repeatability*; with other artifacts it would be *replicability*, which running a bundle again cannot show.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from repro.bundle.claim import Claimed, Found, claims_of, is_bitwise, measured, shift_between
from repro.bundle.difference import ExecutionDifference, between_executions, difference_lines
from repro.compare.comparing import compare
from repro.compare.design.chosen import Chosen
from repro.compare.evidence.pairing import Observed, cell_trials
from repro.compare.figures import DECIDED, Comparison
from repro.compare.runs.run_warnings import run_warnings
from repro.compare.verdict.family import can_be_same
from repro.compare.verdict.sentences import describe_resumed_trials
from repro.compare.verdict.verdict import judged
from repro.core.errors import visible
from repro.core.numbers import ratio_texts
from repro.record.environment.differences import changed_data
from repro.record.folder.store import Record
from repro.record.result.status import meaning
from repro.stats.interval import from_log
from repro.stats.replication import ALPHA, LEAST_PAIRS, POWER, Change, MeanLog, change, two_sided
from repro.stats.sequential import LookLevel
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.planning.terms import Terms

Answer = Literal["reproduced", "not reproduced", "inconclusive"]
LEAST_EXACT = 6
"""Fewest equal changes that show one without a test of their spread: 2 / 2^6 is below 5 %."""
JUST = 0.01
"""Smallest p of a verdict that records chosen for their verdict exaggerate."""
ALL_HASHES = ("data", "init_weights", "weights_step_1", "weights_step_10", "data_order", "augmentation",
              "final_weights")
"""In the order in which a trial records them: the first different one shows where the two executions diverge."""


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """The answer for one cell whose every bit the suite promises."""

    cell_id: str
    label: str
    answer: Answer
    because: str
    trials: int
    equal_weights: int
    """Trials that ended with identical weights."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The verdicts on one claim that each execution gives without the other."""

    record: Comparison
    again: Comparison

    @property
    def shows_difference(self) -> bool:
        """The record alone shows a difference."""
        return self.record.verdict in DECIDED and self.record.verdict != "same"

    @property
    def lost(self) -> str:
        """That the second execution alone does not give the verdict of the record; "" if it does."""
        word = self.record.verdict
        if word not in DECIDED or word == self.again.verdict:
            return ""
        what = "both are the same" if word == "same" else f"the candidate is {word}"
        if not (can_be_same(self.again.units, self.again.family) if word == "same" else self.again.reachable):
            return f"{self.again.n} pairs cannot show by themselves that {what}"
        return f"that {what} was not found again"

    def is_below(self, margin: float) -> bool:
        """Return whether the record shows a difference that is smaller than the margin: no difference at all would be
        within it, too."""
        return self.shows_difference and self.record.ratio is not None \
            and abs(math.log(self.record.ratio)) <= math.log1p(margin)

    @property
    def words(self) -> str:
        """`alone: the record faster, 0.994 (0.990 to 0.997); the new run inconclusive`."""
        said = (f"{where} {_alone_words(item)}{_ratio_words(item)}"
                for where, item in (("the record", self.record), ("the new run", self.again)))
        return f"alone: {'; '.join(said)}"


def _alone_words(item: Comparison) -> str:
    if item.refused:
        return "has no verdict of its own"
    return item.spoken if item.reachable or item.verdict in DECIDED else "has too few pairs to tell"


def _ratio_words(item: Comparison) -> str:
    if item.ratio is None:
        return ""
    ratio, *ends = ratio_texts([item.ratio, *((item.interval.low, item.interval.high) if item.interval else ())])
    return f", {ratio}" + (f" ({' to '.join(ends)})" if ends else "")


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer for one claim of the record."""

    claim: Claimed
    answer: Answer
    because: str
    record: MeanLog | None
    again: MeanLog | None
    change: Change | None
    """The claim of the second execution over that of the record; None: one of them has no figure."""
    cautions: tuple[str, ...] = ()
    alone: Alone | None = None
    """None: the claim is the figure of one cell."""

    @property
    def limits(self) -> tuple[str, ...]:
        """Statements that "reproduced" does not include here."""
        found = self.alone
        if self.answer != "reproduced" or found is None or self.change is None:
            return ()
        small = "the whole effect of the record is smaller than the margin, so a ratio of 1 may be within it, too"
        return tuple(filter(None, (found.lost, small if found.is_below(self.change.margin) else "")))

    def as_json(self) -> dict[str, Any]:
        found = self.change
        return {
            "candidate": self.claim.candidate, "baseline": self.claim.baseline, "label": self.claim.label,
            "metric": self.claim.metric, "answer": self.answer, "because": self.because,
            "record": _figure(self.record), "again": _figure(self.again),
            "change": None if found is None else {
                "ratio": found.ratio, "low": found.interval.low, "high": found.interval.high,
                "within_low": found.within.low, "within_high": found.within.high},
            "alone": None if self.alone is None else {
                "record": self.alone.record.verdict, "again": self.alone.again.verdict},
            "limits": list(self.limits), "cautions": list(self.cautions),
        }


def _figure(mean: MeanLog | None) -> dict[str, Any] | None:
    return None if mean is None else {"value": from_log(mean.value), "error_log": mean.error, "n": mean.figures}


@dataclass(frozen=True, slots=True)
class Level:
    """The absolute figure of a cell in both executions: context, which is not judged."""

    label: str
    metric: Metric
    ratio: float
    """Geometric mean of the second execution over that of the record."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The answer for all claims and cells together, and the differences between the executions."""

    answer: Answer
    claims: tuple[ClaimAnswer, ...]
    cells: tuple[CellAnswer, ...]
    levels: tuple[Level, ...]
    differences: tuple[ExecutionDifference, ...]
    terms: Terms
    warnings: tuple[str, ...] = ()
    """What a reader must know of the second execution."""
    look: LookLevel | None = None
    """The look that it is judged at; None: once, with all pairs."""
    busy: bool = False
    """Other work made the machine busy before the second execution."""

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 2, "answer": self.answer, "terms": "ACM Artifact Review and Badging v1.1: results reproduced",
            "declared": self.terms.model_dump(), "look": None if self.look is None else asdict(self.look),
            "claims": [item.as_json() for item in self.claims],
            "cells": [asdict(item) for item in self.cells], "levels": [asdict(item) for item in self.levels],
            "differences": [asdict(item) for item in self.differences], "warnings": list(self.warnings),
        }

    def text(self) -> str:
        lines = [visible(text) for item in self.claims for text in (
            f"{item.claim.label}: {item.answer}: {item.because}", *([f"  {item.alone.words}"] if item.alone else []))]
        lines += [visible(f"{item.label}: {item.answer} (bitwise): {item.because}") for item in self.cells]
        lines += [f"  caution: {text}" for text in dict.fromkeys(
            text for item in self.claims for text in item.cautions)]
        lines += [visible(f"  not judged: {METRICS[item.metric].noun} of {item.label} is {item.ratio:.3f} x the "
                          "record's") for item in self.levels]
        lines += [visible(f"  warning: {text}") for text in self.warnings]
        if self.differences:
            lines.append("differences between the two executions"
                         + (":" if self.answer == "reproduced" else ", which could explain the answer:"))
            lines += difference_lines(self.differences, areas=True)
        else:
            lines.append("no recorded difference in code, libraries, hardware, settings or data")
        if self.look is not None:
            lines.append(f"judged at {self.look.n} pairs, of looks at {self.terms.look_words}: levels of "
                         f"{self.look.difference:.4f} for a change, {self.look.same:.4f} for each side of the margin")
        ratios = any(item.claim.baseline and METRICS[item.claim.metric].clocked and item.answer != "reproduced"
                     for item in self.claims)
        why = " on a busy machine, which alone can change a ratio of times" if self.busy and ratios else ""
        return "\n".join([*lines, "", f"results {self.answer}{why} ({self._criterion()})"])

    def _criterion(self) -> str:
        parts = ["weights and evaluations bit for bit"] if self.cells else []
        if self.claims:
            what = "the ratio" if self.claims[0].claim.baseline else METRICS[self.claims[0].claim.metric].noun
            parts.append(f"{what} within a margin of {100 * self.terms.margin:g} %, an interaction of session and cell "
                         f"of {100 * self.terms.interaction:g} % {'declared' if self.terms.interaction else 'assumed'}")
        elif self.levels and METRICS[self.levels[0].metric].clocked:
            parts.append("times, and ratios of them, are not judged")
        return "; ".join([*parts, *dict.fromkeys(text for item in self.claims for text in item.limits)])


def judge(first: Record, second: Record, chosen: Sequence[tuple[str, int]], terms: Terms) -> Reproduction:
    """Judge the second record against the first.

    Args:
        chosen: (cell id, repeat) of the trials of the second execution, decided before they ran.
        terms: declared before they ran.

    Raises:
        UsageError: as `claims_of`.
    """
    kept: dict[str, set[int]] = {}
    ran = 1 + max(repeat for _, repeat in chosen)
    look = next((look for look in terms.looks if look.n == ran), None)
    for cell_id, repeat in chosen:
        kept.setdefault(cell_id, set()).add(repeat)
    cells = tuple(_cell(first, second, cell_id, repeats) for cell_id, repeats in kept.items()
                  if is_bitwise(first.plan, cell_id))
    found = claims_of(first.plan, tuple(kept))
    verdicts = {(item.candidate, item.baseline): item
                for item in compare(first.plan, first.results, execution=first.execution)} if found else {}
    sides = {claim: (measured(first, claim), measured(second, claim, kept)) for claim in found}
    again = _verdicts(second, {claim: after for claim, (_, after) in sides.items()})
    alone = {claim: Alone(verdicts[pair], again[claim]) for claim in found
             if (pair := (claim.candidate, claim.baseline or "")) in verdicts and claim in again}
    other = [f"other {text}" for text in changed_data(first.environment, second.environment)]
    claims = tuple(_claim(claim, *sides[claim], [*other, *_missing(second, claim, kept)], terms, len(found), look,
                          alone.get(claim)) for claim in found)
    return Reproduction(_together([*(item.answer for item in claims), *(item.answer for item in cells)]), claims, cells,
                        tuple(_levels(first, second, kept)), tuple(between_executions(first, second)), terms,
                        tuple(item.line for item in run_warnings(second)), look,
                        second.environment.high_load is not None)


def _verdicts(second: Record, found: Mapping[Claimed, Found]) -> dict[Claimed, Comparison]:
    """Return the verdicts that the figures of the second execution give by themselves, in one family: as a part of
    another run it has none of its own."""
    known = {claim: item for claim, item in found.items() if item.evidence is not None}
    compared = judged([item.evidence for item in known.values() if item.evidence is not None])
    settings = Chosen(second.plan)
    return {claim: settings.qualified(each).model_copy(update={"failed_starts": known[claim].starts})
            for claim, each in zip(known, compared, strict=True)}


def _missing(second: Record, claim: Claimed, kept: Mapping[str, set[int]]) -> list[str]:
    """Return `3 of 10 trials of ddp have a result` of each cell with chosen trials that have none."""
    done = {cell: kept[cell] & {item.repeat for item in second.of_cell(cell)} for cell in claim.cells}
    return [f"{len(ran)} of {len(kept[cell])} trials of {second.cell(cell).label} have a result"
            for cell, ran in done.items() if ran < kept[cell]]


def _claim(
    claim: Claimed, before: Found, after: Found, missing: Sequence[str], terms: Terms, tests: int,
    look: LookLevel | None, alone: Alone | None,
) -> ClaimAnswer:
    moved = None if missing else shift_between(before, after)
    found = None if moved is None else change(moved, terms.margin, terms.interaction, tests, look)
    if moved is None or found is None:
        answer, because = _without_figure(before, after, missing, (look.difference if look else ALPHA) / tests)
    else:
        answer, because = _answer(found, before, after, claim, look, is_exact=not moved.error)
    cautions = ["the record: it ended at an open-ended look (anytime), so its ratio is on average too far from 1, and "
                "an answer about it errs in more than 5 % (docs/reproduce.md)"] if before.exaggerates else []
    if alone is not None and alone.record.refused:
        cautions.append(f"the record has no verdict of its own: {alone.record.because}")
    cautions += [f"{where}: {text}" for where, side in (("the record", before), ("the new run", after))
                for text in _cautions(side)]
    if answer != "inconclusive" and before.mean is not None:
        cautions += _chosen(before.mean, answer, alone, terms)
    return ClaimAnswer(claim, answer, because, before.mean, after.mean, found, tuple(cautions), alone)


def _chosen(mean: MeanLog, answer: Answer, alone: Alone | None, terms: Terms) -> Iterator[str]:
    """Yield why the error of an answer is more than 5 % over records that were chosen for their verdict."""
    p = two_sided(mean)
    if alone is not None and alone.shows_difference and p > JUST:
        yield (f"the record: its difference is just significant (t test, p = {p:.2g}); records that are chosen because "
               "they show a difference exaggerate it, and an answer about them errs in more than 5 % "
               "(docs/reproduce.md)")
    if answer == "not reproduced" and terms.power is not None and terms.power < POWER:
        yield (f"on these terms an unchanged claim was to be found with {100 * terms.power:.0f} % only; of records "
               "that are chosen because they show a difference, many more than 5 % are then called not reproduced "
               "although nothing changed (docs/reproduce.md)")


def _cautions(item: Found) -> tuple[str, ...]:
    found = item.evidence
    return () if found is None else (*found.asked.cautions, *describe_resumed_trials(found),
                                     *(repeated.words for repeated in found.repeated[:1]))


def _without_figure(before: Found, after: Found, missing: Sequence[str], alpha: float) -> tuple[Answer, str]:
    """Return the answer where an execution gives no figure: only misses are an answer, if the record has none."""
    if missing:
        return "inconclusive", "; ".join(missing)
    if before.mean is None:
        return "inconclusive", f"in the record {before.why}"
    lost = any(not meaning(status).counts for side in after.sides for status in side.without)
    if lost or not _missed_more(before, after, alpha):
        return "inconclusive", f"in the second execution {after.why}"
    return "not reproduced", f"in the second execution {after.why}; in the record all trials reached it " \
                             "(Fisher's exact test)"


def _missed_more(before: Found, after: Found, alpha: float) -> bool:
    """Return whether a cell of the second execution misses its target more often than the record's, which never does:
    Fisher's exact test of each cell of the claim, which share `alpha`."""
    from scipy.stats import fisher_exact

    tables = [np.array([[0, one.n], [sum(other.without.values()), len(other.values)]])
              for one, other in zip(before.sides, after.sides, strict=True)]
    return any(float(fisher_exact(table).pvalue) <= alpha / len(tables) for table in tables)


def _answer(
    found: Change, before: Found, after: Found, claim: Claimed, look: LookLevel | None, *, is_exact: bool
) -> tuple[Answer, str]:
    """Return the answer and its reason.

    The error of "reproduced" at a change of the margin is at most 5 %, and so is that of any "not reproduced" without a
    change. All claims must be reproduced, so that answer needs no correction for their number; the other one has it.

    Args:
        is_exact: all changes are equal, as those of simulated times are; measured ones can be so by chance.
    """
    figures, least = f"{_figures(found, before, after, claim)}: a change of {found.ratio:.3f} x", min(before.n, after.n)
    shown = found.within if found.is_within else found.interval
    figures += f" in all {least}, margin {100 * found.margin:g} %" if is_exact else (
        f" ({shown.low:.3f} to {shown.high:.3f} at {100 * shown.level:.3g} %, margin {100 * found.margin:g} %)")
    needed = LEAST_EXACT if is_exact and found.is_beyond else LEAST_PAIRS
    if least < needed:
        return "inconclusive", f"{figures}; at least {claim.counted(needed)} are required in both executions"
    if found.is_beyond:
        return "not reproduced", f"{figures}; the change is certain and exceeds the margin"
    if not found.is_within:
        return "inconclusive", f"{figures}; neither within the margin nor certainly changed beyond it"
    coarse = before.too_coarse(found.margin) or after.too_coarse(found.margin)
    if coarse and not _same_trainings(before, after):
        return "inconclusive", f"{figures}; {coarse}"
    level = f"{100 * (look.same if look else ALPHA):.3g} %"
    return "reproduced", f"{figures}; the change is within the margin (two one-sided tests at {level})"


def _figures(found: Change, before: Found, after: Found, claim: Claimed) -> str:
    """Return both figures; of the record that over the seeds compared, from which the change is."""
    assert before.mean is not None and after.mean is not None
    noun, logs = "ratio" if claim.baseline else METRICS[claim.metric].noun, (after.mean.value, before.mean.value)
    new, old, alike = claim.texts([*logs, after.mean.value - math.log(found.ratio)])
    start, every = f"{noun} {new} ({claim.counted(after.n)}) against ", f"{old} ({claim.counted(before.n)})"
    if not after.logs.keys() < before.logs.keys():
        return start + every
    return f"{start}{alike} (the same seeds; the record's {every})"


def _same_trainings(before: Found, after: Found) -> bool:
    """Return whether all trials of the second execution ended with the weights of the record's: they crossed the target
    at the same samples, wherever that is between two evaluations."""
    pairs = [(one.results.get(repeat), mate) for one, other in zip(before.sides, after.sides, strict=True)
             for repeat, mate in other.results.items()]
    return bool(pairs) and all(
        item is not None and item.hashes.get("final_weights") == mate.hashes.get("final_weights") is not None
        for item, mate in pairs)


def _levels(first: Record, second: Record, kept: Mapping[str, set[int]]) -> Iterator[Level]:
    metric = first.plan.suite.metric
    for cell_id in kept:
        sides = [cell_trials("", record.of_cell(cell_id), METRICS[metric]).values for record in (first, second)]
        logs = [np.log([value for value in side.values() if value > 0]) for side in sides]
        if all(len(found) for found in logs):
            yield Level(first.cell(cell_id).label, metric, from_log(float(logs[1].mean() - logs[0].mean())))


def _cell(first: Record, second: Record, cell_id: str, repeats: set[int]) -> CellAnswer:
    before, after = ({item.repeat: item for item in record.of_cell(cell_id) if item.repeat in repeats}
                     for record in (first, second))
    pairs = [(item, after[repeat]) for repeat, item in before.items() if repeat in after]
    equal = sum(one.hashes.get("final_weights") == other.hashes.get("final_weights") is not None
                for one, other in pairs)
    answer, because = _bitwise(pairs, len(repeats & before.keys()))
    return CellAnswer(cell_id, first.cell(cell_id).label, answer, because, len(pairs), equal)


def _bitwise(pairs: Sequence[tuple[Observed, Observed]], planned: int) -> tuple[Answer, str]:
    """Compare the weights of every trial by all hashes that both have, and the value of every evaluation."""
    for one, other in pairs:
        if (why := _first_difference(one, other)) and not any(meaning(item.status).by_chance for item in (one, other)):
            return "not reproduced", f"seed {one.repeat}: {why}"
    unlike = [f"seed {one.repeat} ended as {one.status} in the record and as {other.status} in the second execution"
              for one, other in pairs
              if one.status != other.status or not {"final_weights"} <= one.hashes.keys() & other.hashes.keys()]
    if unlike:
        return "inconclusive", f"{unlike[0]}: without final weights there is nothing to compare"
    if len(pairs) < planned or not pairs:
        return "inconclusive", f"{len(pairs)} of {planned} chosen trials have a result in both executions"
    steps = sum("weights_step_1" in one.hashes for one, _ in pairs)
    return "reproduced", f"the weights of all {len(pairs)} trials are identical at the end" + (
        " and at steps 1 and 10" if steps == len(pairs) else "")


def _first_difference(one: Observed, other: Observed) -> str:
    for name in ALL_HASHES:
        ours, theirs = one.hashes.get(name), other.hashes.get(name)
        if ours is not None and theirs is not None and ours != theirs:
            return f"{name.replace('_', ' ')} differ ({ours[:12]} and {theirs[:12]})"
    for number, (mine, its) in enumerate(zip(one.curve, other.curve, strict=False), 1):
        if mine.value != its.value or mine.samples != its.samples:
            return f"evaluation {number} gave {mine.value} and {its.value}"
    return ""


def _together(answers: Collection[Answer]) -> Answer:
    """Return "not reproduced" if one is not; "reproduced" only if all are."""
    if "not reproduced" in answers:
        return "not reproduced"
    return "reproduced" if set(answers) == {"reproduced"} else "inconclusive"
