"""Trials of one cell that are one training repeated: a program that ignores its seed trains the same every time.

The rule and its reason are in docs/method.md, section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction

from repro.compare.cells import ComparedCell
from repro.compare.evidence.pairing import CellTrials, Observed
from repro.compare.figures import Repeated
from repro.record.folder.store import Record
from repro.record.result.results import Point
from repro.record.result.status import meaning

OF_MOST, OF_FEW = 1e-3, 1e-6
"""Largest chance of equal curves with different seeds, if more than half of a cell's trials have them, and if fewer."""
KEPT_DIGITS, MOST_SAMPLES = 7, 1000
"""Digits of a value that count, those of float32; evaluation samples up to which a value may be a share of them."""


def trainings(results: Iterable[Observed]) -> list[list[int]]:
    """Return the repeats of one cell by training: trials with identical weights or, without weights, evaluations."""
    known = [item for item in results if meaning(item.status).counts]
    found: dict[Hashable, list[list[Observed]]] = {}
    for item in sorted(known, key=lambda item: (-len(item.curve), item.repeat)):
        alike = found.setdefault(_key(item), [])
        same = next((group for group in alike if _is_same(group[0], item)), None)
        alike.append([item]) if same is None else same.append(item)
    groups = [part for alike in found.values() for group in alike for part in _certain(group, len(known))]
    return sorted(sorted(item.repeat for item in group) for group in groups)


def _key(item: Observed) -> Hashable:
    """Return what two trials of one training share: initial and final weights, else the first evaluation."""
    if weights := item.hashes.get("final_weights"):
        return item.hashes.get("init_weights"), weights
    return _evaluated(item.curve[0]) if item.curve else item.repeat


def _evaluated(point: Point) -> Hashable:
    return point.samples, point.value, point.train_loss


def _is_same(longer: Observed, item: Observed) -> bool:
    """Return whether two trials with one key are one training: without weights, if they agree as far as both ran."""
    if item.hashes.get("final_weights"):
        return True
    shared = zip(longer.curve, item.curve, strict=False)
    return all(_evaluated(one) == _evaluated(other) for one, other in shared) and chance(item.curve) <= OF_MOST


def _certain(group: list[Observed], trials: int) -> list[list[Observed]]:
    """Return the group, or each of its trials alone if so few of all trials may agree by chance."""
    certain = 2 * len(group) > trials or group[0].hashes.get("final_weights") or chance(group[-1].curve) <= OF_FEW
    return [group] if certain else [[item] for item in group]


def chance(curve: Sequence[Point]) -> float:
    """Return how probable it is that another seed gives these evaluations too, judged by their digits.

    A value that recurs does not count, because a training that is stuck repeats it with any seed, and so does an
    evaluation before the first step.
    """
    values = Counter(value for point in curve if point.samples for value in (point.value, point.train_loss))
    each = (_value_chance(value) for value, count in values.items() if value is not None and count == 1)
    return round(math.prod(each), 9)  # without the rounding errors of the product


def _value_chance(value: float) -> float:
    """Judge a value by its significant digits, a share of few samples by those of its numerator."""
    text = f"{abs(value):.{KEPT_DIGITS}g}"
    share = Fraction(text).limit_denominator(MOST_SAMPLES)
    if math.isclose(share, float(text), rel_tol=10.0 ** -KEPT_DIGITS):
        text = str(share.numerator)
    digits = len(text.partition("e")[0].replace(".", "").strip("0"))
    return 1.0 if digits < 2 else 0.5 if digits == 2 else 10.0 ** (2 - digits)


def repeated_in(cell: ComparedCell, results: Iterable[Observed]) -> tuple[Repeated, ...]:
    """Return the statement on a cell with fewer trainings than trials; () for any other."""
    groups = trainings(results)
    trials = sum(map(len, groups))
    if len(groups) == trials:
        return ()
    return (Repeated(cell_id=cell.cell_id, label=cell.label, trials=trials, trainings=len(groups)),)


def repeated_cells(record: Record) -> tuple[Repeated, ...]:
    """Return the statement on every cell of a record with fewer trainings than trials."""
    return tuple(found for cell in record.plan.cells for found in repeated_in(cell, record.of_cell(cell.cell_id)))


def one_of_each(ours: CellTrials, theirs: CellTrials, paired: bool) -> tuple[CellTrials, CellTrials]:
    """Return one trial of each training; of pairs those with a new training on both sides."""
    if not paired:
        return of_trainings(ours), of_trainings(theirs)
    first, second = (_by_repeat(side) for side in (ours, theirs))
    kept: dict[int, tuple[int, int]] = {}
    for repeat in sorted(first.keys() & second.keys()):
        if all(first[repeat] != one and second[repeat] != other for one, other in kept.values()):
            kept[repeat] = first[repeat], second[repeat]
    return ours.only(kept), theirs.only(kept)


def of_trainings(side: CellTrials) -> CellTrials:
    """Return one trial of each training of one cell."""
    return side.only(set(_by_repeat(side).values()))


def _by_repeat(side: CellTrials) -> dict[int, int]:
    """Return repeat -> first repeat of its training."""
    return {repeat: group[0] for group in trainings(side.results.values()) for repeat in group}
