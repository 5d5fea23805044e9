"""Scores and tuning on the page, in tables and papers: the figures of the command, labels, nothing where nothing is."""

from __future__ import annotations

import html
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from repro.reporters.paper.figures import draw, figures

from repro.core import registry
from repro.record.folder.store import Record
from repro.scores.scores import Scores, record_scores
from tests.in_process import succeeded
from tests.made_scores import SCORES, scores_course
from tests.made_tuned import make_tuned
from tests.records import SUITE, make_record
from tests.unit.reporters.parsed_page import Page, render

SCORED = re.compile(r'<span data-scores="([a-z_.0-9]+)"><data value="([^"]+)">')
parallel = importlib.import_module("repro.reporters.tuning.page").parallel


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("ranked") / "run", SCORES, scores_course)


@pytest.fixture(scope="module")
def text(ranked: Record, tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(ranked, tmp_path_factory.mktemp("page"))


def scores_json(record: Record) -> dict[str, Any]:
    ran = succeeded("scores", record.folder.root, "--json")
    found: dict[str, Any] = json.loads(ran.stdout)["scores"]
    return found


def test_figures_on_the_page_are_those_of_the_command(text: str, ranked: Record) -> None:
    wanted = scores_json(ranked)
    shown = SCORED.findall(html.unescape(text))
    assert len(shown) >= 3 * 4 + 8
    for path, value in shown:
        found: Any = wanted
        for key in path.split("."):
            found = found[int(key)] if key.isdigit() else found[key]
        assert float(value) == found, path


def test_the_chart_has_a_line_and_a_band_for_every_contender(text: str, ranked: Record) -> None:
    wanted = scores_json(ranked)
    (figure,) = [json.loads(content) for attrs, content in Page(text).scripts if attrs.get("id") == "scores-profiles"]
    lines = [trace for trace in figure["data"] if trace["uid"].startswith("profile-")]
    assert len(lines) == 3 and sum(trace["uid"].startswith("profileband-") for trace in figure["data"]) == 3
    for trace, item in zip(lines, wanted["contenders"], strict=True):
        for tau, share in zip(wanted["taus"], item["profile"], strict=True):
            at = max(place for place, x in enumerate(trace["x"]) if x <= tau * (1 + 1e-6))
            assert trace["y"][at] == pytest.approx(share)
    assert figure["layout"]["xaxis"]["type"] == "log"


def test_what_is_withheld_and_doubted_is_said(text: str) -> None:
    words = html.unescape(text)
    assert "it missed mnist1d (2 of 6 seeds reached it): infinite, so there is no geometric mean" in words
    assert "3 workloads: a ranking over so few depends on their choice" in words
    assert re.search(r'<h2 id="h-scores">Scores over workloads <span class="tag t-measured">', text)


def test_a_ranking_that_is_refused_gives_its_reason(tmp_path: Path) -> None:
    begun = make_record(tmp_path / "begun", SCORES, scores_course, only=2)
    page = render(begun, tmp_path)
    assert "Withheld:" in page and "no trial has run" in page


def test_simulated_figures_are_labelled(tmp_path: Path) -> None:
    record = make_record(tmp_path / "fake", SCORES.replace("engine: ddp", "engine: fake"), scores_course)
    page = render(record, tmp_path)
    assert re.search(r'<h2 id="h-scores">Scores over workloads <span class="tag t-simulated">', page)
    assert {item["origin"] for item in scores_json(record)["workloads"]} == {"simulated"}


@pytest.mark.slow
def test_papers_have_the_tables(ranked: Record, tmp_path: Path) -> None:
    for name in ("markdown", "latex", "csv"):
        registry.load("reporter", name)().write(ranked, tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert "## Scores over 3 workloads by the time to the target" in markdown and "missed (2/6)" in markdown
    assert "Scores over 3 workloads" in (tmp_path / "tables/scores.tex").read_text()
    wanted = scores_json(ranked)
    lines = (tmp_path / "csv" / "scores.csv").read_text().splitlines()
    assert len(lines) == 4 and repr(wanted["contenders"][0]["score"]["value"]) in lines[1]
    assert len((tmp_path / "csv" / "score_times.csv").read_text().splitlines()) == 10
    assert len((tmp_path / "csv" / "score_profiles.csv").read_text().splitlines()) == 1 + 3 * len(wanted["taus"])


# ---- the tuning


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_tuned(tmp_path_factory.mktemp("tuned") / "run")


def test_the_whole_search_is_drawn(tuned: Record, tmp_path: Path) -> None:
    page = render(tuned, tmp_path)
    assert page.count('<svg class="parallel"') == 4
    assert len(re.findall(r'<g class="(?:s\d|missed)[^"]*"><title>setting', page)) == 20
    assert len(re.findall(r'<g class="s0 best">', page)) == 4
    assert page.count("rank 5:") == 4


def test_lines_of_a_search_lie_where_their_values_are(tuned: Record) -> None:
    from repro.record.tuning import read_tuning

    found = read_tuning(tuned.folder.root)
    assert found is not None
    contender = found.contenders[0]
    drawn = parallel(contender, "tta_wall")
    assert [axis.name for axis in drawn.axes] == ["optimizer.lr", "optimizer.weight_decay", "time to the target"]
    assert len(drawn.settings) == 5 and drawn.settings[-1].style == "s0 best"
    by_rank = sorted(contender.settings, key=lambda item: -item.rank)
    heights = [item.segments[0][1] for item in drawn.settings]
    rates = [item.values["optimizer.lr"] for item in by_rank]
    order = sorted(range(5), key=lambda place: rates[place])
    assert [heights[place] for place in order] == sorted(heights, reverse=True)  # a larger rate lies higher
    ends = [item.segments[-1][3] for item in drawn.settings]
    for item, end in zip(by_rank, ends, strict=True):
        assert (end == 204.0) == (item.figure is None)
    assert min(ends) == ends[-1]


def test_the_best_so_far_is_cumulative(tuned: Record, tmp_path: Path) -> None:
    charts = {str(attrs["id"]): json.loads(content) for attrs, content in Page(render(tuned, tmp_path)).scripts
              if str(attrs.get("id", "")).startswith("tuning-")}
    assert sorted(charts) == ["tuning-0", "tuning-1"]
    for figure in charts.values():
        assert len(figure["data"]) == 2
        for trace in figure["data"]:
            assert trace["y"] == sorted(trace["y"], reverse=True) and trace["x"][-1] == 5


# ---- for print


def test_the_lines_are_the_profiles_and_the_bands_are_theirs(ranked: Record) -> None:
    found, drawn = record_scores(ranked), {item.name: item for item in figures(ranked)}
    assert isinstance(found, Scores) and "profiles" in drawn
    figure = Figure()
    drawn["profiles"].into(figure)
    (pane,) = figure.axes
    assert [line.get_label() for line in pane.get_lines()] == [item.name for item in found.contenders]
    for line, item in zip(pane.get_lines(), found.contenders, strict=True):
        assert tuple(line.get_ydata()) == item.profile and tuple(line.get_xdata()) == found.taus
        assert line.get_drawstyle() == "steps-post", "a share holds up to the next factor"
    assert len(pane.collections) == sum(bool(item.low) for item in found.contenders) == 3
    caption = drawn["profiles"].caption
    assert "over 3 workloads" in caption and "within no factor" in caption and "measured" in caption


def test_the_profiles_are_written_in_both_formats_and_twice_alike(ranked: Record, tmp_path: Path) -> None:
    wanted = [item for item in figures(ranked) if item.name == "profiles"]
    paths = draw(wanted, tmp_path / "a")
    assert [Path(path).name for path in paths] == ["profiles.pdf", "profiles.svg"]
    draw(wanted, tmp_path / "b")
    assert all(Path(path).read_bytes() == Path(path.replace("/a/", "/b/")).read_bytes() for path in paths)


def test_one_workload_has_no_profiles(tmp_path: Path) -> None:
    plain = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 1"))
    assert "profiles" not in [item.name for item in figures(plain)]
