"""The report as a reader uses it: figures as compare has them, sorting, filtering, links, accessibility, paper."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.published import view

from repro.compare.runs.runs import compare_runs
from repro.core import registry
from repro.published.importing import import_results as import_published
from repro.record.folder.store import read_record
from tests.browser.pages import VIEWS, opened, serious
from tests.records import SCALING, SUITE, make_record, scaling_course
from tests.unit.reporters.parsed_page import uneven


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables") / "run"
    record = make_record(root, SUITE, uneven)
    registry.load("reporter", "html")().write(record, root / "report")
    return root


@pytest.fixture(scope="module")
def page(browser: Any, run: Path) -> Iterator[Any]:
    """One opened page for all that follows: loading it takes longer than a test."""
    with opened(browser, run / "report" / "report.html", drawn=True) as found:
        yield found


def test_tab_walks_through_the_page_in_its_order(page: Any) -> None:
    script = """() => { const at = document.activeElement; const box = at.getBoundingClientRect();
      return [at.tagName, box.top + scrollY]; }"""
    tops = []
    for _ in range(25):
        page.keyboard.press("Tab")
        tops.append(page.evaluate(script))
    assert all(tag != "BODY" for tag, _ in tops)
    places = [top for _, top in tops[1:]]
    assert all(later >= earlier - 60 for earlier, later in pairwise(places))


def test_figures_in_the_page_are_those_of_compare(page: Any, run: Path) -> None:
    script = """() => [...document.querySelectorAll("[data-compare]")].map((item) => [
      item.dataset.compare, item.closest("[data-metric]")?.dataset.metric ?? null, item.querySelector("data").value])"""
    shown = page.evaluate(script)
    wanted = {None: json.loads(json.dumps(compare_runs([run]).as_json()))}
    wanted["tta_wall"] = compare_runs([run], "tta_wall").as_json()
    for path, metric, value in shown:
        found: Any = wanted[metric]
        for key in path.split("."):
            found = found[int(key)] if key.isdigit() else found[key]
        assert float(value) == found, path
    paths = {path for path, _, _ in shown}
    for index, item in enumerate(wanted[None]["comparisons"]):
        for field in ("ratio", "speedup", "p", "p_adjusted", "log_rank_p"):
            assert (f"comparisons.{index}.{field}" in paths) == (item[field] is not None), (index, field)
        assert (f"comparisons.{index}.split.samples.value" in paths) == (item["split"] is not None)
        assert (f"comparisons.{index}.restricted.ratio" in paths) == (item["restricted"] is not None)
    for index, item in enumerate(wanted["tta_wall"]["cells"]):
        assert (f"cells.{index}.median" in paths) == (item["median"] is not None)
        assert (f"cells.{index}.restricted.value" in paths) == (item["restricted"] is not None)
    assert len(paths) > 60


def test_verdicts_in_the_page_are_those_of_compare(page: Any, run: Path) -> None:
    text = page.locator("#verdicts").text_content().replace("\N{NO-BREAK SPACE}", " ")
    words = " ".join(text.split())
    found = compare_runs([run]).as_json()["comparisons"]
    shown = page.locator("#verdicts [data-index] .badge, #verdicts [data-index].headline .badge").all_text_contents()
    assert shown == [item["verdict"] for item in found]
    for item in found:
        assert item["because"] in words and item["settles"] in words
        assert all(text[1:] in words for text in item["cautions"])


def column(page: Any, table: str, index: int) -> list[str]:
    script = f"""() => [...document.querySelectorAll("{table} tbody tr")].filter((row) => !row.hidden)
      .map((row) => row.cells[{index}].innerText.trim())"""
    return list(page.evaluate(script))


@pytest.fixture
def trials(page: Any) -> Any:
    """The page with its trials unfolded."""
    page.evaluate("document.querySelectorAll('#attempts details').forEach((part) => { part.open = true; })")
    return page


@pytest.mark.usefixtures("trials")
def test_a_table_is_sorted_by_keyboard_and_says_so(page: Any) -> None:
    table = "table[data-filter=trials]"
    button = page.locator(f"{table} th:nth-child(5) button.sort")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator(f"{table} th:nth-child(5)").get_attribute("aria-sort") == "ascending"
    shown = column(page, table, 4)
    figures = [float(text.split()[0]) for text in shown if text != "-"]
    assert figures == sorted(figures) and shown[-3:] == ["-"] * 3
    page.keyboard.press("Space")
    assert page.locator(f"{table} th:nth-child(5)").get_attribute("aria-sort") == "descending"
    shown = column(page, table, 4)
    assert shown[-3:] == ["-"] * 3
    assert [float(text.split()[0]) for text in shown[:-3]] == sorted(figures, reverse=True)
    assert "descending" in page.locator(".live").inner_text()


def test_an_unknown_value_with_its_reason_stays_at_the_end(page: Any) -> None:
    table = "table[data-filter=cells]"
    for direction in ("ascending", "descending"):
        page.locator(f"{table} th:nth-child(4) button.sort").click()
        assert page.locator(f"{table} th:nth-child(4)").get_attribute("aria-sort") == direction
        unknown = [text.startswith("-") for text in column(page, table, 3)]
        assert unknown == sorted(unknown) and 0 < sum(unknown) < len(unknown)


@pytest.mark.usefixtures("trials")
def test_a_table_is_filtered_by_keyboard(page: Any) -> None:
    table = "table[data-filter=trials]"
    field = page.get_by_label("Show only trials with")
    field.focus()
    page.keyboard.type("MISSED")
    assert len(column(page, table, 0)) == 3
    assert "3 of 24" in page.locator(".filter", has=field).inner_text()
    field.fill("")
    assert len(column(page, table, 0)) == 24


def test_a_figure_leads_to_its_trials_and_each_to_its_log(page: Any, run: Path) -> None:
    link = page.locator("#cell-2 a.of").first
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**#trials-of-2")
    page.locator("input:focus").and_(page.get_by_label("Show only trials with")).wait_for()
    assert page.get_by_label("Show only trials with").input_value() == "cell:2"
    rows = page.locator("table[data-filter=trials] tbody tr:visible")
    assert rows.count() == 6
    for index in range(6):
        assert rows.nth(index).get_attribute("data-cell") == "2"
        href = rows.nth(index).get_by_text("log", exact=True).get_attribute("href")
        assert (run / "report" / href).resolve().is_file()
    # A link to a trial that the filter hides brings it back.
    page.locator("#trials-of-3 a[href^='#ddp'], #trials-of-3 a[href^='#deepspeed']").first.click()
    page.locator("table[data-filter=trials] tr:target").wait_for(state="visible")


def test_every_inner_link_leads_to_something_that_shows(page: Any) -> None:
    script = """() => [...document.querySelectorAll('a[href^="#"]')].map((link) => link.getAttribute("href"))
      .filter((href) => !document.getElementById(decodeURIComponent(href.slice(1))))"""
    assert page.evaluate(script) == []


@pytest.fixture(scope="module")
def many_cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of 12 cells on emulated links, by two algorithms: long tables, folded parts, every figure of scaling."""
    root = tmp_path_factory.mktemp("many") / "run"
    record = make_record(root, SCALING, scaling_course)
    return Path(registry.load("reporter", "html")().write(record, root / "report")[0])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, run: Path) -> Path:
    """Both rounds and DAWNBench, together with a run of this harness."""
    data = Path(os.environ.get("REPRO_SHARED_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
    if not data.is_dir():
        pytest.skip(f"no published results at {data}")
    root = tmp_path_factory.mktemp("published")
    imports = [import_published(program, data / program, root / program) for program in ("mlperf", "dawnbench")]
    return Path(view.write(imports, [read_record(run)], root / "page")[0])


@pytest.fixture
def file(request: pytest.FixtureRequest, run: Path) -> Path:
    """The page that a test's parameter names."""
    return run / "report" / "report.html" if request.param == "run" else Path(request.getfixturevalue(request.param))


PAGES = [pytest.param(name, width, scheme, id=f"{name}-{width}-{scheme}")
         for name in ("run", "many_cells", "published") for width, scheme in VIEWS]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "width", "scheme"), PAGES, indirect=["file"])
