"""The HTML report in a real browser: it draws, asks nothing of the network, and can be used by keyboard."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro.core import registry
from repro.suite.model import Trial
from tests.browser.pages import opened
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


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Any]:
    """A separate page for each test that modifies it."""
    with opened(browser, report, drawn=True) as page:
        yield page


@pytest.fixture(scope="module")
def shared(browser: Any, report: Path) -> Iterator[Any]:
    """One page for all tests that only look at it: drawing it takes longer than they do."""
    with opened(browser, report, drawn=True) as page:
        yield page


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scaling") / "run"
    record = make_record(root, SCALING, scaling_course)
    return Path(registry.load("reporter", "html")().write(record, root / "report")[0])


LINES = """(index) => document.querySelectorAll("#curves .chart")[index].data
  .filter((trace) => trace.visible !== false && trace.uid.startsWith("trial-")).length"""


def show_trials(visit: Any) -> None:
    """Switch the lines of single trials on."""
    button = visit.locator(".legend [data-layer='trial']")
    if button.get_attribute("aria-pressed") == "false":
        button.click()


def drawn(visit: Any, index: int = 0) -> int:
    """Traces that a figure against a clock is to show."""
    script = "(index) => document.querySelectorAll('#curves .chart')[index].data.filter((one) => one.visible !== false)"
    return len(visit.evaluate(script, index))


def test_no_figure_offers_to_send_its_data_anywhere(shared: Any) -> None:
    """plotly.js 4 has a button for its maker's cloud unless it is disabled."""
    buttons = shared.locator(".modebar-btn")
    assert buttons.count() > 0
    titles = buttons.evaluate_all("all => all.map((one) => one.dataset.title || one.getAttribute('aria-label') || '')")
    assert [title for title in titles if "cloud" in title.lower() or "share" in title.lower()] == []
    told = "[...document.querySelectorAll('.chart .main-svg')].map((one) => one.closest('.js-plotly-plot')._context)"
    settings = shared.evaluate(f"{told}.map((one) => `${{one.showSendToCloud}} ${{one.plotlyServerURL}}`)")
    assert set(settings) == {"false "}


def test_every_figure_is_drawn_with_a_line_a_trial(visit: Any) -> None:
    charts = visit.locator("#curves .chart")
    assert charts.count() == 4
    for index in range(4):
        assert visit.evaluate(LINES, index) == 0, "single trials on demand"
        assert visit.evaluate(LINES.replace("trial-", "median-"), index) == 4
    visit.locator(".legend [data-layer='trial']").click()
    for index in range(4):
        assert charts.nth(index).locator(".trace").count() == drawn(visit, index)
        assert visit.evaluate(LINES, index) == 24
        assert charts.nth(index).locator("svg.main-svg").first.bounding_box()["width"] > 300


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), pytest.param(390, "dark", marks=pytest.mark.slow)])
def test_scaling_draws_every_line_and_bound(
    browser: Any, scaling: Path, width: int, scheme: str
) -> None:
    with opened(browser, scaling, width=width, scheme=scheme, drawn=True) as page:
        charts = page.locator("#scaling .chart")
        assert charts.count() == 11
        # Of two algorithms: every trial, three bounds, the median; then a line each, and the ideal one.
        assert charts.nth(0).locator(".trace").count() == 10
        assert [charts.nth(index).locator(".trace").count() for index in (1, 2, 3)] == [2, 2, 3]
        assert charts.nth(0).locator(".js-line").count() == 8
        for index in range(11):
            assert charts.nth(index).locator("svg.main-svg").first.bounding_box()["width"] > 250
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_legend_hides_and_shows_a_cell_by_keyboard(shared: Any) -> None:
    show_trials(shared)
    button = shared.locator(".legend [data-cell='2']")
    button.focus()
    shared.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert shared.evaluate(LINES, 0) == 18
    assert shared.locator("#curves .chart").first.locator(".trace").count() == drawn(shared)
    shared.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert shared.evaluate(LINES, 0) == 24


def test_layers_hide_and_show(visit: Any) -> None:
    before = drawn(visit)
    visit.locator(".legend [data-layer='bracket']").click()
    assert drawn(visit) == before + 4
    visit.locator(".legend [data-layer='median']").click()
    assert drawn(visit) == before
    for pressed, lines in (("true", 24), ("false", 0)):
        visit.locator(".legend [data-layer='trial']").click()
        assert visit.evaluate(LINES, 0) == lines
        assert visit.locator(".legend [data-layer='trial']").get_attribute("aria-pressed") == pressed


def test_hover_shows_labels_as_text(shared: Any) -> None:
    show_trials(shared)
    script = """() => {
      const chart = document.querySelector("#curves .chart");
      const curveNumber = chart.data.findIndex((trace) => trace.uid.startsWith("trial-1-"));
      Plotly.Fx.hover(chart, [{curveNumber, pointNumber: 0}]);
    }"""
    shared.evaluate(script)
    hover = shared.locator(".hovertext").first
    assert "<script>alert(1)</script>" in hover.text_content()
    assert hover.locator("a").count() == 0


def test_hover_shows_a_large_count_without_an_exponent(shared: Any) -> None:
    show_trials(shared)
    script = """() => {
      const chart = document.querySelector("#curves .chart[data-chart$=samples]");
      const long = (trace) => trace.uid.startsWith("trial-") && Math.max(...trace.x) >= 1e4;
      const curveNumber = chart.data.findIndex(long);
      const pointNumber = chart.data[curveNumber].x.findIndex((value) => value >= 1e4);
      Plotly.Fx.hover(chart, [{curveNumber, pointNumber}]);
    }"""
    shared.locator("#curves .chart[data-chart$=samples]").scroll_into_view_if_needed()
    shared.wait_for_selector("#curves .chart[data-chart$=samples] .trace", state="attached")
    shared.evaluate(script)
    assert re.search(r"missed\d\d,\d{3} samples: ", shared.locator(".hovertext").last.text_content())


def test_focus_starts_at_the_skip_link_and_is_visible(visit: Any) -> None:
    visit.keyboard.press("Tab")
    focused = visit.evaluate("document.activeElement.className")
    assert focused == "skip"
    assert visit.locator(".skip").bounding_box()["x"] >= 0
    visit.keyboard.press("Tab")
    outline = visit.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("width", [390, *(pytest.param(width, marks=pytest.mark.slow) for width in (760, 1280, 1600))])
def test_the_body_never_scrolls_sideways(browser: Any, report: Path, width: int) -> None:
    with opened(browser, report, width=width, drawn=True) as page:
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def colors(visit: Any) -> tuple[str, str]:
    return (
        visit.evaluate("getComputedStyle(document.body).backgroundColor"),
        visit.evaluate("document.querySelector('#curves .chart').layout.paper_bgcolor"),
    )


def test_dark_scheme_changes_page_and_figures(visit: Any) -> None:
    light = colors(visit)
    visit.emulate_media(color_scheme="dark")
    visit.wait_for_timeout(300)
    dark = colors(visit)
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_paper_is_light(browser: Any, report: Path) -> None:
    with opened(browser, report, scheme="dark", drawn=True) as page:
        before = colors(page)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert colors(page)[1] == "#ffffff"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert colors(page) == before
