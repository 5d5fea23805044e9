"""`repro board`."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.place import PlaceParam
from repro.cli.terminal import say


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
    from repro.board.build import build_board

    built = build_board(folder, out, title)
    for entry in built.modified:
        say(f"{entry.place}: {entry.why}", err=True)
    say(f"{built.page}: {built.count} record{'s' if built.count != 1 else ''}, {built.verified} verified")
