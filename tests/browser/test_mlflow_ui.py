"""MLflow's own pages, from a real server in a real browser: the experiment, its figures, two cells compared."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import repro
from repro.compare import compare, summarize
from repro.core import registry
from repro.record.folder.store import Record
from tests.commands import environment
from tests.records import SUITE, make_record
from tests.tracking_server import serving

pytest.importorskip("mlflow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # MLflow's and SQLAlchemy's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # MLflow keeps its database connections open
]
ROOT = Path(repro.__file__).parents[1]
HOSTILE = '<script>alert(1)</script> <img src=x onerror="alert(2)"> \u202etxet " </script>'
WAIT = 60_000
"""Milliseconds: MLflow's pages load slowly where others work too."""


@dataclass(frozen=True)
class Site:
    """A server with two experiments, and the record that was sent to the first."""

    url: str
    database: Path
    record: Record
    hostile: Record


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder) as server:
        url = server.uri
        record = sent(folder / "run", SUITE.replace("seeds: 6", "seeds: 3"), url)
        nasty = SUITE.replace("suite: sample", "suite: hostile").replace("seeds: 6", "seeds: 1").replace(
            "title: A sample for tests", f"title: {json.dumps(HOSTILE)}").replace("processes: [1, 2]", "processes: [2]")
        hostile = sent(folder / "hostile", nasty, url, label=HOSTILE + "l" * 10_000)
        yield Site(url, server.database, record, hostile)


def sent(root: Path, suite: str, url: str, label: str = "") -> Record:
    """A record and its report, sent; `label`: the name of the first cell."""
    import dataclasses

    record = make_record(root, suite)
    if label:
        first, *rest = record.plan.cells
        plan = record.plan.model_copy(update={"cells": (first.model_copy(update={"label": label}), *rest)})
        record = dataclasses.replace(record, plan=plan)
    registry.load("reporter", "html")().write(record, record.folder.reports)
    registry.load("reporter", "mlflow")(tracking_uri=url, ended=True, timeout_seconds=60).write(
        record, record.folder.reports)
    return record


@dataclass
class Visit:
    """One page, and what it asked of others or opened unasked."""

    page: Any
    outside: list[str]
    alerts: list[str]


@pytest.fixture
def visit(browser: Any, site: Site) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": 1600, "height": 1400})
    page.set_default_timeout(WAIT)
    found = Visit(page, [], [])
    page.on("request", lambda asked: found.outside.append(asked.url) if _outside(asked.url) else None)
    page.on("dialog", lambda box: (found.alerts.append(box.message), box.dismiss()))
    yield found
    page.close()


