"""A board in a real browser: silent, as wide as its window, accessible, filtered by keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import VIEWS, opened, serious
from tests.in_process import called, succeeded
from tests.unit.board.test_board import RECORDS, remade

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("board") / "site"
    succeeded("board", RECORDS, "--out", out)
    return out / "index.html"


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_it_opens_in_silence_fits_and_is_accessible(
    browser: Any, place: Path, axe: str, width: int, scheme: str,
) -> None:
    with opened(browser, place, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(page, axe) == []


def test_the_filters_work_by_keyboard_alone(browser: Any, place: Path) -> None:
    with opened(browser, place) as page:
        rows = page.locator("tr[data-words]")
        assert rows.count() == 11
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.name") == "words":
                break
        page.keyboard.type("gallery-several")
        assert page.locator("tr[data-words]:visible").count() == 2
        assert page.locator("#filtered").text_content() == "2 of 11 records"
        assert page.locator("section[data-group]:visible").count() == 1
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "suite"
        page.keyboard.type("quickstart")
        assert page.locator("tr[data-words]:visible").count() == 1
        page.locator("tr[data-words]:visible th a").click()
        page.wait_for_selector("#verdicts")


def test_without_scripts_every_record_is_there(browser: Any, place: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(place.as_uri())
    assert page.locator("tr[data-words]:visible").count() == 11 and not page.locator("#filters").is_visible()
    context.close()


def test_the_first_screen_says_what_is_here_and_what_was_answered(browser: Any, place: Path) -> None:
    with opened(browser, place) as page:
        answers = page.locator("li[data-of]")
        assert answers.count() == 10
        seen = [item.bounding_box()["y"] < 900 for item in answers.all()]
        assert all(seen)
        assert "fsdp takes" in answers.first.text_content()
        assert "11 records: 9 verified" in page.locator(".lead").text_content()
        answers.first.locator("a").first.click()
        page.wait_for_selector("#verdicts")


def test_versions_and_systems_are_filtered(browser: Any, tmp_path: Path) -> None:
    remade(RECORDS / "several-1.zip", tmp_path / "in/old.zip", repro_version="0.1.9", cpu="Other CPU")
    remade(RECORDS / "inconclusive.zip", tmp_path / "in/new.zip")
    done = called("board", tmp_path / "in", "--out", tmp_path / "site")
    assert "2 records, 2 verified" in done.output
    with opened(browser, tmp_path / "site/index.html") as page:
        rows, answers = page.locator("tr[data-words]:visible"), page.locator("li[data-of]:visible")
        systems = page.locator("select[name=system] option").all_text_contents()
        system = next(text for text in systems if "Other" in text)
        for field, value, left in (("version", "0.1.9", "old.zip"), ("version", "0.2.0", "new.zip"),
                                   ("system", system, "old.zip")):
            page.select_option(f"select[name={field}]", value)
            assert rows.count() == answers.count() == 1 and left in rows.first.text_content()
            assert page.locator("#filtered").text_content() == "1 of 2 records"
            page.select_option(f"select[name={field}]", "")
            assert rows.count() == answers.count() == 2
        page.select_option("select[name=version]", "0.2.0")
        page.select_option("select[name=system]", system)
        assert rows.count() == 0 and page.locator("#filtered").text_content() == "0 of 2 records"
