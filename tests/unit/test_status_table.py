"""Every status is a row of `STATUSES`, and a new one is one row: what reads the table follows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from reporters.tracking.metric_points import result_points
from repro.compare.evidence.pairing import cell_trials, observe
from repro.core.errors import Exit
from repro.record.result.results import Result, figure
from repro.record.result.status import (
    INTERRUPTED,
    LOST,
    NOT_LAUNCHED,
    REFUSED,
    STARTED,
    STATUSES,
    WASHED_OUT,
    Status,
    StatusSpec,
    meaning,
)
from repro.runner.run import exit_code
from repro.suite.kinds.training import TrainingConfig
from repro.suite.metrics import DEFAULT, METRICS

ROOT = Path(__file__).parents[2]
STALLED = StatusSpec(name="stalled", words="stalled", page_word="stalled", counts=False, failed=True, reruns=True)
OTHER_VALUES = {"running", "killed", "success", "aborted"}
"""Statuses of runs that have not ended, in a tracking store; of MLLOG's run_stop."""


def statuses_in(source: str) -> Iterator[str]:
    """Strings that the code compares a status with, or gives as one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(
                getattr(side, "attr", getattr(side, "id", "")) == "status" for side in (node.left, *node.comparators)):
            for part in (node.left, *node.comparators):
                yield from (item.value for item in ast.walk(part)
                            if isinstance(item, ast.Constant) and isinstance(item.value, str))
        if isinstance(node, ast.keyword) and node.arg == "status" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def result(status: str) -> Result:
    found = Result(trial_id="t", cell_id="c", repeat=0, attempt=1, status="ok", tta_wall=1.0, samples_per_second=5.0)
    return found.model_copy(update={"status": status})


def test_results_have_the_statuses_of_the_table() -> None:
    assert set(get_args(Status)) == {name for name, spec in STATUSES.items() if spec.result}
    assert set(STATUSES) - set(get_args(Status)) == {STARTED, INTERRUPTED, NOT_LAUNCHED, REFUSED, WASHED_OUT, LOST}


@pytest.mark.parametrize("folder", ["record", "runner", "compare", "bundle", "worker", "audit/rules"])
def test_every_status_in_the_code_is_a_row(folder: str) -> None:
    for path in sorted((ROOT / "repro" / folder).rglob("*.py")):
        used = set(statuses_in(path.read_text(encoding="utf-8")))
        assert used <= set(STATUSES) | OTHER_VALUES, path


@pytest.mark.parametrize("spec", STATUSES.values(), ids=lambda spec: spec.name)
def test_rows_agree_with_themselves(spec: StatusSpec) -> None:
    assert STATUSES[spec.name] is spec
    assert not (spec.reached and not spec.completed)
    assert not (spec.completed and not spec.logged)
    assert not (spec.reruns and spec.counts)  # a trial whose end tells about the cell is not repeated: that is picking
    assert spec.limit in {"", *TrainingConfig.model_fields}
    if not spec.result:
        assert not spec.counts and not spec.reruns


def test_an_unknown_status_ends_nothing() -> None:
    found = meaning("of-a-later-version")
    assert not (found.result or found.failed or found.reruns or found.stands)
    assert found.page_word == "of-a-later-version"


def test_a_new_status_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATUSES, STALLED.name, STALLED)
    stalled = result(STALLED.name)
    assert figure(stalled, METRICS["throughput"]) is None
    assert observe(stalled, METRICS[DEFAULT]).kind == "unknown"
    assert "stalled in 1 of 1 trials" in cell_trials("the candidate", [stalled], METRICS[DEFAULT]).without_words()
    assert exit_code([result("ok"), stalled], 2) is Exit.TRIAL_FAILED
    assert result_points(stalled, 0) == []
