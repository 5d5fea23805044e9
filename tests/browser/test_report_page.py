"""The HTML report in a real browser: it draws, asks nothing of the network, and can be used by keyboard."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.core import registry
from repro.suite.model import Trial
from tests.records import SCALING, SUITE, Course, make_record, scaling_course


def course(trial: Trial) -> Course:
    """Some spread, two misses and a crash."""
    spread = random.Random(f"{trial.cell_id} {trial.repeat}").lognormvariate(0, 0.1)
    misses = trial.repeat in (1, 2) and trial.choices.processes == 1
    return Course(0.01 * spread, hits_at=None if misses else 4, crash=trial.repeat == 5)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser") / "run"
    record = make_record(root, SUITE, course)
    label = '<script>alert(1)</script> <a href="https://example.org/">x</a> %{x} ' + "l" * 90
    cells = (record.plan.cells[0].model_copy(update={"label": label}), *record.plan.cells[1:])
    record = dataclasses.replace(record, plan=record.plan.model_copy(update={"cells": cells}))
    return Path(registry.load("reporter", "html")().write(record, root / "report")[0])


class Visit:
    """One opened page with its errors and requests."""

    def __init__(self, browser: object, report: Path, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[attr-defined]
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri())
        self.page.wait_for_selector(".chart .trace", state="attached")


@pytest.fixture
def visit(browser: object, report: Path) -> Iterator[Visit]:
    """A separate page for each test that modifies it."""
    opened = Visit(browser, report)
    yield opened
    opened.page.close()


@pytest.fixture(scope="module")
def shared(browser: object, report: Path) -> Iterator[Visit]:
    """One page for all tests that only look at it: drawing it takes longer than they do."""
    opened = Visit(browser, report)
    yield opened
    opened.page.close()


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scaling") / "run"
    record = make_record(root, SCALING, scaling_course)
    return Path(registry.load("reporter", "html")().write(record, root / "report")[0])


def test_no_complaint_and_no_request(shared: Visit, report: Path) -> None:
    shared.page.locator(".chart").first.hover()
    shared.page.wait_for_timeout(300)
    assert shared.complaints == []
    assert [url for url in shared.requests if not url.startswith(("data:", "blob:"))] == [report.as_uri()]


LINES = """(index) => document.querySelectorAll("#curves .chart")[index].data
  .filter((trace) => trace.visible !== false && trace.uid.startsWith("trial-")).length"""


def show_trials(visit: Visit) -> None:
    """Switch the lines of single trials on."""
    button = visit.page.locator(".legend [data-layer='trial']")
    if button.get_attribute("aria-pressed") == "false":
        button.click()


def drawn(visit: Visit, index: int = 0) -> int:
    """Traces that a figure against a clock is to show."""
    script = "(index) => document.querySelectorAll('#curves .chart')[index].data.filter((one) => one.visible !== false)"
    return len(visit.page.evaluate(script, index))


def test_no_figure_offers_to_send_its_data_anywhere(shared: Visit) -> None:
    """plotly.js 4 has a button for its maker's cloud unless it is disabled."""
    buttons = shared.page.locator(".modebar-btn")
    assert buttons.count() > 0
    titles = buttons.evaluate_all("all => all.map((one) => one.dataset.title || one.getAttribute('aria-label') || '')")
    assert [title for title in titles if "cloud" in title.lower() or "share" in title.lower()] == []
    told = "[...document.querySelectorAll('.chart .main-svg')].map((one) => one.closest('.js-plotly-plot')._context)"
    settings = shared.page.evaluate(f"{told}.map((one) => `${{one.showSendToCloud}} ${{one.plotlyServerURL}}`)")
    assert set(settings) == {"false "}


