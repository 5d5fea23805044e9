"""DAWNBench training entries: a TSV of epoch, hours and accuracies, and a JSON description of the same name.

The score is the time of the first row at the target: 93 % top-5 on ImageNet, 94 % top-1 on CIFAR-10
(https://dawn.cs.stanford.edu/benchmark/).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from repro.published.cells import CellKey, make_cell, result_id
from repro.published.record import (
    Imported,
    PublishedBracket,
    PublishedCell,
    PublishedPoint,
    PublishedResult,
    PublishedStatus,
    Refused,
    Score,
    Setting,
)
from repro.published.untrusted.files import DamagedInput, Found, number, parse_object, plain, read_small, setting, walk

MAX_TSV = 4 << 20
MAX_JSON = 1 << 20
MAX_ROWS = 10_000
MAX_SETTINGS = 200
ROUND = "dawnbench"
OTHERS = "not a training entry (BENCHMARK/train/NAME.tsv with NAME.json next to it)"


@dataclass(frozen=True, slots=True)
class Task:
    """One of the two training benchmarks."""

    benchmark: str
    column: str
    target: float


TASKS = {
    "imagenet": Task("imagenet", "top5Accuracy", 93.0),
    "cifar10": Task("cifar10", "top1Accuracy", 94.0),
    "cifar-10": Task("cifar10", "top1Accuracy", 94.0),
}


def import_entries(root: Path) -> Imported:
    """Import every entry below `root`; `refused` lists the other files with their reasons.

    Raises:
        UsageError: no such folder or file, or too many files in it.
    """
    imported = Imported()
    curves: dict[tuple[str, ...], Found] = {}
    descriptions: dict[tuple[str, ...], Found] = {}
    for found in walk(root):
        name = found.parts[-1]
        stem = (*found.parts[:-1], name.rpartition(".")[0])
        if not found.refusal and name.endswith(".tsv"):
            curves[stem] = found
        elif not found.refusal and name.endswith(".json"):
            descriptions[stem] = found
        else:
            imported.refused.append(Refused(source=found.source, reason=found.refusal or OTHERS))
    for stem, found in curves.items():
        _import_entry(imported, found, descriptions.pop(stem, None))
    for found in descriptions.values():
        imported.refused.append(Refused(source=found.source, reason="a description without a curve (.tsv) next to it"))
    imported.cells = sorted((_cell(item) for item in imported.results), key=lambda cell: cell.cell_id)
    imported.refused.sort(key=lambda item: item.source)
    return imported


def _import_entry(imported: Imported, curve: Found, description: Found | None) -> None:
    """Import one entry completely, or refuse its files."""
    try:
        task = _task(curve.parts)
    except DamagedInput as reason:
        imported.refused += [Refused(source=item.source, reason=str(reason))
                             for item in (curve, description) if item is not None]
        return
    data: Mapping[str, Any] = {}
    also: dict[str, str] = {}
    lost = ""
    try:
        if description is None:
            raise DamagedInput("no description (.json) next to the curve")
        content = read_small(description.path, MAX_JSON)
        data = parse_object(content, "the description is not a JSON object")
        also = {description.source: hashlib.sha256(content).hexdigest()}
    except DamagedInput as reason:
        lost = str(reason)
    try:
        notes = [f"no description could be read: {lost}"] if lost else []
        imported.results.append(_entry(curve, task, data, notes).model_copy(update={"also": also}))
    except DamagedInput as reason:
        imported.refused.append(Refused(source=curve.source, reason=str(reason)))
        lost = lost or "its curve was refused"
    if lost and description is not None:
        imported.refused.append(Refused(source=description.source, reason=lost))


def _task(parts: Sequence[str]) -> Task:
    if "inference" in parts:
        raise DamagedInput("an inference entry; training entries are imported")
    for name in reversed(parts[:-1]):
        if name.lower() in TASKS:
            return TASKS[name.lower()]
    raise DamagedInput("neither ImageNet nor CIFAR10 is in its path: the target is unknown")


def _entry(found: Found, task: Task, data: Mapping[str, Any], notes: list[str]) -> PublishedResult:
    content = read_small(found.path, MAX_TSV)
    rows = read_curve(content, task.column)
    status, reason, crossing = _judge(rows, task)
    hit = rows[crossing] if crossing is not None else None
    miss = rows[crossing - 1] if crossing else None
    notes += _notes(rows)
    org = _text(data, "author") or "unknown"
    key = CellKey(ROUND, org, plain(found.parts[-1].removesuffix(".tsv")), task.benchmark, found.source)
    return PublishedResult(
        program="dawnbench", result_id=result_id(key.cell_id, found.source), cell_id=key.cell_id, repeat=0,
        round=ROUND, org=org, system=key.system, benchmark=task.benchmark, accelerator=_text(data, "hardware"),
        framework=_text(data, "framework"), model=_text(data, "model"), date=_text(data, "timestamp"),
        hyperparameters=_settings(data), target={"": task.target}, direction={"": "higher"},
        status=status, reason=reason, seconds=hit.seconds if hit else None, run_seconds=rows[-1].seconds or None,
        epochs_to_target=hit.epochs if hit else None,
        bracket=PublishedBracket(
            miss_seconds=miss.seconds if miss else 0.0, hit_seconds=hit.seconds, miss_samples=None, hit_samples=None,
        ) if hit else None,
        curve=tuple(rows), warnings=tuple(notes), source=found.source, sha256=hashlib.sha256(content).hexdigest(),
    )


def read_curve(content: bytes, column: str) -> list[PublishedPoint]:
    """Read the rows of a TSV with the columns epoch, hours and `column` in any order; hours become seconds.

    Raises:
        DamagedInput: not UTF-8, a column is missing, a row has too few fields or a field is not a finite number.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedInput(f"not UTF-8 (byte {error.start + 1})") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = [name.strip() for name in lines[0].split("\t")]
    if len(set(head)) != len(head):
        raise DamagedInput("line 1: a column occurs twice")
    missing = [name for name in ("epoch", "hours", column) if name not in head]
    if missing:
        raise DamagedInput(f"line 1: no column {missing[0]!r}")
    places = [head.index(name) for name in ("epoch", "hours", column)]
    rows: list[PublishedPoint] = []
    for line, row in enumerate(lines[1:], 2):
        if not row.strip():
            continue
        if len(rows) >= MAX_ROWS:
            raise DamagedInput(f"line {line}: more than {MAX_ROWS:,} rows")
        rows.append(_row(line, row.split("\t"), len(head), places))
    if not rows:
        raise DamagedInput("no row below the header")
    return rows


