"""The event log: written, read while it grows, read when it is damaged, read by MLCommons' own parser."""

from __future__ import annotations

import io
import json
import logging
import math
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core import door
from repro.core.events import FLUSH_NS, Event, EventLog, EventType, complete_lines, follow, parse_line, read_events
from tests.plans import planned
from tests.records import SUITE, Course, write_log

CALM = settings(max_examples=100, deadline=None, derandomize=True, database=None)
GOOD = (':::MLLOG {"namespace": "", "time_ms": 5.5, "event_type": "POINT_IN_TIME", "key": "k", "value": 1, '
        '"metadata": {}}')


class Hand:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 2_000_000_000

    def __call__(self) -> int:
        return self.ns


@dataclass
class Stated:
    """An event with any key, as `LogEvent` gives it to the log."""

    key: str
    value: Any = None
    event_type: EventType = "POINT_IN_TIME"
    metadata: dict[str, Any] = field(default_factory=dict)

    def body(self) -> tuple[Any, dict[str, Any]]:
        return self.value, self.metadata


def test_written_events_are_read(tmp_path: Path) -> None:
    hand = Hand()
    log = EventLog(tmp_path / "log", rank=3, now=hand, anchor_ms=1000.0)
    log.write(Stated("run_start", event_type="INTERVAL_START"))
    hand.ns += 1_500_000
    log.write(Stated("eval_accuracy", 0.5, metadata={"samples_count": 64}))
    log.write(Stated("run_stop", event_type="INTERVAL_END", metadata={"status": "success"}))
    log.write(Stated("x_late", [1, None]), at_ns=2_000_000_000)
    log.close()
    events, offset = read_events(tmp_path / "log")
    assert offset == (tmp_path / "log").stat().st_size
    assert [(event.key, event.value, event.event_type, event.time_ms, event.nanoseconds) for event in events] == [
        ("run_start", None, "INTERVAL_START", 1000.0, 2_000_000_000),
        ("eval_accuracy", 0.5, "POINT_IN_TIME", 1001.5, 2_001_500_000),
        ("run_stop", None, "INTERVAL_END", 1001.5, 2_001_500_000),
        ("x_late", [1, None], "POINT_IN_TIME", 1000.0, 2_000_000_000),
    ]
    assert events[1].metadata == {"rank": 3, "mono_ns": 2_001_500_000, "samples_count": 64}


