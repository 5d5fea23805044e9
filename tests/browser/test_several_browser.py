"""The page of several runs in a real browser: silent, figures there, as wide as its window, accessible, printable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from repro.compare.runs.merge import sections
from repro.core import registry
from tests.browser.pages import VIEWS, opened, serious
from tests.records import SUITE, make_record

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("several")
    long = SUITE.replace("title: A sample for tests", f"title: {'A title of many words ' * 20}{'x' * 300}")
    runs = [make_record(root / "one", long).folder.root,
            make_record(root / "two", SUITE.replace("lr: 0.1", "lr: 0.2"), only=9).folder.root]
    found = sections(runs, root / "out")
    return Path(registry.load("reporter", "html")().write_sections(found, root / "out")[0])


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_it_opens_in_silence_fits_and_is_accessible(
    browser: Any, place: Path, axe: str, width: int, scheme: str
) -> None:
    with opened(browser, place, width, scheme) as page:
        page.wait_for_load_state("load")
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 100)")
        assert page.evaluate("document.images.length") >= 5
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("""[...document.querySelectorAll('a[href^="#"]')]
            .every((link) => document.getElementById(link.getAttribute("href").slice(1)))""")
        assert serious(page, axe) == []


def test_it_prints(browser: Any, place: Path, tmp_path: Path) -> None:
    with opened(browser, place, scheme="dark") as page:
        page.pdf(path=str(tmp_path / "several.pdf"), prefer_css_page_size=True, print_background=True)
    data = (tmp_path / "several.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(re.findall(rb"/Type /Page\b", data)) >= 3
