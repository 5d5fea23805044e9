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
              help="Folder of the site; a build replaces what earlier ones wrote.")
@click.option("--title", default="Records", show_default=True, help="Heading of the site.")
def board(folder: Path, out: Path, title: str) -> None:
    """Build a static site from the records in FOLDER.

    Takes bundles, run folders and imports of published results. Each bundle is verified; what is not is marked,
    with the reason.

    \b
    Example: repro board records --out site
    """
    from repro.board.build import open_site, page_name, read_records
    from repro.board.entry import grouped, without_copies
    from repro.board.read import find_records
    from repro.core.errors import UsageError
    from repro.core.files import write_text

    paths = find_records(folder)
    if not paths:
        raise UsageError(f"{folder}: holds no bundle (.zip), run folder or published results")
    site = open_site(out)
    site.start([INDEX, *(page_name(path.relative_to(folder).as_posix()) for path in paths)])
    pages = importlib.import_module("repro.reporters.board.page")
    entries = without_copies(read_records(paths, folder, out, pages.render_record))
    write_text(out / INDEX, pages.render_board(grouped(entries), title))
    site.finish([INDEX, *(page_name(item.place) for item in entries if item.origin)])
    for entry in entries:
        if entry.standing == "modified":
            say(f"{entry.place}: {entry.why}", err=True)
    verified = sum(item.standing == "verified" for item in entries)
    say(f"{out / INDEX}: {len(entries)} record{'s' if len(entries) != 1 else ''}, {verified} verified")
