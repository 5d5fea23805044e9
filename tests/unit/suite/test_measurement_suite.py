"""A suite of kind measurement: what it is judged by, what it refuses in one line, what a record keeps of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from repro.core.errors import SuiteError
from repro.papers.measurement.config import MeasurementConfig
from repro.suite.planning.cost import estimate
from repro.suite.planning.plan import Plan
from repro.suite.schema import suite_schema
from tests.plans import plan_file, planned

SUITE = """\
suite: sums
seeds: 2
trial:
  kind: measurement
  measurement: {{kind: "sum.py:Sum", {options}}}
  processes: 2
  stop: {stop}
  {more}
matrix: {matrix}
{rest}
"""
CLASS = """\
from typing import Literal

from repro.seams.measurement import Measurement, Measuring, Post
from repro.seams.plugin import Setting


class Sum(Measurement):
    title = "sums"
    items = "numbers"
    count: int = 5

    def items_per_operation(self, processes: int) -> int:
        return self.count * processes

    def unsupported(self, setting: Setting) -> str | None:
        return "more than 4 processes cannot sum" if setting.processes > 4 else None

    def start(self, post: Post) -> Measuring:
        raise NotImplementedError
"""


def plan(folder: Path, stop: str = "{repeats: 3}", options: str = "count: 7", more: str = "device: cpu",
         matrix: str = "{comm: [ring, backend]}", rest: str = "") -> Plan:
    (folder / "sum.py").write_text(CLASS)
    return planned(folder, SUITE.format(stop=stop, options=options, more=more, matrix=matrix, rest=rest))


def test_it_is_judged_by_the_time_of_an_operation_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert plan(tmp_path).suite.metric == "operation_time"
    declared = "primary: {candidate: {comm: ring}, baseline: {comm: backend}%s}"
    assert plan(tmp_path, rest=declared % "").suite.metric == "operation_time"
    assert plan(tmp_path, rest=declared % ", metric: worker_bytes").suite.metric == "worker_bytes"


def test_a_plan_states_its_operations_and_that_the_backend_counts_no_bytes(tmp_path: Path) -> None:
    found = plan(tmp_path)
    choices = found.cells[0].choices
    assert isinstance(choices, MeasurementConfig)
    assert (choices.items_per_operation, choices.stop.warmup, choices.origin) == (14, 1, "measured")
    assert (choices.log_size().steps, choices.rank_logs(), choices.gate_starts()) == (3, 2, 0)
    assert found.measures
    assert not found.design.has_target
    assert [note for note in found.notes if "not counted" in note] == [
        "backend: the bytes of its collectives are not counted; another comm, for example ring, counts them"]
    assert estimate(found).full_budget_seconds > 0


def test_what_a_measurement_cannot_do_is_skipped_with_its_reason(tmp_path: Path) -> None:
    found = plan(tmp_path, matrix="{processes: [4, 5]}")
    assert [item.reason for item in found.skipped] == [
        "measurement sum.py:Sum: more than 4 processes cannot sum"]


@pytest.mark.parametrize(("changed", "message"), [
    ({"stop": "{repeats: 0}"}, "trial.stop.repeats"),
    ({"stop": "{repeats: 3, target: 0.9}"}, "trial.stop.target"),
    ({"options": "cuont: 7"}, "cuont"),
    ({"more": "optimizer: sgd"}, "trial.optimizer"),
    ({"rest": "horizon: 3"}, "a measurement has no target that a trial could miss"),
    ({"rest": "primary: {candidate: {comm: ring}, baseline: {comm: backend}, metric: tta_wall}"},
     "tta_wall is a figure of training; use one of: "),
    ({"rest": "primary: {candidate: {comm: ring}, baseline: {comm: backend}, metric: step_time}"},
     "step_time is a figure of training; use one of: "),
    ({"rest": "tune: {contenders: [comm], settings: 2, seeds: 2, metric: step_time, space: {measurement.count: "
              "{choices: [1, 2], origin: own}}}"}, "tune"),
])
def test_what_only_a_training_has_is_refused(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, **changed)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_training_has_no_time_of_an_operation(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(
        "suite: steps\nseeds: 2\ntrial:\n  workload: digits\n  engine: ddp\n  batch: {global: 64}\n"
        "  optimizer: {kind: sgd, lr: 0.1}\n  stop: {design: fixed_steps, steps: 5}\nmatrix: {processes: [1, 2]}\n"
        "primary: {candidate: {processes: 2}, baseline: {processes: 1}, metric: operation_time}\n")
    with pytest.raises(SuiteError, match="operation_time is a figure of trials of kind measurement"):
        plan_file(tmp_path / "suite.yaml")


def test_the_schema_knows_the_kind(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(suite_schema())
    plan(tmp_path)
    written = yaml.safe_load((tmp_path / "suite.yaml").read_text())
    assert list(check.iter_errors(written)) == []
    for field, wrong in (("stop", {"steps": 3}), ("optimizer", "sgd"), ("comm", "rnig")):
        trial = {**written["trial"], field: wrong}
        assert list(check.iter_errors({**written, "trial": trial})), field
