"""`repro.watch` in a program, its pipe, and the reader of its lines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.errors import OutputError
from repro.program.observation import Line, Observation, OutputProblem
from repro.program.watch_reader import WatchPipe, WatchReader
from tests import watched
from tests.waiting import LONG_SECONDS, until
from tests.watched import program

LOOP = """
from repro import watch
with watch.run():
    for n in range(1, 101):
        watch.step(n, samples=8 * n)
        if n % 50 == 0:
            watch.evaluated(1 / n)
"""


def run_program(script: str, pipe: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own; `pipe` is what REPRO_WATCH says."""
    around = watched.environment(more if pipe is None else {**more, "REPRO_WATCH": pipe})
    return subprocess.run([sys.executable, "-c", script], env=around, capture_output=True, text=True, timeout=60,
                          check=False)


def messages(pipe: WatchPipe) -> list[dict[str, object]]:
    return [json.loads(line.text) for line in pipe.lines()]


def observed(script: str, folder: Path, metric: str | None = None) -> list[Observation]:
    """Return all that a script says, which ends well."""
    return program("-c", script, folder=folder, metric=metric)


def test_importing_it_loads_the_standard_library_only() -> None:
    done = run_program("import sys\nbefore = set(sys.modules)\nimport repro.watch\nprint(*set(sys.modules) - before)")
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "repro" in loaded
    assert loaded - {"repro"} <= set(sys.stdlib_module_names)
    assert {name for name in done.stdout.split() if name.startswith("repro")} == {"repro", "repro.watch"}


def test_a_training_is_seen_from_start_to_stop(tmp_path: Path) -> None:
    begin = time.monotonic_ns()
    found = observed(LOOP, tmp_path)
    assert [item.seen for item in found] == ["start", "step", "step", "evaluation", "step", "evaluation", "stop"]
    assert [(item.step, item.samples) for item in found] == [
        (None, None), (1, 8), (50, 400), (50, 400), (100, 800), (100, 800), (None, None)]
    assert [item.value for item in found if item.seen == "evaluation"] == [1 / 50, 1 / 100]
    times = [item.own_ns or 0 for item in found]
    assert times == sorted(times) and begin < times[0] and times[-1] < found[-1].arrived_ns


def test_steps_are_written_at_most_five_times_a_second(tmp_path: Path) -> None:
    found = observed("""
import time
from repro import watch
with watch.run():
    for n in range(1, 81):
        time.sleep(0.01)
        watch.step(n)
""", tmp_path)
    steps = [item for item in found if item.seen == "step"]
    gaps = [(b.own_ns or 0) - (a.own_ns or 0) for a, b in pairwise(steps[:-1])]
    assert 4 <= len(steps) <= 12 and steps[0].step == 1 and steps[-1].step == 80
    assert min(gaps) >= 200_000_000


@pytest.mark.parametrize(("value", "shown"), [
    ("float('nan')", "nan"), ("float('inf')", "inf"), ("-1e999", "-inf"), ("1e-30", "1e-30"), ("3", "3.0"),
    ("__import__('fractions').Fraction(1, 4)", "0.25"),
])
def test_any_number_is_a_value(value: str, shown: str, tmp_path: Path) -> None:
    found = observed(f"from repro import watch\nwith watch.run(): watch.evaluated({value}, step=1)", tmp_path)
    assert str(found[1].value) == shown


def test_a_named_metric_is_picked(tmp_path: Path) -> None:
    script = "from repro import watch\nwith watch.run():\n watch.evaluated(1, 'loss', step=1)\n" \
             " watch.evaluated(0.5, 'accuracy', step=1, samples=64)"
    found = observed(script, tmp_path, "accuracy")
    assert [(item.value, item.step, item.samples) for item in found if item.seen == "evaluation"] == [(0.5, 1, 64)]


@pytest.mark.parametrize(("environment", "pipe"), [
    ({}, None), ({}, ""), ({}, "/nowhere/at/all"), ({}, "/dev/null"), ({"RANK": "1"}, "pipe"),
])
def test_the_program_runs_the_same_where_nobody_listens(
    environment: dict[str, str], pipe: str | None, tmp_path: Path
) -> None:
    with WatchPipe(tmp_path) as made:
        done = run_program(LOOP, str(made.path) if pipe == "pipe" else pipe, **environment)
        assert made.lines() == []
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_pipe_that_nobody_reads_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run_program(LOOP, str(tmp_path / "pipe")).returncode == 0


def test_a_plain_file_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert run_program(LOOP, str(tmp_path / "file")).returncode == 0
    assert (tmp_path / "file").read_text() == "mine"