def test_axe_finds_nothing_serious(browser: Any, file: Path, axe: str, width: int, scheme: str) -> None:
    with opened(browser, file, width, scheme, drawn=True) as page:
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(SHUT) == []
        assert serious(page, axe) == []


@pytest.mark.slow
def test_what_is_folded_is_not_printed_and_all_is_on_demand(browser: Any, run: Path, tmp_path: Path) -> None:
    with opened(browser, run / "report" / "report.html", scheme="dark", drawn=True) as page:
        page.pdf(path=str(tmp_path / "short.pdf"), prefer_css_page_size=True, print_background=True)
        short = len(re.findall(rb"/Type /Page\b", (tmp_path / "short.pdf").read_bytes()))
        page.get_by_role("button", name="Expand all").click()
        page.pdf(path=str(tmp_path / "report.pdf"), prefer_css_page_size=True, print_background=True)
        page.emulate_media(media="print")
        assert page.locator(".filter:visible").count() == 0
        assert page.locator(".skip:visible").count() == 0
        # A4 less its margins, upright; lying for the trials.
        wide = [text for width, lying in ((703, False), (1032, True)) for text in beyond(page, width, lying)]
    assert wide == []
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(re.findall(rb"/Type /Page\b", data)) >= 6
    assert short <= 2, "the answer, cells, scaling and curves"


