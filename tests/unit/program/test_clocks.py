"""Lines of output and their arrival; the comparison of a program's clock with ours."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.program.clocks import LATENESS, Agreement, Finding, compare
from repro.program.observation import LONGEST, Line, LineSplitter, Observation, Seen
from repro.program.output_readers import PatternReader
from tests.unit.program.printed import seen

STARTED = 5_000_000_000_000


def ns(seconds: float) -> int:
    return STARTED + round(seconds * 1e9)


def run(
    steps: int = 400, every: int = 100, step_s: float = 0.1, evaluation_s: float = 2.0, setup_s: float = 3.0,
    own: Callable[[float], float] = lambda seconds: seconds, late: Callable[[int], float] = lambda index: 0.0,
    held: int = 1,
) -> list[Observation]:
    """Return the observations of a program that trains, prints every step and stops its clock while it evaluates.

    Args:
        own: what the program claims after so many true seconds of training.
        late: seconds by which each statement arrives late.
        held: statements that it holds back and writes at once.
    """
    now, trained, printed = setup_s, 0.0, []
    for step in range(1, steps + 1):
        now, trained = now + step_s, trained + step_s
        printed.append(("step", step, trained, now))
        if step % every == 0:
            now += evaluation_s
            printed.append(("evaluation", step, trained, now))
    arrived, found = 0.0, []
    for index, (what, step, trained, _) in enumerate(printed):
        group = index // held
        written = printed[min((group + 1) * held, len(printed)) - 1][3]
        arrived = max(arrived, written + late(group))
        kind: Seen = "step" if what == "step" else "evaluation"
        found.append(Observation(kind, ns(arrived), group, step=step, own_seconds=own(trained),
                                 value=1.0 if kind == "evaluation" else None))
    return found


def kinds(findings: Iterable[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def test_an_honest_program_passes_and_its_figures_are_right() -> None:
    found = compare(run(), STARTED, least_share=0.8)
    assert found.findings == ()
    assert found.steps_share == pytest.approx(1.0, abs=1e-6)
    assert found.judged_seconds == pytest.approx(4 * 9.9)
    assert found.share == pytest.approx(39.9 / (39.9 + 4 * 2), rel=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.002, 0.05, 0.4]))
def test_an_honest_program_passes_on_a_machine_that_keeps_us_waiting(seed: int, step_s: float) -> None:
    draw = random.Random(seed)
    waits = [draw.random() * LATENESS * 0.9 if draw.random() < 0.05 else draw.random() * 0.01 for _ in range(1000)]
    observations = run(step_s=step_s, late=lambda index: waits[index])
    assert compare(observations, STARTED).findings == ()


@pytest.mark.parametrize("held", [1, 7, 50, 137])
def test_output_that_waits_in_a_buffer_gives_bounds_that_hold_the_true_time(held: int) -> None:
    found = compare(run(held=held), STARTED)
    assert found.findings == ()
    arrived = run(held=held)
    for index, true in enumerate(run()):
        earliest = found.earliest.get(index)
        assert true.arrived_ns <= arrived[index].arrived_ns
        if true.seen == "evaluation":
            assert (true.arrived_ns, arrived[index].arrived_ns)[earliest is None] >= (
                arrived[index].arrived_ns - LATENESS * 1e9 if earliest is None else earliest)


@pytest.mark.parametrize("speed", [0.0, 0.5, 0.85])
def test_a_slow_clock_is_found(speed: float) -> None:
    found = compare(run(own=lambda seconds: seconds * speed), STARTED)
    assert kinds(found.findings) == ["slow"] * 4
    assert found.steps_share == pytest.approx(speed, abs=1e-6)
    assert "it runs slow, or leaves out work" in found.findings[0].text


def test_a_clock_slow_by_less_than_the_tolerance_is_no_finding_but_a_figure() -> None:
    found = compare(run(own=lambda seconds: seconds * 0.95), STARTED)
    assert found.findings == ()
    assert found.steps_share == pytest.approx(0.95)


def test_a_clock_that_stops_for_a_while_is_found() -> None:
    found = compare(run(own=lambda seconds: seconds if seconds < 22 else max(22.0, seconds - 6)), STARTED)
    assert kinds(found.findings) == ["slow"]
    [finding] = found.findings
    assert "counts 3.9 s of the 9.9 s" in finding.text


def test_one_late_arrival_is_no_slow_clock() -> None:
    steps = [*run(steps=20, every=1000)]
    late = [*steps[:-1], Observation("step", steps[-1].arrived_ns + 10**9, 99, step=20, own_seconds=2.0)]
    assert compare(late, STARTED).findings == ()


@pytest.mark.parametrize("speed", [1.2, 3.0])
def test_a_fast_clock_is_found_between_statements_and_since_the_start(speed: float) -> None:
    found = compare(run(own=lambda seconds: seconds * speed), STARTED)
    assert set(kinds(found.findings)) == {"ahead"}
    slow_start = compare(run(setup_s=60.0, own=lambda seconds: seconds * speed), STARTED)
    assert "ahead" in kinds(slow_start.findings)  # the long start hides it from the first check, not from the second


def test_a_claim_of_more_time_than_the_program_ran_is_impossible_however_its_output_arrives() -> None:
    found = compare(run(held=1000, setup_s=0.0, evaluation_s=0.0, own=lambda seconds: seconds * 1.1), STARTED)
    finding = next(finding for finding in found.findings if finding.kind == "ahead")
    assert "impossible" in finding.text


def test_evaluations_alone_give_a_share_that_is_unexplained_below_the_declared_one() -> None:
    evaluations = [one for one in run(own=lambda seconds: seconds * 0.5) if one.seen == "evaluation"]
    assert compare(evaluations, STARTED).findings == ()
    found = compare(evaluations, STARTED, least_share=0.6)
    assert kinds(found.findings) == ["unexplained"]
    assert found.share == pytest.approx(15 / 36)
    assert found.steps_share is None and found.judged_seconds == 0


@pytest.mark.parametrize(("late_s", "expected"), [(0.24, []), (0.6, ["unexplained"])])
def test_a_short_program_whose_last_line_arrives_late_leaves_nothing_unexplained(
    late_s: float, expected: list[str]
) -> None:
    found = run(steps=5, every=1, step_s=0.03, evaluation_s=0.0, setup_s=0.1,
                late=lambda index: late_s if index == 4 else 0.0)
    assert kinds(compare(found, STARTED, least_share=0.5).findings) == expected


def test_an_evaluation_after_every_step_leaves_nothing_to_judge_and_says_so() -> None:
    found = compare(run(every=1, evaluation_s=0.0, own=lambda seconds: seconds * 0.5), STARTED, least_share=0.9)
    assert kinds(found.findings) == ["unexplained"]
    assert found.judged_seconds == 0


def test_evaluations_of_one_read_have_no_arrival_of_their_own() -> None:
    found = compare(run(held=1000), STARTED)
    assert found.findings == ()
    assert found.earliest == dict.fromkeys((100, 201, 302), STARTED), "the last one came when it was printed"


def test_an_evaluation_is_held_back_if_the_own_clock_went_on_in_the_same_read() -> None:
    found = compare([
        Observation("evaluation", ns(10), 1, step=1, value=1.0, own_seconds=4.0),
        Observation("step", ns(10), 1, step=2, own_seconds=6.0),
        Observation("evaluation", ns(20), 2, step=3, value=1.0, own_seconds=9.0),
    ], STARTED)
    assert found.findings == () and found.earliest == {0: STARTED}


def test_a_row_of_a_file_has_the_look_before_it_as_its_bound_and_several_rows_the_rows_before() -> None:
    def row(second: float, look: int, step: int) -> Observation:
        return Observation("evaluation", ns(second), look, step=step, value=1.0, since_ns=ns(second - 0.25))

    found = compare([row(1, 4, 1), row(3, 12, 2), row(3, 12, 3)], STARTED)
    assert found.findings == () and found.earliest == {0: ns(0.75), 1: ns(1), 2: ns(1)}


def test_a_start_that_came_with_an_evaluation_has_bounds_too() -> None:
    found = compare([Observation("start", ns(3), 1), Observation("evaluation", ns(3), 1, value=1.0)], STARTED)
    assert found.findings == () and found.earliest == {0: STARTED, 1: STARTED}


@pytest.mark.parametrize(("dated", "words"), [
    (11.0, "1 s after it arrived"), (-2.0, "2 s before the program was started")])
def test_a_date_before_the_start_or_after_the_arrival_is_impossible(dated: float, words: str) -> None:
    found = compare([Observation("evaluation", ns(10), 1, value=1.0, own_ns=ns(dated))], STARTED)
    assert [finding.kind for finding in found.findings] == ["impossible time"]
    assert words in found.findings[0].text


def test_a_dated_statement_that_its_channel_should_bring_sooner_has_its_date_as_a_bound() -> None:
    dated = [Observation("evaluation", ns(10), 1, value=1.0, own_ns=ns(8))]
    assert compare(dated, STARTED).earliest == {}
    found = compare(dated, STARTED, longest_delay=1.0)
    assert found.findings == () and found.earliest == {0: ns(8)}


@pytest.mark.parametrize("observations", [
    [], [Observation("start", ns(1), 1)], [Observation("evaluation", ns(1), 1, value=math.nan)],
    [Observation("evaluation", ns(1), 1, value=1.0, own_seconds=0.5)],
    [Observation("step", ns(1), 1, own_seconds=0.5), Observation("step", ns(1), 2, own_seconds=0.5)],
])
def test_without_two_clocked_statements_there_is_nothing_to_compare(observations: list[Observation]) -> None:
    assert compare(observations, STARTED) == Agreement((), None, None, 0.0)


@pytest.mark.parametrize(("flags", "late"), [((), [0, 1, 2]), (("-u",), [])])
def test_a_real_program_that_prints_into_a_pipe(flags: tuple[str, ...], late: list[int]) -> None:
    code = "import time\nfor step in range(3):\n time.sleep(0.05)\n print(f'step {step} loss {step}.5')"
    started = time.monotonic_ns()
    splitter, reader = LineSplitter(), PatternReader({"evaluation": r"^step (?P<step>\d+) loss (?P<value>\S+)"})
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *flags, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=environment) as child:
        assert child.stdout is not None
        lines = [line for data in iter(partial(child.stdout.read, 65536), b"")
                 for line in splitter.feed(data, time.monotonic_ns())]
    observations = seen(reader, lines)
    assert [one.value for one in observations] == [0.5, 1.5, 2.5]
    assert list(compare(observations, started).earliest) == late


PIECES = st.lists(st.sampled_from([
    b"\n", b"\r", b"\r\n", b"\b", b"\b\b\b", b"abc", b"step 7", "\u2501".encode(), b"\xff\xe2", b"\x1b[1m", b"\x1b[K",
    b"\x1b]0;title\x07", b"x" * 41, b" ", b"\x1b", b"\x00"]), max_size=30).map(b"".join)


def texts(data: bytes, cuts: list[int], longest: int = 8) -> list[str]:
    splitter = LineSplitter(longest)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    lines = [line for start, end in pairwise(places) for line in splitter.feed(data[start:end], 0)]
    return [line.text for line in lines + splitter.end(0)]


@given(PIECES, st.lists(st.integers(0, 300), max_size=12))
def test_the_reads_do_not_change_the_texts(data: bytes, cuts: list[int]) -> None:
    assert texts(data, cuts) == texts(data, []) == texts(data, list(range(len(data))))


@pytest.mark.parametrize(("data", "expected"), [
    (b"a\nb\n", ["a", "b"]),
    (b"a\r\nb\r\n", ["a", "b"]),
    (b"a\nrest", ["a", "rest"]),
    (b"10%\r50%\r100% val 0.9\n", ["100% val 0.9"]),
    (b"10%\r50%\r", ["50%"]),
    (b"old\r\r\n", ["old"]),
    (b"abc\b\b\bxy\n", ["xy"]),
    (b"\b\bab\n", ["ab"]),
    (b"\x1b[1m\x1b[38;5;12mval\x1b[0m 0.9\x1b[K\n", ["val 0.9"]),
    (b"\x1b]0;a title\x07text \x1b(Bmore\n", ["text more"]),
    ("gr\u00fc\u00df \u2501\n".encode(), ["gr\u00fc\u00df \u2501"]),
    (b"bad \xff byte\n", ["bad \ufffd byte"]),
    (b"\n\n", ["", ""]),
    (b"", []),
])
def test_what_a_terminal_shows_last_is_the_line(data: bytes, expected: list[str]) -> None:
    assert texts(data, [], longest=LONGEST) == expected


def test_a_line_has_the_time_and_the_number_of_the_read_that_ended_it() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"first\nsec", 10) == [Line("first", 10, 1)]
    assert splitter.feed(b"o", 20) == []
    assert splitter.feed(b"nd\nthird\nlast", 30) == [Line("second", 30, 3), Line("third", 30, 3)]
    assert splitter.end(40) == [Line("last", 40, 4)]
    assert splitter.end(50) == []


def test_a_write_larger_than_a_pipe_is_one_read() -> None:
    splitter = LineSplitter()
    whole = b"step 1 loss 0.5\n" + b"x" * 150_000 + b"\nstep 2 loss 0.4\n"
    lines = [line for first in range(0, len(whole), 65536)
             for line in splitter.feed(whole[first:first + 65536], 1_000 + first)]
    assert {line.read for line in lines} == {1}
    reader = PatternReader({"evaluation": r"^step (?P<step>\d+) loss (?P<value>\S+)"})
    assert list(compare(seen(reader, lines), 0).earliest) == [0, 1]
    assert splitter.feed(b"later\n", 10**9)[0].read == 2


@pytest.mark.parametrize("chunk", [b"x" * 65536, b"bar\r" * 16384, b"\b" * 65536, b"\x1b[1m" * 16384])
def test_a_line_without_end_takes_no_memory(chunk: bytes) -> None:
    splitter = LineSplitter()
    for _ in range(200):
        assert splitter.feed(chunk, 0) == []
    assert sys.getsizeof(splitter._pending) <= 4 * LONGEST + 100
    [line] = splitter.feed(b"\n", 0)
    assert len(line.text) <= LONGEST
