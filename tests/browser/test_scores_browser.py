"""Scores and tuning in a real browser: silent, as wide as the window, accessible; contenders can be hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import VIEWS, opened, serious
from tests.made_tuned import make_tuned
from tests.unit.reporters.parsed_page import render

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = make_tuned(tmp_path_factory.mktemp("tuned") / "run")
    render(record, record.folder.reports)
    return record.folder.reports / "report.html"


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_both_sections_open_in_silence_fit_and_are_accessible(
    browser: Any, place: Path, axe: str, width: int, scheme: str
) -> None:
    with opened(browser, place, width, scheme) as page:
        page.wait_for_selector("#scores .chart .trace", state="attached")
        assert page.locator("#tuning svg.parallel").count() == 4
        assert page.locator("#tuning .chart .trace").count() >= 4
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(page, axe, "{include: ['#scores', '#tuning']}") == []


def test_a_contender_and_the_bands_can_be_hidden(browser: Any, place: Path) -> None:
    with opened(browser, place) as page:
        page.wait_for_selector("#scores .chart .trace", state="attached")
        lines = page.locator("#scores .chart .trace")
        assert lines.count() == 4  # a line and a band each
        page.click('#scores [data-layer="profileband"]')
        page.wait_for_function("document.querySelectorAll('#scores .chart .trace').length === 2")
        page.click('#scores [data-cell="contender-0"]')
        page.wait_for_function("document.querySelectorAll('#scores .chart .trace').length === 1")