def _row(line: int, fields: Sequence[str], width: int, places: Sequence[int]) -> PublishedPoint:
    if len(fields) != width:
        raise DamagedInput(f"line {line}: {len(fields)} fields where the header has {width}")
    values = []
    for place in places:
        try:
            value = number(float(fields[place]))
        except ValueError:
            value = None
        if value is None or value < 0:
            raise DamagedInput(f"line {line}: {plain(fields[place], 40)!r} is not a finite number of at least 0")
        values.append(value)
    epoch, hours, accuracy = values
    if accuracy > 100:
        raise DamagedInput(f"line {line}: an accuracy of {accuracy:g} %")
    if hours > 1e6:
        raise DamagedInput(f"line {line}: {hours:g} hours")
    return PublishedPoint(seconds=hours * 3600, epochs=epoch, value=accuracy)


def _judge(rows: Sequence[PublishedPoint], task: Task) -> tuple[PublishedStatus, str, int | None]:
    """Return (status, reason, index of the first row at the target)."""
    for earlier, later in pairwise(rows):
        if later.seconds < earlier.seconds:
            return "invalid", f"time goes backwards: {later.seconds:g} s after {earlier.seconds:g} s", None
    values = [row.value or 0.0 for row in rows]
    crossing = next((index for index, value in enumerate(values) if value >= task.target), None)
    if crossing is not None and rows[crossing].seconds <= 0:
        return "invalid", "at the target before any time has passed", None
    if crossing is not None:
        return "ok", "", crossing
    if max(values) <= 1:
        return "invalid", "the accuracies look like fractions; percentages are required", None
    return "missed", f"best {max(values):g} % of {task.target:g} %", None


def _notes(rows: Sequence[PublishedPoint]) -> list[str]:
    epochs = [row.epochs or 0.0 for row in rows]
    found = []
    if any(later <= earlier for earlier, later in pairwise(epochs)):
        found.append("the number of the epoch does not increase from row to row")
    if epochs[0] == 0:
        found.append("epochs are counted from 0: the entry does not say if 0 is before training or the first epoch")
    return found


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    if value is None or isinstance(value, dict | list):
        return None
    return plain(value).strip() or None


def _settings(data: Mapping[str, Any]) -> dict[str, Setting]:
    """Return the stated settings, flattened. Some entries give batch sizes per device, so none is used as global."""
    misc = data.get("misc")
    stated = dict(misc) if isinstance(misc, dict) else {"misc": misc} if misc is not None else {}
    stated |= {key: data[key] for key in ("costPerHour", "codeURL", "version") if data.get(key) is not None}
    found = {plain(key, 100): setting(value) for key, value in list(stated.items())[:MAX_SETTINGS]}
    return {key: value for key, value in found.items() if value is not None}


def _cell(item: PublishedResult) -> PublishedCell:
    key = CellKey(item.round, item.org, item.system, item.benchmark, item.source)
    minutes = None if item.seconds is None else item.seconds / 60
    score = Score(
        minutes=minutes, valid=minutes is not None, reason="" if minutes is not None else item.reason, runs=1,
        required=1, failed=int(minutes is None),
    )
    cell = make_cell(key, [item], 0, score)
    return cell.model_copy(update={"label": plain(f"{item.org}: {item.model or item.system} ({item.system}), "
                                                  f"{item.benchmark}, {ROUND}", 300)})
