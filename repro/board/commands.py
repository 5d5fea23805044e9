"""`repro board`."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from repro.cli.options import PlaceParam
from repro.cli.terminal import say

INDEX = "index.html"


@click.command()
@click.argument("folder", metavar="FOLDER", type=PlaceParam(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=PlaceParam(path_type=Path, file_okay=False), default=Path("board"), show_default=True,
              help="Folder of the site; what it holds of an earlier build is used again.")
@click.option("--title", default="Records", show_default=True, help="Heading of the site.")
def board(folder: Path, out: Path, title: str) -> None:
    """Build a static site from the records in FOLDER.

    Takes bundles, run folders and imports of published results. Each bundle is verified; what is not is marked,
    with the reason.

    \b
    Example: repro board records --out site
    """
    from repro.board.build import code_digest, files_of, open_site, read_records
    from repro.board.entry import grouped, without_copies
    from repro.board.read import find_records
    from repro.core.errors import UsageError
    from repro.core.files import write_text

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
    for entry in entries:
        if entry.standing == "modified":
            say(f"{entry.place}: {entry.why}", err=True)
    verified = sum(item.standing == "verified" for item in entries)
    say(f"{out / INDEX}: {len(entries)} record{'s' if len(entries) != 1 else ''}, {verified} verified")