def test_every_figure_is_drawn_with_a_line_a_trial(visit: Visit) -> None:
    charts = visit.page.locator("#curves .chart")
    assert charts.count() == 4
    for index in range(4):
        assert visit.page.evaluate(LINES, index) == 0, "single trials on demand"
        assert visit.page.evaluate(LINES.replace("trial-", "median-"), index) == 4
    visit.page.locator(".legend [data-layer='trial']").click()
    for index in range(4):
        assert charts.nth(index).locator(".trace").count() == drawn(visit, index)
        assert visit.page.evaluate(LINES, index) == 24
        assert charts.nth(index).locator("svg.main-svg").first.bounding_box()["width"] > 300


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_scaling_draws_every_line_and_bound(
    browser: object, scaling: Path, width: int, scheme: str
) -> None:
    opened = Visit(browser, scaling, width=width, scheme=scheme)
    try:
        charts = opened.page.locator("#scaling .chart")
        assert charts.count() == 11
        # Of two algorithms: every trial, three bounds, the median; then a line each, and the ideal one.
        assert charts.nth(0).locator(".trace").count() == 10
        assert [charts.nth(index).locator(".trace").count() for index in (1, 2, 3)] == [2, 2, 3]
        assert charts.nth(0).locator(".js-line").count() == 8
        for index in range(11):
            assert charts.nth(index).locator("svg.main-svg").first.bounding_box()["width"] > 250
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.complaints == []
    finally:
        opened.page.close()


def test_legend_hides_and_shows_a_cell_by_keyboard(shared: Visit) -> None:
    show_trials(shared)
    button = shared.page.locator(".legend [data-cell='2']")
    button.focus()
    shared.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert shared.page.evaluate(LINES, 0) == 18
    assert shared.page.locator("#curves .chart").first.locator(".trace").count() == drawn(shared)
    shared.page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert shared.page.evaluate(LINES, 0) == 24


def test_layers_hide_and_show(visit: Visit) -> None:
    before = drawn(visit)
    visit.page.locator(".legend [data-layer='bracket']").click()
    assert drawn(visit) == before + 4
    visit.page.locator(".legend [data-layer='median']").click()
    assert drawn(visit) == before
    for pressed, lines in (("true", 24), ("false", 0)):
        visit.page.locator(".legend [data-layer='trial']").click()
        assert visit.page.evaluate(LINES, 0) == lines
        assert visit.page.locator(".legend [data-layer='trial']").get_attribute("aria-pressed") == pressed


def test_hover_shows_labels_as_text(shared: Visit) -> None:
    show_trials(shared)
    script = """() => {
      const chart = document.querySelector("#curves .chart");
      const curveNumber = chart.data.findIndex((trace) => trace.uid.startsWith("trial-1-"));
      Plotly.Fx.hover(chart, [{curveNumber, pointNumber: 0}]);
    }"""
    shared.page.evaluate(script)
    hover = shared.page.locator(".hovertext").first
    assert "<script>alert(1)</script>" in hover.text_content()
    assert hover.locator("a").count() == 0
    assert shared.complaints == []


def test_focus_starts_at_the_skip_link_and_is_visible(visit: Visit) -> None:
    visit.page.keyboard.press("Tab")
    focused = visit.page.evaluate("document.activeElement.className")
    assert focused == "skip"
    assert visit.page.locator(".skip").bounding_box()["x"] >= 0
    visit.page.keyboard.press("Tab")
    outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("width", [390, 1600, *(pytest.param(width, marks=pytest.mark.slow) for width in (760, 1280))])
def test_the_body_never_scrolls_sideways(browser: object, report: Path, width: int) -> None:
    opened = Visit(browser, report, width=width)
    try:
        opened.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        opened.page.close()


def colors(visit: Visit) -> tuple[str, str]:
    return (
        visit.page.evaluate("getComputedStyle(document.body).backgroundColor"),
        visit.page.evaluate("document.querySelector('#curves .chart').layout.paper_bgcolor"),
    )


def test_dark_scheme_changes_page_and_figures(visit: Visit) -> None:
    light = colors(visit)
    visit.page.emulate_media(color_scheme="dark")
    visit.page.wait_for_timeout(300)
    dark = colors(visit)
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_paper_is_light(browser: object, report: Path) -> None:
    opened = Visit(browser, report, scheme="dark")
    try:
        before = colors(opened)
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert colors(opened)[1] == "#ffffff"
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert colors(opened) == before
    finally:
        opened.page.close()
