"""The schema of the log: what a model writes is what it reads, foreign events stay, malformed ones are one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import OutputError
from repro.core.events import Event, EventLog, parse_line
from repro.record.log import schema
from repro.record.log.event import LogEvent
from repro.record.log.facts import FinalFacts
from repro.record.log.reading import MalformedEvent, interpret, log_damage, read_log
from tests.unit.test_house import ROOT

STEPS: dict[str, Any] = {"first": 0, "seconds": [0.5], "input_seconds": [0.0], "loss": [None]}


def line_of(key: str, value: Any, metadata: dict[str, Any] | None = None) -> str:
    return Event(key, value, "POINT_IN_TIME", 0.0, {"mono_ns": 1, **(metadata or {})}).line()


@pytest.mark.parametrize("event", [
    schema.CacheClear(value=True), schema.RunStart(), schema.Seed(value=3, master_seed=7),
    schema.RunStop(status="aborted", outcome="missed", reason="no", samples_count=9),
    schema.EvalError(value=None, samples_count=9, epoch_num=0.5, phases={"train": 1.0}, train_loss=None),
    schema.StepBlock(first=4, seconds=[0.1, 0.2], input_seconds=[0.0, 0.0], loss=[1.0, 2.0]),
    schema.Phases(train=1.0, lost=0.5), schema.CheckpointWritten(step=3, seconds=0.1, skipped="disk full"),
    schema.InputWaits(value=[(0.1, 2.0), (0.2, 2.0)]), schema.Fed(
        samples=5, order="0a", augmentation="", as_seeded=schema.Seeded(data_order=True)),
    schema.FactsGathered(value=FinalFacts(ranks=(None,), optimizer={"optimizer": "sgd"})),
], ids=lambda event: type(event).__name__)
def test_what_is_written_is_read(tmp_path: Path, event: LogEvent) -> None:
    log = EventLog(tmp_path / "log", now=lambda: 5)
    log.write(event)
    log.close()
    recorded, = read_log(tmp_path / "log")
    assert (recorded.event, recorded.at_ns) == (event, 5)


def test_a_loss_that_is_not_finite_is_null_in_the_file() -> None:
    body, _ = schema.StepBlock(**STEPS).body()
    assert body == STEPS


def test_an_event_that_no_model_knows_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line_of("tracked_stats", {"throughput": 3}) + line_of("x_of_the_future", [1]))
    assert [(item.event.key, item.event.value) for item in read_log(tmp_path / "log") if isinstance(
        item.event, Event)] == [("tracked_stats", {"throughput": 3}), ("x_of_the_future", [1])]


def test_a_field_of_a_later_version_is_ignored() -> None:
    event = parse_line(line_of("x_steps", STEPS | {"later": 1}))
    assert event is not None and isinstance(interpret(event).event, schema.StepBlock)


@pytest.mark.parametrize(("key", "value", "metadata", "said"), [
    ("x_steps", STEPS | {"seconds": ["long"]}, {}, "x_steps: seconds: Value error, is not a list of numbers"),
    ("x_steps", {"first": 0}, {}, "x_steps: seconds: Field required"),
    ("run_stop", None, {"status": "success"}, "run_stop: outcome: Field required"),
    ("eval_accuracy", "high", {"samples_count": 1, "epoch_num": 1}, "eval_accuracy: value: Input should be"),
    ("x_phases", [1], {}, "x_phases: Input should be a valid dictionary"),
])
def test_a_malformed_event_is_one_line_with_event_field_and_line(
    tmp_path: Path, key: str, value: Any, metadata: dict[str, Any], said: str
) -> None:
    log = tmp_path / "log"
    log.write_text(line_of("cache_clear", True) + line_of(key, value, metadata) + line_of("x_effective", {}))
    event = parse_line(line_of(key, value, metadata))
    assert event is not None
    with pytest.raises(MalformedEvent, match=re.escape(said)):
        interpret(event)
    with pytest.raises(OutputError, match=re.escape(f"{log}:2: {said}")):
        read_log(log)
    found = log_damage(log)
    assert found is not None and found.damage.startswith(f"line 2 of its log is damaged: {said}")
    assert len(read_log(log, skip_malformed=True)) == 2


def test_every_key_is_that_of_one_model_and_no_other_module_writes_one() -> None:
    kinds = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, LogEvent)
             and "key" in vars(kind)]
    assert sorted([*schema.REQUESTED, *(kind.key for kind in kinds)]) == sorted(schema.KINDS)
    bare = re.compile(r"""["']x_[a-z_]+["']|\.emit\(""")
    found = [f"{path.relative_to(ROOT)}:{number}" for folder in ("repro", "reporters")
             for path in sorted((ROOT / folder).rglob("*.py"))
             for number, text in enumerate(path.read_text().splitlines(), 1)
             if bare.search(text) and path.parent.name != "log" and path.name not in ("events.py", "mllog_package.py")]
    assert found == []