def test_nothing_is_written_before_it_is_flushed(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    log.write(Stated("k"))
    assert (tmp_path / "log").read_text() == ""
    log.flush()
    assert len(read_events(tmp_path / "log")[0]) == 1
    log.close()


def test_a_rank_without_a_log_writes_nothing(tmp_path: Path) -> None:
    log = EventLog(None, rank=1, now=Hand())
    assert log.write(Stated("k")) == 2_000_000_000
    log.flush()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_json_has_not_is_refused(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    log.write(Stated("eval_accuracy", math.nan))
    log.write(Stated("next", 1))
    with pytest.raises(ValueError, match=r"eval_accuracy: .*not JSON compliant"):
        log.close()
    assert [event.key for event in read_events(tmp_path / "log")[0]] == ["next"]


def test_it_is_due_some_time_after_the_last_time(tmp_path: Path) -> None:
    hand = Hand()
    log = EventLog(tmp_path / "log", now=hand)
    log.write(Stated("k"))
    log.flush_if_due()
    assert (tmp_path / "log").read_text() == ""
    hand.ns += FLUSH_NS
    log.flush_if_due()
    assert len(read_events(tmp_path / "log")[0]) == 1
    log.write(lambda: Stated("made late"))
    log.flush_if_due()
    assert len(read_events(tmp_path / "log")[0]) == 1
    log.flush_if_due(0)
    assert [event.key for event in read_events(tmp_path / "log")[0]] == ["k", "made late"]
    log.close()


def test_a_growing_log_is_read_from_the_last_position(tmp_path: Path) -> None:
    path, text = tmp_path / "log", "".join(Event(f"k{i}", "é", "POINT_IN_TIME", float(i)).line() for i in range(4))
    raw = text.encode()
    offset, keys = 0, []
    for end in range(0, len(raw) + 1, 7):
        path.write_bytes(raw[:end])
        events, offset = read_events(path, offset)
        keys += [event.key for event in events]
        assert offset <= end
    path.write_bytes(raw)
    keys += [event.key for event in read_events(path, offset)[0]]
    assert keys == ["k0", "k1", "k2", "k3"]


def test_a_last_line_without_its_end_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{GOOD}\n{GOOD}")
    events, offset = read_events(path)
    assert (len(events), offset) == (1, len(GOOD) + 1)
    path.write_text(GOOD)
    assert read_events(path) == ([], 0)
    assert read_events(tmp_path / "none", 5) == ([], 5)


@pytest.mark.parametrize("line", [
    "", "hello", ":::MLLOG", ":::MLLOG {", ":::MLLOG []", ":::MLLOG 5", ":::MLLOG null", GOOD[:-10],
    GOOD.replace('"key": "k", ', ""), GOOD.replace("5.5", '"then"'), GOOD.replace("5.5", "null"),
    GOOD.replace("5.5", "9" * 400), GOOD.replace("5.5", "NaN"), GOOD.replace("5.5", '"inf"'),
    GOOD.replace("5.5", "1" + "0" * 5000), GOOD.replace('"POINT_IN_TIME"', "[]"),
    GOOD.replace("{}}", "[1]}"), GOOD.replace("{}}", '"x"}'),
    ":::MLLOG " + "[" * 100_000,
])
def test_damaged_lines_are_passed_over(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    events, _ = read_events(tmp_path / "log")
    assert [event.key for event in events] == ["k", "k"]
    assert [event.nanoseconds for event in events] == [None, None]


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe\n" + GOOD.encode() + b"\n\0\n")
    assert len(read_events(tmp_path / "log")[0]) == 1


def test_a_published_log_may_have_anything_before_the_token() -> None:
    found = parse_line(f"0: [2024-01-02 10:00:00] rank0: {GOOD}\r")
    assert found is not None
    assert (found.key, found.value, found.time_ms) == ("k", 1, 5.5)
    squeezed = parse_line(GOOD.replace(":::MLLOG {", ":::MLLOG{").replace('"metadata": {}', '"metadata": null'))
    assert squeezed is not None
    assert squeezed.metadata == {}


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))


@CALM
@given(st.dictionaries(st.sampled_from(["key", "value", "event_type", "time_ms", "metadata", "namespace"]), JSON))
def test_no_line_of_json_makes_the_reader_fail(body: dict[str, object]) -> None:
    found = parse_line(f":::MLLOG {json.dumps(body)}")
    assert found is None or found.nanoseconds is None or isinstance(found.nanoseconds, int)


def test_mlcommons_own_parser_reads_our_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser")
    trial = next(planned(tmp_path, SUITE).trials())
    log = tmp_path / "result_1.txt"
    write_log(log, trial, Course())
    with caplog.at_level(logging.WARNING):
        lines, failed = parser.parse_file(str(log), ruleset="5.1.0")
    assert failed == []
    ours, _ = read_events(log)
    assert len(lines) == len(ours) > 20
    assert [line.key for line in lines] == [event.key for event in ours]
    assert [line.value["value"] for line in lines] == [event.value for event in ours]
    assert [line.timestamp for line in lines] == [event.time_ms for event in ours]


# ---- in bounded memory


def test_a_log_is_never_completely_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        stream.writelines(f"{index} printed by somebody{' ' * 100}\n" for index in range(100_000))
        stream.write(f"{GOOD}\n")
    tracemalloc.start()
    try:
        events, offset = read_events(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(events), offset) == (1, path.stat().st_size)
    assert offset > 12_000_000 and peak < 1_000_000


def test_damaged_lines_at_the_end_are_behind_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{GOOD}\nbroken\n\n:::MLLOG {{\n{GOOD[:30]}")
    events, offset = read_events(path)
    assert len(events) == 1 and offset == path.stat().st_size - 30
    assert read_events(path, offset) == ([], offset)
    with path.open("a") as stream:
        stream.write(f"{GOOD[30:]}\n")
    assert len(read_events(path, offset)[0]) == 1


@pytest.mark.parametrize(("prefix", "suffix", "count"), [
    ("", "", 1), ("", " " * 300, 0), ("0: rank0: ", " " * 300, 0), ("x" * 300, "", 0),
])
def test_a_line_longer_than_any_event_is_skipped_and_the_next_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, suffix: str, count: int
) -> None:
    monkeypatch.setattr("repro.core.events.MAX_LINE", 200)
    monkeypatch.setattr("repro.core.events.LIMIT", 210)
    path = tmp_path / "log"
    path.write_text(f"{prefix}{GOOD}{suffix}\n{GOOD}\n{prefix}{GOOD}{suffix}")
    events, offset = read_events(path)
    assert (len(events), offset) == (count + 1, len(prefix) + 2 * len(GOOD) + len(suffix) + 2)
    assert [parse_line(line) is None for line, _ in complete_lines(path)] == [not count, False]


class Growing(io.BytesIO):
    """A file to which its writer adds the second half of a line between two reads."""

    def __init__(self, begin: bytes, more: bytes) -> None:
        super().__init__(begin)
        self.more = more

    def readline(self, size: int | None = -1) -> bytes:
        found = super().readline(size)
        if self.more:
            place = self.tell()
            self.seek(0, io.SEEK_END)
            self.write(self.more)
            self.seek(place)
            self.more = b""
        return found


def test_a_line_that_grows_while_it_is_read_waits_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = EventLog(path)
    log.write(Stated("first", 1))
    log.close()
    line = path.read_bytes()
    monkeypatch.setattr(door, "open_plain", lambda *_: Growing(line[:20], line[20:]))
    assert list(follow(path)) == []
    monkeypatch.undo()
    assert [(event.key if event else None, after) for event, after in follow(path)] == [("first", len(line))]