def _outside(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and parts.hostname != "127.0.0.1"


def experiment(site: Site, name: str) -> str:
    from mlflow import MlflowClient

    found = MlflowClient(site.url).get_experiment_by_name(name)
    assert found is not None
    return str(found.experiment_id)


def cell_runs(site: Site, name: str) -> dict[str, Any]:
    """Runs of cells by cell id."""
    from mlflow import MlflowClient

    runs = MlflowClient(site.url).search_runs([experiment(site, name)], "tags.`repro.level` = 'cell'")
    return {run.data.tags["repro.cell"]: run for run in runs}


VALUES = """(metric) => {
  const links = [...document.querySelectorAll("a[title='Plot chart']")];
  const name = links.find((link) => link.textContent.trim() === metric);
  const line = name.closest("div[style*='top']");
  for (let box = line; box; box = box.parentElement) {
    const found = [...box.querySelectorAll("div[style*='top']")].filter((cell) => cell.style.top === line.style.top
      && cell.style.height === line.style.height && cell.childElementCount <= 2);
    if (found.length > 2) return found.map((cell) => cell.textContent.trim()).filter((text) => text !== metric);
  }
}"""
"""Return the row of one metric in the table, a grid of positioned boxes."""


def test_two_engines_compared(site: Site, visit: Visit, tmp_path: Path) -> None:
    """The steps of a user: open the experiment, select the cells, press Compare."""
    page, record = visit.page, site.record
    comparison = next(item for item in compare(record.plan, record.results) if item.primary)
    names = [comparison.baseline_label, comparison.candidate_label]
    place, = registry.load("reporter", "mlflow")(tracking_uri=site.url).write(record, record.folder.reports)
    page.goto(place)
    page.wait_for_selector(".ag-row")
    for name in names:
        page.locator(".ag-row", has_text=name).first.locator("input[type=checkbox]").first.click(force=True)
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Comparing 2 Runs from 1 Experiment").wait_for()
    page.locator(".js-plotly-plot svg.main-svg").first.wait_for()
    chart = page.locator(".js-plotly-plot")
    assert chart.locator("svg.main-svg").first.bounding_box()["width"] > 300
    drawn = [text for text in chart.locator(".axis-title").all_text_contents() if text]
    assert drawn[:2] == ["Cell", "engine"]  # the distinguishing column comes first
    assert drawn[-1] == "answer/median_tta_wall"  # the declared clock, not the first name of the alphabet
    assert chart.locator(".y-axis, .axis").count() > 0
    page.get_by_role("switch").first.click()  # show diff only, of parameters
    rows = {cells[0]: cells[1:] for cells in _rows(page)}
    assert sorted(rows["engine"]) == ["ddp", comparison.candidate_label.partition(",")[0]]
    assert sorted(rows["Cell"]) == sorted(names)
    assert "optimizer.lr" not in rows and "processes" not in rows  # equal in both
    wanted = [record.cell(item) for item in (comparison.baseline, comparison.candidate)]
    medians = [summarize(cell, record.of_cell(cell.cell_id)).median_epochs for cell in wanted]
    shown = page.evaluate(VALUES, "median/epochs_to_target")
    assert [float(value) for value in shown] == [round(value or 0.0, 3) for value in medians]
    page.screenshot(path=tmp_path / "compare.png")
    assert (visit.outside, visit.alerts) == ([], [])


def _rows(page: Any) -> list[list[str]]:
    """Texts of every row of the page's tables."""
    return page.evaluate("""() => [...document.querySelectorAll("[role=row], tr")].map((row) =>
      [...row.querySelectorAll("[role=cell], [role=rowheader], td, th")].map((cell) => cell.textContent.trim()))
      .filter((cells) => cells.length > 2)""")


def test_cells_have_the_colours_of_the_page_and_figures_as_bars(site: Site, visit: Visit) -> None:
    page = visit.page
    page.goto(f"{site.url}/#/experiments/{experiment(site, 'sample')}/runs?workflowType=machine_learning"
              "&compareRunsMode=CHART")
    page.get_by_text("answer/quality", exact=True).first.wait_for()
    page.locator(".js-plotly-plot .bars path").first.wait_for()
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .bars')[0].querySelectorAll('path').length >= 4")
    groups = re.findall(r"\b(answer|contrast|interval|median|Model metrics)\s*\(\d+\)", page.inner_text("body"))
    assert groups[:2] == ["answer", "contrast"]  # the headline is first
    assert page.get_by_text("vs/", exact=False).count() == 0  # no separate section for every other baseline
    runs = cell_runs(site, "sample").values()
    assert len({run.data.tags["mlflow.runColor"] for run in runs}) == len(runs) == 4


HEADERS = """() => [...document.querySelectorAll(".ag-header-cell")].sort((one, other) =>
  one.getBoundingClientRect().x - other.getBoundingClientRect().x).map((cell) => cell.textContent.trim())"""


def test_the_table_of_runs_opens_with_verdicts_and_figures(site: Site, visit: Visit) -> None:
    page, record = visit.page, site.record
    place, = registry.load("reporter", "mlflow")(tracking_uri=site.url).write(record, record.folder.reports)
    page.set_viewport_size({"width": 2600, "height": 1000})
    page.goto(place)
    page.locator(".ag-row").nth(3).wait_for()
    page.get_by_text("A sample for tests.").first.wait_for()
    shown = [text for text in page.evaluate(HEADERS) if text]
    assert shown[:5] == ["Run Name", "Created", "Description", "repro.verdict", "answer/median_tta_wall"]
    assert shown[5:8] == ["answer/tta_wall", "answer/ratio", "answer/quality"]
    comparison = next(item for item in compare(record.plan, record.results) if item.primary)
    text = page.locator(".ag-root").text_content()
    assert f"{comparison.verdict.capitalize()}, {comparison.ratio:.3f} x the time" in text
    row = page.locator(".ag-row", has_text=f"4: {comparison.candidate_label}")
    row.locator("[col-id*='Run Name'] button").first.click()
    page.get_by_text("seed 0: ", exact=False).first.wait_for()  # the seed comes first: the rest of the name is cut
    assert "Reached the target in " in page.locator(".ag-root").text_content()
    assert visit.outside == []


@pytest.mark.parametrize("level", ["cell", "trial"])
def test_a_description_opens_the_report(site: Site, visit: Visit, level: str) -> None:
    from mlflow import MlflowClient

    page, number = visit.page, experiment(site, "sample")
    run = MlflowClient(site.url).search_runs([number], f"tags.`repro.level` = '{level}'")[0]
    page.goto(f"{site.url}/#/experiments/{number}/runs/{run.info.run_id}?workflowType=machine_learning")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="report of all cells").first.click()
    report = opened.value
    report.frame_locator("iframe").locator(".headline").first.wait_for(timeout=WAIT)
    assert report.get_by_text("report.html", exact=True).count() > 0
    report.close()
    assert visit.outside == []


