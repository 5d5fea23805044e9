"""The gallery: its records are sound, and each page shows what its name promises."""

from __future__ import annotations

import importlib.util
import json
import re
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

from repro.bundle.verify import verify

GALLERY = Path(__file__).parents[3] / "docs/gallery"
SHOWN = {
    "settled": "settled at look 1 of 4", "same": "inside the margin of 10 % declared beforehand",
    "inconclusive": "Undecided between nesterov True and nesterov False",
    "missed": "in 0 of 8 trials, batch 64 in 8 of 8 trials",
    "factorial": "averaged over both levels of the other factor",
    "scaling": "4 processes, parameter-server (shards=1)",
    "published": "has the shortest time on resnet", "speedrun": "0.9594 \N{MULTIPLICATION SIGN} as long as",
    "several": "2 runs in 2 sections", "resumed": "1 further attempt",
}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    written = script("build").build(tmp_path_factory.mktemp("gallery"))
    return {path.stem: path.read_text(encoding="utf-8") for path in written}


def test_every_page_shows_what_its_name_promises(pages: dict[str, str]) -> None:
    assert list(pages) == list(SHOWN)
    for name, promised in SHOWN.items():
        words = " ".join(unescape(re.sub(r"<[^>]+>", " ", pages[name])).replace("\N{NO-BREAK SPACE}", " ").split())
        assert promised in words, name
        assert (GALLERY / f"{name}.png").stat().st_size > 20_000


@pytest.mark.parametrize("path", sorted((GALLERY / "records").glob("*.zip")), ids=lambda path: path.stem)
def test_its_records_are_sound(path: Path) -> None:
    found = verify(path)
    assert found.sound, found.text()


@pytest.mark.parametrize("path", sorted((GALLERY / "records").glob("*.zip")), ids=lambda path: path.stem)
def test_its_verdicts_and_figures_are_those_of_the_last_conversion(path: Path) -> None:
    convert = script("convert")
    stored = json.loads(convert.FIGURES.read_text(encoding="utf-8"))[path.stem]
    assert convert.differences(stored, convert.figures(path)) == []