def test_a_reader_that_leaves_is_not_noticed(tmp_path: Path) -> None:
    with WatchPipe(tmp_path) as pipe:
        running = subprocess.Popen(
            [sys.executable, "-c", LOOP.replace("    for n", "    input()\n    for n")], stdin=subprocess.PIPE,
            env=watched.environment(pipe.environment), stderr=subprocess.PIPE, text=True)
        seen = until(lambda: messages(pipe))
    assert [message["event"] for message in seen] == ["start"]
    assert running.communicate("\n", timeout=LONG_SECONDS)[1] == ""
    assert running.returncode == 0


def test_a_full_pipe_holds_the_program_up_for_a_second_and_not_for_ever(tmp_path: Path) -> None:
    script = """
import time
from repro import watch
slowest = 0
with watch.run():
    for n in range(5000):
        begin = time.perf_counter()
        watch.evaluated(n, step=n)
        slowest = max(slowest, time.perf_counter() - begin)
    begin = time.perf_counter()
print(slowest, time.perf_counter() - begin)
"""
    with WatchPipe(tmp_path) as pipe:
        done = run_program(script, str(pipe.path))
        slowest, end = map(float, done.stdout.split())
        assert slowest < LONG_SECONDS and 0.9 < end < LONG_SECONDS, "nobody ever reads"
        read = 0
        while lines := messages(pipe):
            assert {message["event"] for message in lines} <= {"start", "evaluation"}, "no stop: some lines are lost"
            read += len(lines)
    assert 400 < read < 5000


def test_a_burst_loses_nothing(tmp_path: Path) -> None:
    script = "from repro import watch\nwith watch.run():\n for n in range(3000): watch.evaluated(n, step=n)"
    found = observed(script, tmp_path)
    assert [item.value for item in found[1:-1]] == [float(n) for n in range(3000)]


def test_forks_say_nothing(tmp_path: Path) -> None:
    found = observed("""
import multiprocessing
from repro import watch
def work(n):
    watch.step(1000 + n)
    watch.evaluated(n)
    watch.stopped()
with watch.run():
    watch.step(1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(8))
""", tmp_path)
    assert [item.seen for item in found] == ["start", "step", "stop"]


def test_threads_may_report(tmp_path: Path) -> None:
    found = observed("""
import threading
from repro import watch
def evaluate(k):
    for n in range(200): watch.evaluated(n, f"metric{k}", step=n)
with watch.run():
    threads = [threading.Thread(target=evaluate, args=(k,)) for k in range(4)]
    for thread in threads: thread.start()
    for n in range(200, 20000): watch.step(n)
    for thread in threads: thread.join()
""", tmp_path, "metric2")
    assert [item.step for item in found if item.seen == "evaluation"] == list(range(200))


@pytest.mark.parametrize(("body", "end"), [
    ("raise SystemExit", ["stop"]), ("raise SystemExit(0)", ["stop"]), ("raise SystemExit(3)", []),
    ("raise ValueError", []),
])
def test_a_training_that_an_exception_leaves_has_not_stopped(body: str, end: list[str], tmp_path: Path) -> None:
    script = f"from repro import watch\nwith watch.run():\n watch.step(1)\n watch.step(2)\n {body}"
    with WatchPipe(tmp_path) as pipe:
        run_program(script, str(pipe.path))
        seen = messages(pipe)
    assert [message["event"] for message in seen] == ["start", "step", "step", *end]
    assert [message["step"] for message in seen[1:3]] == [1, 2]


@pytest.mark.parametrize("call", [
    "watch.evaluated('much')", "watch.evaluated(None)", "watch.evaluated([1, 2])", "watch.step('x')",
    "watch.step(10 ** 5000)", "watch.evaluated(10 ** 5000)", "watch.evaluated('\\U0001f600' * 9999, '\\0' * 9999)",
    "watch.evaluated(1, '\\ud800')", "watch.step(2.5)",
])
def test_what_is_no_number_neither_fails_the_program_nor_exceeds_a_line(call: str, tmp_path: Path) -> None:
    with WatchPipe(tmp_path) as pipe:
        done = run_program(f"from repro import watch\nwith watch.run(): {call}", str(pipe.path))
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.text for line in pipe.lines()]
    assert len(lines) == 3 and max(len(line.encode()) for line in lines) < 4096


def test_the_loop_in_the_docs_is_seen(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "watch.md").read_text()
    loop = page.partition("```python\n")[2].partition("```")[0]
    around = """
def build(): return {"updates": 0}
def load(): return range(250)
def train(model, batch): model["updates"] += 1
def validate(model): return model["updates"] / 2
"""
    found = observed(around + loop, tmp_path, "val_loss")
    assert [(item.seen, item.step, item.value) for item in found if item.seen != "step"] == [
        ("start", None, None), ("evaluation", 100, 50.0), ("evaluation", 200, 100.0), ("stop", None, None)]
    assert [item.step for item in found if item.seen == "step"][-1] == 250


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