def test_the_description_of_the_experiment_opens_the_report(site: Site, visit: Visit) -> None:
    page = visit.page
    page.goto(f"{site.url}/#/experiments/{experiment(site, 'sample')}/runs?workflowType=machine_learning")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Report of all cells").first.click()
    opened.value.frame_locator("iframe").locator(".headline").first.wait_for(timeout=WAIT)
    opened.value.close()
    assert visit.outside == []


def test_a_trial_shows_its_answer_and_its_curves_first(site: Site, visit: Visit) -> None:
    from mlflow import MlflowClient

    page, number = visit.page, experiment(site, "sample")
    run = MlflowClient(site.url).search_runs([number], "tags.`repro.level` = 'trial'")[0]
    place = f"{site.url}/#/experiments/{number}/runs/{run.info.run_id}"
    page.goto(f"{place}?workflowType=machine_learning")
    page.get_by_role("link", name="answer/tta_wall").wait_for()
    names = re.findall(r"^[a-z]+/[a-z_0-9]+$", page.inner_text("body"), flags=re.MULTILINE)
    assert names[0] == "answer/tta_wall"
    page.goto(f"{place}/model-metrics?workflowType=machine_learning")
    page.locator(".js-plotly-plot").first.wait_for()
    page.get_by_text(re.compile(r"^memory|^phase")).first.wait_for()
    groups = re.findall(r"([A-Za-z ]+)\s*\((\d+)\)", page.inner_text("body"))
    assert [name for name, _ in groups][:2] == ["answer", "curve"]
    assert dict(groups).get("Model metrics", "0") == "0"  # none without a group
    assert visit.outside == []


def test_the_report_is_drawn_inside_mlflow(site: Site, visit: Visit) -> None:
    page, first = visit.page, site.record.plan.cells[0]
    run = cell_runs(site, "sample")[first.cell_id]
    page.goto(f"{site.url}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/report.html")
    frame = page.frame_locator("iframe")
    frame.locator(".headline").first.wait_for()
    frame.locator("#curves svg.main-svg").first.wait_for()
    assert frame.locator("#curves .trace").count() > 0
    assert visit.outside == []


def test_hostile_names_stay_text(site: Site, visit: Visit) -> None:
    page, first = visit.page, site.hostile.plan.cells[0]
    run = cell_runs(site, "hostile")[first.cell_id]
    number = run.info.experiment_id
    for place in (f"experiments/{number}/runs?workflowType=machine_learning",
                  f"experiments/{number}/runs/{run.info.run_id}"):
        page.goto(f"{site.url}/#/{place}")
        page.get_by_text("<script>alert(1)</script>", exact=False).first.wait_for()
    page.goto(f"{site.url}/#/experiments/{number}/runs/{run.info.run_id}/artifacts/report.html")
    frame = page.frame_locator("iframe")
    frame.locator("svg.main-svg").first.wait_for()
    text = frame.locator("body").text_content() or ""
    assert "<script>alert(1)</script>" in text and "\u202e" not in text
    assert (visit.outside, visit.alerts) == ([], [])


def test_ui_opens_on_the_runs_of_the_experiment(site: Site, visit: Visit, tmp_path: Path) -> None:
    """`repro ui` on a store without a server starts one, and the address it prints shows that experiment's runs."""
    command = [sys.executable, "-m", "repro", "ui", "--experiment", "sample"]
    variables = environment() | {"MLFLOW_TRACKING_URI": f"sqlite:///{site.database}"}
    child = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
    try:
        assert child.stdout is not None
        url = child.stdout.readline().decode().split()[0]
        visit.page.goto(url)
        visit.page.wait_for_selector(".ag-row")
        assert visit.page.get_by_role("link", name="sample", exact=True).count() > 0
        text = visit.page.locator(".ag-root").text_content()
        for cell in site.record.plan.cells:
            assert cell.label in text
        assert visit.outside == []
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == 0
        child.stdout.close()
