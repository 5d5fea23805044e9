"""A board: read all records, write their pages and the index."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from repro.board.build import CACHE, page_name, read_records
from repro.board.code import code_digest
from repro.board.entry import Entry
from repro.board.groups import grouped, without_copies
from repro.core.files import write_text


@dataclass(frozen=True, slots=True)
class Built:
    """A board on disk."""

    page: Path
    count: int
    verified: int
    modified: tuple[Entry, ...]
    """Records that were modified or cannot be read."""


def build_board(folder: Path, out: Path, title: str) -> Built:
    """Write `out`/index.html and a page for each record below `folder`.

    Raises:
        UsageError: the folder holds no record.
        OutputError: `out` cannot be written.
    """
    pages = importlib.import_module("repro.reporters.board.page")
    entries = without_copies(read_records(folder, out, pages.render_record, code_digest()))
    kept = {Path(page_name(item.place)).stem for item in entries}
    for left in (*(out / "pages").glob("*.html"), *(out / CACHE).glob("*.json")):  # of records that are no longer there
        if left.stem not in kept:
            left.unlink()
    page = out / "index.html"
    write_text(page, pages.render_board(grouped(entries), title))
    return Built(page, len(entries), sum(item.standing == "verified" for item in entries),
                 tuple(item for item in entries if item.standing == "modified"))
