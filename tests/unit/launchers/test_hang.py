"""Hung ranks distinguished by their stacks, and the files that a launch leaves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from repro.launchers.processes import hang, rank
from repro.launchers.processes.hang import STOPPED, FileGrowth
from repro.launchers.processes.rank_processes import hung_ends
from repro.record.folder import post_mortem
from repro.record.log.reading import log_damage
from repro.record.result.reasons import LogDamaged
from repro.seams.launching import LaunchResult, RankEnd
from tests.waiting import until

DUMP = """\
something printed before
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3/threading.py", line 331 in wait

Current thread 0x00008a (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3000 in all_reduce
  File "/x/repro/engines/ddp_session.py", line 12 in step
  File "/x/repro/launchers/processes/rank.py", line 70 in run
  File "/x/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 700 in _wrap
Extension modules: numpy (total: 1)
"""
WAITS = [("/x/torch/distributed/distributed_c10d.py", "all_reduce (distributed_c10d.py:3000)")]
SLEEPS = [("/x/plugin.py", "nap (plugin.py:3)")]


def test_the_stack_of_the_thread_that_was_asked_is_read() -> None:
    assert [text for _, text in hang.innermost(DUMP)] == ["all_reduce (distributed_c10d.py:3000)",
                                                          "step (ddp_session.py:12)"]
    assert hang.innermost("nothing of the kind") == []


def test_the_frame_below_which_nothing_is_read_is_the_rank_module() -> None:
    assert rank.__file__.endswith(hang.BELOW)


@pytest.mark.parametrize(("stacks", "blamed"), [
    ({0: WAITS, 1: SLEEPS, 2: WAITS}, 1),
    ({0: WAITS, 1: [("", STOPPED)]}, 1),
    ({0: SLEEPS, 1: SLEEPS}, None),
    ({0: WAITS, 1: WAITS}, None),
    ({0: SLEEPS}, None),
    ({}, None),
])
def test_the_rank_that_blocks_the_others_is_found(stacks: dict[int, list[tuple[str, str]]], blamed: int | None) -> None:
    assert hang.find_hung_rank(stacks) == blamed


def test_each_rank_reports_its_frame_and_the_rank_it_waited_for(tmp_path: Path) -> None:
    stacks = {0: WAITS, 1: [("", STOPPED)]}
    first, second, third = hung_ends([-9, -9, None], hang.find_hung_rank(stacks), hang.reasons(stacks, 3, 2.5))
    assert second.reason == "hung: no event for 2.5 s, it was stopped by a signal"
    assert first.cause == third.cause == "ended_after_another_rank"
    assert first.reason == ("after rank 1: hung: no event for 2.5 s, it was in all_reduce (distributed_c10d.py:3000)"
                            "; all stacks are in its log")
    assert (third.exit_code, third.reason) == (-9, "after rank 1: hung: no event for 2.5 s, and it did not answer")
    assert LaunchResult((first, second, third), 3.0, hung=True).first_failure == second


def test_a_file_that_grows_is_progress(tmp_path: Path) -> None:
    path = tmp_path / "log"
    progress = FileGrowth(path, 0.05)
    assert not progress.stalled()
    time.sleep(0.06)
    path.write_text("event")
    assert not progress.stalled(), "it has just come to be"
    time.sleep(0.06)
    assert progress.stalled()
    path.write_text("event event")
    assert not progress.stalled()


def failed(folder: Path, printed: bytes, code: int = 1, reason: str = "") -> RankEnd:
    """Return the reported failure of rank 1, which also printed in an earlier attempt."""
    (folder / "rank1.log").write_bytes(b"words of an earlier attempt\n")
    then = post_mortem.take_snapshot(folder)
    with (folder / "rank1.log").open("ab") as stream:
        stream.write(printed)
    ends = (RankEnd(0, -15, "after rank 1: killed", cause="ended_after_another_rank"), RankEnd(1, code, reason))
    outcome = post_mortem.explain(LaunchResult(ends, 1.0), then)
    assert outcome.ends[0].tail == ""
    assert outcome.first_failure is not None
    return outcome.first_failure


def test_the_tail_of_the_log_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    assert failed(tmp_path, b"one\ntwo\n\n  three\nfour \xff\n").tail == "two | three | four \ufffd"
    assert failed(tmp_path, b"").tail == "", "an earlier attempt's words are not this one's"
    assert failed(tmp_path, b"at line 5\nValueError: no\n", reason="ValueError: no").tail == "at line 5"
    assert len(failed(tmp_path, b"x" * 100_000).tail) == post_mortem.LONGEST


def test_a_rank_that_the_kernel_killed_ran_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5, 5, 5])
    monkeypatch.setattr(post_mortem, "oom_kills", lambda: next(counts))
    first, second = (failed(tmp_path, b"", -signal.SIGKILL, "killed by SIGKILL") for _ in range(2))
    assert first.cause == "out_of_memory" and first.reason.startswith("out of memory: killed by SIGKILL")
    assert second.reason == "killed by SIGKILL"


def test_the_kernels_count_is_read_here() -> None:
    if not Path("/proc/vmstat").exists():
        pytest.skip("no /proc/vmstat on this system")
    assert (post_mortem.oom_kills() or 0) >= 0


EVENT = (':::MLLOG {{"namespace": "", "time_ms": 1.0, "event_type": "POINT_IN_TIME", "key": "{}", "value": {}, '
         '"metadata": {{}}}}\n')
FIRST, LAST = EVENT.format("cache_clear", "true"), EVENT.format("x_effective", "{}")
WHOLE = "".join((FIRST, EVENT.format("x_foreign", 1), EVENT.format("x_other", 1), LAST))


@pytest.mark.parametrize(("text", "said"), [
    (WHOLE, ""),
    (WHOLE[:-1], "its log ends in the middle of a line"),
    ("", "its log ends in the middle of a line"),
    ("\0" * 40 + WHOLE, "1 of 4 lines of its log are damaged"),
    (WHOLE.replace('"key": "x_foreign"', '"key" "x_foreign"'), "1 of 4 lines of its log are damaged"),
    (WHOLE[len(FIRST):], "its log does not go from its first event to its last"),
    (WHOLE[:-len(LAST)], "its log does not go from its first event to its last"),
])
def test_a_log_that_was_touched_is_damaged(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "result_1.txt"
    path.write_text(text)
    found = log_damage(path)
    assert said == found.damage if found else not said


def test_a_log_that_is_gone_is_damaged(tmp_path: Path) -> None:
    assert log_damage(tmp_path / "none") == LogDamaged(
        problem="unreadable", error="No such file or directory")


def test_a_process_that_is_stopped_is_known_by_its_state() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: hang._is_stopped(pid))
        assert not hang._is_stopped(os.getpid())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
