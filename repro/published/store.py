"""The folder of an import: `published.json`, `results.jsonl` (one result a line), `refused.jsonl` (one file a line)."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

import repro
from repro.core.door import refuse_links
from repro.core.errors import OutputError
from repro.core.files import parse_model, read_bounded, read_model, write_model, write_text
from repro.core.frozen import FORMAT
from repro.published.contest_rules import MOST, MOST_SECONDS
from repro.published.record import Imported, Program, PublishedCell, PublishedRecord, PublishedResult, Refused
from repro.published.untrusted.files import file_name, full, plain

Model = TypeVar("Model", bound=BaseModel)
MAX_RESULTS_BYTES = 256 << 20
"""Largest results file (`mlperf.folder.MAX_HELD`), with room for the refused files."""
FACTORS = ("round", "benchmark", "org", "system")
"""Factors that every cell must have."""
RECORD, RESULTS, REFUSED = "published.json", "results.jsonl", "refused.jsonl"


@dataclass(frozen=True, slots=True)
class Published:
    """An import, read from its folder."""

    folder: Path
    record: PublishedRecord
    results: tuple[PublishedResult, ...]
    refused: tuple[Refused, ...]

    def by_cell(self) -> dict[str, tuple[PublishedResult, ...]]:
        """Return the results of every cell, in the order of the record; () for one without any."""
        found: dict[str, list[PublishedResult]] = {cell.cell_id: [] for cell in self.record.cells}
        for item in self.results:
            found.setdefault(item.cell_id, []).append(item)
        return {cell_id: tuple(runs) for cell_id, runs in found.items()}


def by_question(cells: Iterable[PublishedCell]) -> dict[tuple[str, str], list[PublishedCell]]:
    """Return the cells by what their results answer: (round, benchmark)."""
    found: dict[tuple[str, str], list[PublishedCell]] = {}
    for cell in cells:
        found.setdefault((cell.factors["round"], cell.factors["benchmark"]), []).append(cell)
    return found


def make_folder(out: Path) -> None:
    """Create a new, empty folder before the work, so that an unwritable place fails early.

    Raises:
        OutputError: it exists and is not empty, or cannot be written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OutputError(f"{out}: exists and is not an empty folder; give another --out")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror}; give another --out") from error


def write(out: Path, imported: Imported, program: Program, source: Path) -> Published:
    """Write an import into an empty folder; the record last, so that a folder with a record is complete.

    Raises:
        OutputError: it cannot be written.
    """
    results, refused = _lines(imported.results), _lines(imported.refused)
    write_text(out / RESULTS, results)
    write_text(out / REFUSED, refused)
    record = PublishedRecord(
        format=FORMAT,
        program=program, imported=plain(file_name(full(source).name) or "/"), reader=repro.__version__,
        cells=tuple(imported.cells), systems=tuple(imported.systems),
        references=tuple(imported.references), contest=imported.contest, results=len(imported.results),
        refused=len(imported.refused), results_sha256=_sha256(results), refused_sha256=_sha256(refused),
    )
    write_model(out / RECORD, record)
    return Published(out, record, tuple(imported.results), tuple(imported.refused))


def read_published(folder: Path) -> Published:
    """Read an import's folder.

    Raises:
        OutputError: not an import, or a file in it is damaged or modified.
    """
    if not (folder / RECORD).is_file():
        raise OutputError(f"{folder}: not a folder of published results (it has no {RECORD})")
    refuse_links(folder)
    record = read_model(folder / RECORD, PublishedRecord)
    for number, cell in enumerate(record.cells):
        if absent := [name for name in FACTORS if name not in cell.factors]:
            raise OutputError(f"{folder / RECORD}: cells.{number}.factors: {absent[0]} is missing; import again")
    results = tuple(_read(folder / RESULTS, PublishedResult, record.results_sha256))
    if record.contest is not None:
        _check_contest(folder, record, results)
    return Published(folder, record, results, tuple(_read(folder / REFUSED, Refused, record.refused_sha256)))


def _check_contest(folder: Path, record: PublishedRecord, results: Iterable[PublishedResult]) -> None:
    """Check what the judge of a contest relies on: the reader of its logs writes nothing else."""
    for number, cell in enumerate(record.cells):
        if not _is_number(cell.factors.get("target", ""), MOST):
            raise OutputError(f"{folder / RECORD}: cells.{number}.factors: target is not a number; import again")
        if "date" in cell.factors and not _is_date(cell.factors["date"]):
            raise OutputError(f"{folder / RECORD}: cells.{number}.factors: date is no date; import again")
    for item in results:
        final = item.curve[-1].value if item.curve else None
        timed = item.seconds is not None and 0 < item.seconds <= MOST_SECONDS
        if item.status == "ok" and not (timed and final is not None and abs(final) <= MOST and item.target):
            raise OutputError(f"{folder / RESULTS}: {item.result_id}: complete, but without a time, a target or a "
                              "quality at its end; import again")
        if item.status != "ok" and item.seconds is not None:
            raise OutputError(f"{folder / RESULTS}: {item.result_id}: {item.status}, but with a time; import again")


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_number(text: str, most: float) -> bool:
    try:
        return abs(float(text)) <= most
    except ValueError:
        return False


def _lines(models: Iterable[BaseModel]) -> str:
    return "".join(json.dumps(model.model_dump(mode="json", by_alias=True), allow_nan=False) + "\n" for model in models)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, cls: type[Model], sha256: str) -> Iterator[Model]:
    content = read_bounded(path, MAX_RESULTS_BYTES)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise OutputError(f"{path}: modified after the import (sha256 differs from {RECORD}); import again")
    for number, line in enumerate(io.BytesIO(content), 1):  # line by line, to save memory
        yield parse_model(f"{path}:{number}", line.removesuffix(b"\n"), cls)
