"""`repro compare --markdown`: a comment's worth of Markdown that says what the exit code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from markdown_it import MarkdownIt

from repro.core.errors import UsageError
from repro.record.folder.store import Record
from tests.in_process import called
from tests.records import SUITE, make_record

MOST_LINES = 40


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("runs") / "old")


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # no calibration


def run(*arguments: Any) -> Result:
    return called("compare", *arguments)


def test_a_held_condition_is_in_the_headline_with_the_verdict_and_the_figures(record: Record, tmp_path: Path) -> None:
    place = tmp_path / "new" / "comment.md"
    ended = run(record.folder.root, "--fail-if", "slower", "--markdown", place)
    text = place.read_text()
    assert ended.exit_code == 3
    assert text.splitlines()[0] == "### sample: failed (fail if slower)"
    assert "- **failed** " in text and "6 of 6 pairs were slower" in text
    ratio = re.search(r"\| (\d\.\d{3}) \| (\d\.\d{3}) to (\d\.\d{3}) \| 6 \| 0\.031\d? \| slower \|", text)
    assert ratio is not None and ratio[1] in ended.output and ratio[2] in ended.output
    assert len(text.splitlines()) <= MOST_LINES
    assert MarkdownIt("commonmark").enable("table").render(text).count("<table>") == 2


def test_a_condition_that_does_not_hold_passes(record: Record, tmp_path: Path) -> None:
    ended = run(record.folder.root, "--fail-if", "faster", "--markdown", tmp_path / "c.md")
    text = (tmp_path / "c.md").read_text()
    assert ended.exit_code == 0 and text.startswith("### sample: passed (fail if faster)")
    assert "**failed**" not in text


def test_without_a_condition_the_headline_is_the_declared_verdict(record: Record, tmp_path: Path) -> None:
    assert run(record.folder.root, "--markdown", tmp_path / "c.md").exit_code == 0
    assert (tmp_path / "c.md").read_text().startswith("### sample: slower\n")


def test_many_cells_stay_a_comment_and_it_says_what_is_left_out(tmp_path: Path) -> None:
    text = SUITE.replace("  processes: [1, 2]", "  processes: [1, 2]\n  batch.global: [32, 64, 128, 256]").replace(
        "processes: 2}", "processes: 2, batch.global: 32}")
    assert text != SUITE
    wide = make_record(tmp_path / "wide", text)
    assert run(wide.folder.root, "--markdown", tmp_path / "c.md").exit_code == 0
    found = (tmp_path / "c.md").read_text()
    assert len(found.splitlines()) <= MOST_LINES and "10 more rows by repro compare" in found


def test_nothing_of_this_machine_and_no_markup_of_names(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "planted-secret")

    def warned(*_: object) -> list[Any]:
        line = "<img src=x> @someone /home/me/secret/place planted-secret"
        return [type("W", (), {"is_note": False, "line": line})()]

    monkeypatch.setattr("repro.compare.runs.runs.run_warnings", warned)
    assert run(record.folder.root, "--markdown", tmp_path / "c.md").exit_code == 0
    found = (tmp_path / "c.md").read_text()
    assert "&lt;img" in found and "@<!-- -->someone" in found
    assert "/home/me" not in found and "planted-secret" not in found


def test_published_results_have_their_own_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.published.comparison.compare.any_published", lambda _: True)
    ended = run(tmp_path, "--markdown", tmp_path / "c.md")
    assert isinstance(ended.exception, UsageError) and "--to markdown" in str(ended.exception)
