"""The page of published results in a real browser: drawn near the window, sorted, filtered, silent, quick."""

from __future__ import annotations

from pathlib import Path

import pytest
from repro.reporters.published import view

from repro.published.importing import import_results
from repro.published.store import Published, read_published
from tests.browser.pages import opened
from tests.unit.published.made_logs import log_lines, repository
from tests.unit.published.made_speedruns import arm, runs, scaled

SYSTEMS, RUNS = 30, 5


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("published")
    for index in range(SYSTEMS):
        texts = {f"result_{at}.txt": "".join(log_lines(
            seconds=60 * (1 + (7 * index) % SYSTEMS) + at, seed=at, batch=256 << index % 8,
            values=[0.01 * step for step in range(77)])) for at in range(RUNS - (index == 3))}
        repository(root / "in", texts, system=f"box{index:02d}", round_name=f"training_v{3 + index % 2}.0")
    import_results("mlperf", root / "in", root / "out")
    return read_published(root / "out")


@pytest.fixture(scope="module")
def page_file(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(view.write([published], [], tmp_path_factory.mktemp("page"))[0])


def test_opens_sorts_filters_and_draws(browser: object, page_file: Path, published: Published) -> None:
    with opened(browser, page_file) as page:
        table = page.locator("#i1-g2 table.scores")
        scores = {cell.cell_id: cell.score.minutes for cell in published.record.cells}
        rows = table.locator("tbody tr")
        for index in range(rows.count()):
            shown = float(rows.nth(index).locator("data").first.get_attribute("value"))
            assert shown == scores[rows.nth(index).get_attribute("id").removeprefix("c-")]

        button = table.locator("thead th").nth(2).locator("button")
        button.focus()
        found = {}
        for order in ("ascending", "descending"):
            page.keyboard.press("Enter")
            assert table.locator("thead th").nth(2).get_attribute("aria-sort") == order
            found[order] = table.locator("tbody tr td:nth-child(3) data").evaluate_all("all => all.map(x => +x.value)")
        assert found["ascending"] == sorted(found["ascending"]) == found["descending"][::-1]

        page.fill("#filter", "box03")
        assert page.locator("#filtered").inner_text() == f"1 of {SYSTEMS} systems"
        assert page.locator("table.scores tbody tr:visible").count() == 1
        page.fill("#filter", "")

        link = table.locator("tbody tr").first.locator("td:nth-child(5) a")
        number = link.get_attribute("href").rsplit("-", 1)[1]
        link.click()
        page.locator("input:focus").wait_for()
        runs = page.locator("table.runs tbody tr:visible")
        assert runs.count() == RUNS and set(runs.evaluate_all("all => all.map((row) => row.dataset.cell)")) == {number}
        back = runs.first.locator("td a").first.get_attribute("href")
        assert table.locator(f"[id='{back[1:]}']").count() == 1

        charts = page.locator(".chart")
        assert charts.count() == 3
        for index in range(charts.count()):
            charts.nth(index).scroll_into_view_if_needed()
            charts.nth(index).locator(".trace").first.wait_for(state="attached")
        assert page.locator("#i1-g1 .chart .trace").count() == SYSTEMS // 2


@pytest.fixture(scope="module")
def contest_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("contest")
    for month in range(1, 10):
        for name, factor in (("baseline", 1.0), ("this_pr", 0.98)):
            arm(root / "in" / f"2025-0{month}-01_A_record_with_a_long_name" / name,
                runs(times=scaled(factor * 0.9**month), program=f"record {month}\n"))
    import_results("speedrun", root / "in", root / "out")
    return Path(view.write([read_published(root / "out")], [], root)[0])


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_contest_is_drawn_and_never_scrolls_sideways(
    browser: object, contest_file: Path, width: int, scheme: str
) -> None:
    with opened(browser, contest_file, width, scheme) as page:
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        chart = page.locator("#i1-contest .chart")
        chart.scroll_into_view_if_needed()
        chart.locator(".point").first.wait_for(state="attached")
        assert chart.locator(".point").count() == 9
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('#i1-contest .chart').scrollWidth") <= width
        page.fill("#filter", "2025-03 this_pr")
        assert page.locator("#filtered").inner_text() == "1 of 18 systems"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_never_scrolls_sideways_and_follows_the_scheme(
    browser: object, page_file: Path, width: int, scheme: str
) -> None:
    with opened(browser, page_file, width, scheme) as page:
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        chart = page.locator(".chart").first
        chart.scroll_into_view_if_needed()
        chart.locator(".trace").first.wait_for(state="attached")
        expected = "#181d24" if scheme == "dark" else "#ffffff"
        assert chart.evaluate("box => box.layout.paper_bgcolor") == expected
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".chart .main-svg").count() >= 3
        assert chart.evaluate("box => box.layout.paper_bgcolor") == "#ffffff"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert chart.evaluate("box => box.layout.paper_bgcolor") == expected
