"""Performance profiles as a figure for print: the steps and bands of the scores, in PDF and SVG."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from repro.reporters.paper.figures import draw, figures

from repro.record.folder.store import Record
from repro.scores.scores import Scores, record_scores
from tests.made_scores import SCORES, scores_course
from tests.records import SUITE, make_record


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("scores") / "run", SCORES, scores_course)


def test_the_lines_are_the_profiles_and_the_bands_are_theirs(record: Record) -> None:
    found, drawn = record_scores(record), {item.name: item for item in figures(record)}
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


def test_it_is_written_in_both_formats_and_twice_alike(record: Record, tmp_path: Path) -> None:
    wanted = [item for item in figures(record) if item.name == "profiles"]
    paths = draw(wanted, tmp_path / "a")
    assert [Path(path).name for path in paths] == ["profiles.pdf", "profiles.svg"]
    draw(wanted, tmp_path / "b")
    assert all(Path(path).read_bytes() == Path(path.replace("/a/", "/b/")).read_bytes() for path in paths)


def test_one_workload_has_none(tmp_path: Path) -> None:
    plain = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 1"))
    assert "profiles" not in [item.name for item in figures(plain)]
