"""A board: read all records, write their pages and the index."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from repro.board.build import code_digest, files_of, open_site, read_records
from repro.board.entry import Entry, grouped, without_copies
from repro.board.read import find_records
from repro.core.errors import UsageError
from repro.core.files import write_text

INDEX = "index.html"


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
        UsageError: the folder holds no record, or `out` holds files that no build wrote.
        OutputError: `out` cannot be written.
    """
    paths = find_records(folder)
    if not paths:
        raise UsageError(f"{folder}: holds no bundle (.zip), run folder or published results")
    site = open_site(out)
    places = {path.relative_to(folder).as_posix(): path.is_file() for path in paths}
    site.start([INDEX, *(name for place, packed in places.items()
                         for name in files_of(place, page=True, cached=packed))])
    pages = importlib.import_module("repro.reporters.board.page")
    entries = without_copies(read_records(paths, folder, out, pages.render_record, code_digest()))
    write_text(out / INDEX, pages.render_board(grouped(entries), title))
    site.finish([INDEX, *(name for item in entries
                          for name in files_of(item.place, page=bool(item.origin), cached=places[item.place]))])
    return Built(out / INDEX, len(entries), sum(item.standing == "verified" for item in entries),
                 tuple(item for item in entries if item.standing == "modified"))