def beyond(page: Any, width: int, lying: bool) -> list[str]:
    """Tables and figures that are wider than paper of `width` pixels, with their content that overflows."""
    page.set_viewport_size({"width": width, "height": 900})
    script = """([width, lying]) => [...document.querySelectorAll("main table, main figure, main pre, main .forest")]
      .filter((part) => (getComputedStyle(part.closest("section")).page === "wide") === lying)
      .filter((part) => Math.max(part.getBoundingClientRect().right, part.getBoundingClientRect().left
        + (part.tagName === "TABLE" ? 0 : part.scrollWidth)) > width + 1)
      .map((part) => `${part.closest("section").id}: ${part.tagName} ${part.getBoundingClientRect().right}`)"""
    late = time.monotonic() + 60  # charts are drawn again some time after a window changes
    while (found := list(page.evaluate(script, [width, lying]))) and time.monotonic() < late:
        page.wait_for_timeout(100)
    return found


SHUT = """() => [...document.querySelectorAll("table")].filter((table) => table.tBodies[0].rows.length
    && table.checkVisibility()
    && [...table.tBodies[0].rows].some((row) => !row.hidden && row.getBoundingClientRect().height < 8)
    || table.getBoundingClientRect().height + 1 < table.tBodies[0].getBoundingClientRect().height)
  .map((table) => table.className)"""
"""Tables that do not show rows they hold."""


@pytest.mark.slow
@pytest.mark.parametrize("file", ["run", "many_cells", "published"], indirect=True)
def test_paper_holds_everything_and_nothing_runs_out_of_it(browser: Any, file: Path) -> None:
    with opened(browser, file, drawn=True) as page:
        page.get_by_role("button", name="Expand all").click()
        before = page.evaluate("document.querySelector('main').textContent.length")
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open]):not(.huge)").count() == 0
        assert page.locator("thead button").count() == 0  # Chromium omits buttons if it repeats a header
        assert page.evaluate(SHUT) == []
        flows = "[...document.querySelectorAll('.scroll')].map((item) => getComputedStyle(item).overflowY)"
        assert set(page.evaluate(flows)) == {"visible"}
        assert beyond(page, 703, False) + beyond(page, 1032, True) == []
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert abs(page.evaluate("document.querySelector('main').textContent.length") - before) < before // 100


@pytest.mark.usefixtures("trials")
def test_a_long_table_scrolls_in_its_frame_until_it_is_opened(page: Any) -> None:
    page.get_by_label("Show only trials with").fill("")
    frame = page.locator(".scroll.tall", has=page.locator("table[data-filter=trials]"))
    assert frame.evaluate("item => item.scrollHeight > item.clientHeight")
    button = frame.locator("xpath=following-sibling::button[1]")
    assert button.inner_text() == "Show all 24 rows"
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert frame.evaluate("item => item.scrollHeight <= item.clientHeight + 1")
    page.keyboard.press("Enter")
    assert frame.evaluate("item => item.scrollHeight > item.clientHeight")


@pytest.mark.slow
def test_everything_is_unfolded_by_one_button_and_folded_again(page: Any) -> None:
    for _ in range(2):  # other tests have opened some
        page.get_by_role("button", name="Expand all").click()
    folded = page.locator("details:not([open])").count()
    assert folded
    page.get_by_role("button", name="Expand all").click()
    assert page.locator("details:not([open])").count() == 0
    page.get_by_role("button", name="Expand all").click()
    assert page.locator("details:not([open])").count() == folded


def test_every_control_shows_that_it_has_the_focus(page: Any) -> None:
    script = """() => { const at = document.activeElement; const style = getComputedStyle(at);
      return [at.outerHTML.slice(0, 80), style.outlineStyle, parseFloat(style.outlineWidth)]; }"""
    page.evaluate("document.querySelector('.skip').focus()")  # wherever the tests before it have led
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        where, outline, width = page.evaluate(script)
        seen.add(where)
        assert outline == "solid" and width >= 2, where
    assert len(seen) > 25


@pytest.mark.usefixtures("trials")
def test_every_trial_leads_to_its_log_record_attempts_and_hashes(page: Any, run: Path) -> None:
    script = """() => [...document.querySelectorAll("table[data-filter=trials] tbody tr")].map((row) => ({
      id: row.id, links: [...row.querySelectorAll("th a")].map((link) => link.getAttribute("href")),
      hashes: [...row.querySelectorAll("abbr")].map((item) => item.title)}))"""
    rows = page.evaluate(script)
    assert len(rows) == 24
    for row in rows:
        folder, log, record, attempts = row["links"]
        result = json.loads((run / "report" / record).resolve().read_text())
        assert result["trial_id"] == row["id"]
        assert (run / "report" / folder).is_dir() and (run / "report" / log).is_file()
        assert page.locator(f"[id='{attempts[1:]}']").count() == 1
        assert sorted(text.split(": ")[1] for text in row["hashes"]) == sorted(result["hashes"].values())
