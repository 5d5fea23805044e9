"""A plan says which contrasts its repeats leave no room for."""

from __future__ import annotations

from pathlib import Path

from repro.compare.design.power import out_of_reach
from tests.plans import plan_file
from tests.records import SUITE


def notes(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    return out_of_reach(plan_file(path))


def test_repeats_that_cannot_pass_holm_are_named_with_how_many_can(tmp_path: Path) -> None:
    assert notes(tmp_path, SUITE) == ["with 6 repeats none of the 3 contrasts besides the primary can be significant "
                                      "at 5 % after Holm (exact test): 7 repeats can"]
    assert notes(tmp_path, SUITE.replace("seeds: 6", "seeds: 7")) == []


def test_main_effects_are_a_family_of_their_own(tmp_path: Path) -> None:
    text = SUITE + "contrasts: [engine, processes]\n"
    assert [note.split(" can be")[0] for note in notes(tmp_path, text)] == [
        "with 6 repeats none of the 3 contrasts besides the primary", "with 6 repeats none of the 2 main effects"]
    assert notes(tmp_path, text.replace("seeds: 6", "seeds: 7")) == []
