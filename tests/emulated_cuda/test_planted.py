"""Bugs that only a GPU shows, planted in small programs, are found; the programs without them run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.emulated_cuda.planted import CASES, Planted
from tests.emulated_cuda.running import run

Outcomes = dict[str, list[str]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What stopped every program, with its bug and without."""
    ended = run(tmp_path_factory.mktemp("planted"), "-m", "tests.emulated_cuda.planted")
    assert ended.code == 0, ended.error[-3000:]
    return dict(json.loads(ended.out))


@pytest.mark.rehearse
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_planted_bug_is_found(outcomes: Outcomes, case: Planted) -> None:
    with_bug, without = outcomes[case.name]
    assert without == "ok"
    assert case.words in with_bug


@pytest.mark.rehearse
def test_the_table_of_the_docs_names_every_bug_and_what_found_it(outcomes: Outcomes) -> None:
    found = {case.name: case.check for case in CASES if case.words in outcomes[case.name][0]}
    rows = [f"| {name} | {check} |" for name, check in found.items()]
    print(*rows, Counter(found.values()), sep="\n")
    assert len(found) >= 18
    text = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in text] == []
