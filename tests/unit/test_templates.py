"""The page templates as source: readable lines, and no name of a missing section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "templates"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".j2", ".css", ".js"))
LONGEST = 160


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_line_is_longer_than_a_screen(path: Path) -> None:
    long = [f"{path.name}:{number}" for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > LONGEST]
    assert long == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_stays_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_every_included_template_exists_and_every_part_is_included() -> None:
    names = {path.name for path in FILES if path.suffix == ".j2"}
    named = re.compile(r'{% (?:include|from) "([^"]+)" (?:import [\w,\s]+)?%}')
    included = {name for path in FILES for name in named.findall(path.read_text())}
    assert included <= names
    pages = {"report.html.j2", "published.html.j2", "sections.html.j2", "board.html.j2", "comm.html.j2",
             "predict.html.j2", "display.html.j2"}
    assert names - included == pages
