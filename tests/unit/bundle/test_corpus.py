"""Records that released versions wrote are read, verified and reported by this one (docs/stability.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

import repro
from repro.bundle.verify import verify

ROOT = Path(__file__).parents[3]
RECORDS = sorted((ROOT / "tests/data/corpus").glob("*/*.zip"))


def test_the_kinds_are_there() -> None:
    names = {path.stem for path in RECORDS}
    assert names >= {"contest", "fixed-steps", "measurement", "program", "times-only", "tuned"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_record_is_sound_and_has_a_page_and_an_answer(path: Path, tmp_path: Path) -> None:
    found = verify(path)
    assert found.sound, found.text()
    run = repro.open(path)
    assert len(run.trials) >= 6 and not run.comparisons.empty
    page = Path(run.report("html", tmp_path)[0]).read_text(encoding="utf-8")
    assert "<title>" in page and run.comparisons["verdict"].iloc[0] in page
