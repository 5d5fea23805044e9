"""What is believed of lines that say to be of `repro.watch`."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.errors import OutputError
from repro.program.observation import Line, OutputProblem
from repro.program.watch_reader import WatchPipe, WatchReader

SECOND = 10**9


def line(event: str, at: float, arrived: float | None = None, **what: object) -> Line:
    """A line about `at`, in seconds."""
    text = json.dumps({"event": event, "ns": int(at * SECOND), "pid": 7, **what})
    return Line(text, int((at if arrived is None else arrived) * SECOND), 1)


def refusal(*lines: Line, metric: str | None = None) -> str:
    """Return what is said of the last line; the ones before are believed."""
    reader = WatchReader(metric)
    for before in lines[:-1]:
        reader.take(before)
    with pytest.raises(OutputProblem) as caught:
        reader.take(lines[-1])
    assert str(caught.value).isprintable()
    return str(caught.value)


START = line("start", 1)


@pytest.mark.parametrize(("lines", "said"), [
    ([Line("hello", 1, 1)], "Invalid JSON"),
    ([Line("", 1, 1)], "Invalid JSON"),
    ([Line("[" * 100_000, 1, 1)], "Invalid JSON"),
    ([Line('{"event": "start"}', 1, 1)], "ns: Field required"),
    ([line("rest", 1)], "event: Input should be 'start', 'stop', 'step' or 'evaluation'"),
    ([line("start", 1, other=2)], "other: Extra inputs"),
    ([START, line("evaluation", 2, value="much")], "value: Input should be a valid number"),
    ([START, line("evaluation", 2)], "an evaluation without a value"),
    ([START, line("step", 2)], "a step without its number"),
    ([START, Line('{"event": "step", "pid": 7, "ns": -%s}' % ("9" * 400), 1, 1)], "ns: Input should be greater"),
    ([START, line("step", 2, step=10**400)], "step: Input should be less than"),
    ([Line("\x1b[2Jgone\r", 1, 1)], "Invalid JSON"),
    ([Line(json.dumps({"event": "start", "ns": 1, "pid": 7, "\x1b[2J" * 999: 1}), 1, 1)], "Extra inputs"),
    ([START, line("step", 2, step=-1)], "step: Input should be greater than or equal to 0"),
    ([START, line("step", 2, pid=8, step=1)], "two processes report (7 and 8)"),
    ([START, line("start", 2)], "a second training"),
    ([line("evaluation", 1, value=1)], "`evaluation` while the training has not begun"),
    ([START, line("stop", 2), line("evaluation", 3, value=1)], "`evaluation` while the training has stopped"),
    ([START, line("stop", 2), line("start", 3)], "a second training"),
    ([START, line("evaluation", 3, arrived=2.9, value=1)], "its time is after its arrival"),
    ([START, line("evaluation", 3, arrived=4.1, value=1)], "its time is 1.1 s before its arrival"),
    ([START, line("evaluation", 3, value=1), line("stop", 2.9)], "its time is before that of the line before"),
    ([START, line("step", 3, step=4), line("step", 4, step=3)], "goes back, from step 4"),
    ([START, line("step", 3, step=4, samples=9), line("step", 4, step=5, samples=8)], "and 9 samples"),
    ([START, line("evaluation", 2, value=1, step=4), line("evaluation", 3, value=1, step=4)],
     "two evaluations of step 4"),
    ([START, line("evaluation", 2, value=1, step=4), line("evaluation", 3, value=1, step=3)], "goes back, from step 4"),
])
def test_a_line_that_cannot_be_right_is_named(lines: list[Line], said: str) -> None:
    text = refusal(*lines)
    assert said in text
    assert text.startswith("repro.watch: ")
    assert lines[-1].text[:50] in text or not lines[-1].text.isprintable()


ODD = st.sampled_from([10**400, -(10**400), "nan", "1e5", True, []])
NUMBERS = st.one_of(st.none(), st.integers(), st.floats(), ODD)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["event", "ns", "pid", "step", "samples", "metric", "value"]),
                                NUMBERS | st.sampled_from(["start", "stop", "step", "evaluation", "loss"]))))
def test_whatever_is_written_ends_in_an_observation_or_a_refusal(found: list[dict[str, object]]) -> None:
    reader = WatchReader("loss")
    reader.take(START)
    for number, fields in enumerate(found):
        at = SECOND * (2 + number)
        text = json.dumps({"event": "step", "ns": at, "pid": 7, "step": number, **fields})
        with contextlib.suppress(OutputProblem):
            reader.take(Line(text, at, 1))


def test_steps_may_arrive_late_and_other_metrics_of_one_step_beside() -> None:
    reader = WatchReader("accuracy")
    lines = [START, line("step", 2, arrived=9, step=1), line("evaluation", 9, value=1, step=1, metric="loss"),
             line("evaluation", 9, value=2, step=1, metric="accuracy"), line("evaluation", 10, value="nan", step=2),
             line("step", 9.5, arrived=11, step=2), line("stop", 12)]
    found = [reader.take(item) for item in lines]
    assert found[2] is None and reader.other_metrics == {"loss"}
    assert [item.own_ns for item in found if item] == [int(t * SECOND) for t in (1, 2, 9, 10, 9.5, 12)]
    reader.close()


def test_an_end_inside_the_training_is_refused() -> None:
    reader = WatchReader()
    reader.close()
    reader.take(START)
    reader.take(line("step", 2, step=5))
    with pytest.raises(OutputProblem, match=r"ended inside `watch.run\(\)`, after step 5"):
        reader.close()


def test_the_pipe_survives_writers_and_joins_cut_lines(tmp_path: Path) -> None:
    with WatchPipe(tmp_path) as pipe:
        assert pipe.lines() == []
        for text in (b"one\ntw", b"o\n\xff\n", b""):
            descriptor = os.open(pipe.path, os.O_WRONLY)
            os.write(descriptor, text)
            os.close(descriptor)
            if text == b"one\ntw":
                assert [item.text for item in pipe.lines()] == ["one"]
        assert [(item.text, item.read) for item in pipe.lines()] == [("two", 2), ("\ufffd", 2)]
    assert not list(tmp_path.iterdir())


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    with WatchPipe(tmp_path) as pipe:
        descriptor = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"x" * 5000)
        os.close(descriptor)
        assert [len(item.text) for item in pipe.lines()] == [5000]


def test_a_folder_that_takes_no_pipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"watch\.pipe: cannot make a named pipe: No such file"):
        WatchPipe(tmp_path / "none")
    (tmp_path / "watch.pipe").touch()
    with pytest.raises(OutputError, match="File exists"):
        WatchPipe(tmp_path)
