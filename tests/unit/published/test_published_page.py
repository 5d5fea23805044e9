"""The page of published results: its content, escaping, and the separation of other runs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from repro.reporters.published.charts import LEAST, POINTS_A_RUN, budget, thinned
from repro.reporters.published.view import render

from repro.core.errors import OutputError, UsageError
from repro.published.importing import import_results
from repro.published.record import PublishedPoint
from repro.published.store import Published, read_published
from tests.in_process import called, succeeded
from tests.records import SUITE, Course, make_record
from tests.unit.published.made_logs import entry, figures, logs, repository, row, three_systems


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return three_systems(tmp_path)


def test_every_score_is_exact_in_its_row(published: Published) -> None:
    page = render([published])
    for cell in published.record.cells:
        found = re.search(r'<data value="([^"]+)">', row(page, cell.cell_id))
        assert found and float(found[1]) == cell.score.minutes
        assert row(page, cell.cell_id).count("<circle") == cell.ok
        assert (">not valid<" in row(page, cell.cell_id)) is not cell.score.valid
        assert cell.score.reason in unescape(row(page, cell.cell_id))


def test_the_answer_is_the_lowest_valid_score_of_each_round(published: Published) -> None:
    page = render([published])
    answer = unescape(re.sub(r"<[^>]+>", "", page[page.index('id="h-answer"'):page.index('id="h-notices"')]))
    valid = [cell.factors["system"] for cell in published.record.cells if cell.score.valid]
    assert valid == ["quick", "slow"]  # four runs of `few` are too few
    assert re.search(r"quick \(submitted by Acme.*\)\s+has the shortest time on resnet, training_v4.0", answer)
    assert "No system has a valid score on resnet, training_v3.1" in answer


def test_every_run_and_refused_file_is_there_with_its_reason(published: Published) -> None:
    page = render([published]).replace("<wbr>", "")
    for item in published.results:
        assert item.source in page and item.sha256 in page
    assert [item.source for item in published.refused] and all(
        item.source in page and item.reason in unescape(page) for item in published.refused)


def test_it_is_labelled_published_and_each_round_is_a_section(published: Published) -> None:
    page = render([published])
    headings = re.findall(r'<h2 id="h-i1-g\d">(.*?)</h2>', page)
    assert [re.sub("<.*", "", text).strip() for text in headings] == ["resnet, training_v3.1", "resnet, training_v4.0"]
    assert all('<span class="tag t-published">published</span>' in text for text in headings)
    assert "MLCommons verified no score on this page" in page


def test_same_folder_same_bytes(published: Published) -> None:
    assert render([published]) == render([read_published(published.folder)])


def test_batch_size_against_epochs_holds_every_run_that_reached_it(published: Published) -> None:
    chart = figures(render([published]))["i1-b0-batch"]
    points = [trace for trace in chart["data"] if trace["mode"] == "markers"]
    assert {trace["name"]: sorted(trace["x"]) for trace in points} == {
        "training_v3.1": [256] * 4, "training_v4.0": [256] * 5 + [4096] * 4}
    assert {value for trace in points for value in trace["y"]} == {12.0}


def test_curves_are_thinned_for_display_and_keep_their_ends() -> None:
    points = [PublishedPoint(seconds=float(index), value=index / 1000) for index in range(1000)]
    for most in (4, 5, 40, 999, 1000, 2000):
        kept = thinned(points, most)
        assert len(kept) <= most and kept[0] is points[0] and kept[-2:] == points[-2:]
        assert [item.seconds for item in kept] == sorted({item.seconds for item in kept})
    assert budget(10) == POINTS_A_RUN and budget(10_000_000) == LEAST


def test_long_curves_change_no_figure(tmp_path: Path) -> None:
    values = [0.1 + 0.0005 * index for index in range(1321)]
    repository(tmp_path / "in", logs((600, 601, 602, 603, 604), values=values))
    import_results("mlperf", tmp_path / "in", tmp_path / "out")
    found = read_published(tmp_path / "out")
    page = render([found])
    assert len(found.results[0].curve) == 1321
    trace = figures(page)["i1-g1-curve-0"]["data"][0]
    assert len(trace["x"]) <= 5 * (POINTS_A_RUN + 1)
    assert float(re.findall(r'<data value="([^"]+)">', row(page, found.record.cells[0].cell_id))[0]) == (
        found.record.cells[0].score.minutes)


def test_dawnbench_has_a_page(tmp_path: Path) -> None:
    entry(tmp_path / "in", "fast")
    import_results("dawnbench", tmp_path / "in", tmp_path / "out")
    page = render([read_published(tmp_path / "out")])
    assert "imagenet, dawnbench" in page and "-batch" not in figures(page)


def test_a_run_is_separate_under_its_own_label(published: Published, tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE, lambda trial: Course(0.01))
    page = render([published], [record])
    before, _, own = page.replace("<wbr>", "").partition('<section class="own"')
    assert own and "No ratio compares them with published results" in before
    for cell in record.plan.cells:
        assert cell.label in unescape(own) and cell.label not in unescape(before)
    for cell in published.record.cells:
        assert cell.factors["system"] not in re.sub(r"<script.*", "", own, flags=re.DOTALL)
    assert 'class="tag t-published"' not in own and 'class="tag t-measured"' in own


def test_command_line(published: Published, tmp_path: Path) -> None:
    make_record(tmp_path / "run", SUITE, lambda trial: Course(0.01))
    arguments = ["report", str(published.folder), str(tmp_path / "run"), "--out", str(tmp_path / "r")]
    done = succeeded(*arguments)
    assert done.output.strip() == str(tmp_path / "r" / "published.html")
    assert (tmp_path / "r" / "published.html").read_text().count('<section class="own"') == 1
    default = called("report", published.folder)
    assert default.output.strip() == str(published.folder / "report" / "published.html")
    assert read_published(published.folder).results  # a report inside does not modify the import


@pytest.mark.parametrize(("arguments", "kind", "words"), [
    (["--to", "mlflow"], UsageError, "cannot write published"), (["--to", ","], UsageError, "names no reporter"),
    (["nowhere"], OutputError, "nowhere"),
])
def test_unreportable_input_is_refused_with_the_reason(
    published: Published, arguments: list[str], kind: type[Exception], words: str
) -> None:
    done = called("report", published.folder, *arguments)
    assert isinstance(done.exception, kind) and words in str(done.exception)
