"""Plans of inference over volumes: what does not fit, a queue that does not answer, labels, the suite chunkflow."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from repro.core.errors import SuiteError
from repro.runner.preflight import absent_data
from repro.suite.planning.plan import Plan
from tests.plans import measurement_suite, plan_file, planned
from tests.redis_server import needs_redis, redis_server


def plan(folder: Path, options: str) -> Plan:
    return planned(folder, measurement_suite(
        "volumes", f"{{kind: volume-inference, {options}}}", "matrix: {processes: [1, 2]}\n", 2, stop="{repeats: 1}"))


@pytest.mark.parametrize(("options", "message"), [
    ("chunk: 50", "chunk 50x50x50 is larger than the volume 72x48x48 on the second axis; use at most 48 there"),
    ("chunk: 24, overlap: 13", "overlap 13 is over half of chunk 24 on the first axis; use at most 12 there"),
    ("shape: [72, 48]", "measurement.shape"), ("net: big", "net"), ("delay_seconds: -1", "delay_seconds"),
    ("queue: sqs", "measurement.queue"),
])
def test_what_cannot_run_is_one_line_at_plan_time(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_queue_that_cannot_be_reached_is_one_line_at_plan_time(tmp_path: Path) -> None:
    found = absent_data(plan(tmp_path, "queue: redis, redis_port: 1"))
    assert len(found) == 1 and "\n" not in found[0]
    assert found[0].startswith("queue redis://127.0.0.1:1/0#repro-volume-plan cannot be reached: ")


def test_a_volume_that_no_disk_holds_is_one_line_at_plan_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((5e6, 6e6))  # free space changes from look to look
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=next(looks)))
    found = absent_data(plan(tmp_path, "shape: [60000, 60000, 60000], chunk: 4000, overlap: 100"))
    assert len(found) == 1 and "\n" not in found[0]
    assert "and 5.0 MB are free there; make room or name another place" in found[0]


@needs_redis
def test_a_plan_with_a_server_leaves_nothing_on_it(tmp_path: Path) -> None:
    import redis

    with redis_server(tmp_path) as port:
        assert absent_data(plan(tmp_path, f"queue: redis, redis_port: {port}")) == []
        client = redis.Redis(port=port)
        assert client.keys() == []
        client.close()


def test_a_sleep_makes_the_figures_emulated(tmp_path: Path) -> None:
    assert {cell.choices.origin for cell in plan(tmp_path, "chunk: 24").cells} == {"measured"}
    assert {cell.choices.origin for cell in plan(tmp_path, "delay_seconds: 0.1").cells} == {"emulated"}


def test_the_suite_varies_overlap_and_workers_one_at_a_time() -> None:
    made = plan_file("chunkflow")
    assert [cell.label for cell in made.cells] == [
        "reference", "overlap 0", "overlap 4", "overlap 12", "1 process", "2 processes"]
    assert made.suite.metric == "operation_throughput"
    assert {cell.choices.origin for cell in made.cells} == {"emulated"}
