"""The job arrays of a pool under a limit of submitted jobs, with an sbatch and a squeue that a file stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import UsageError
from repro.launchers.nodes.slurm_queue import Queue
from repro.record.folder.store import RunFolder
from repro.runner.pool.engines import Pool, SlurmArray, StoredPool

SBATCH = """\
#!/bin/sh
cd "$(dirname "$0")"
for word; do case $word in --array=0-*) last=${word#--array=0-}; last=${last%%%*};; esac; done
there=$(grep -c -e RUNNING -e PENDING queue)
if [ $((there + last + 1)) -gt $(cat most) ]; then echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; fi
[ "$(cat answer)" = lost ] && { echo "sbatch: error: Message receive failure" >&2; exit 1; }
job=$(($(cat job) + 1)); echo $job > job
for task in $(seq 0 $last); do echo "${job}_$task|RUNNING|None" >> queue; done
[ "$(cat answer)" = late ] && kill -9 $$
echo $job
"""
SQUEUE = """\
#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
  *--Format=*)
    for job in $(sed 's/_.*//' queue | sort -u); do printf '%-20s%s\\n' "$job" "$PWD/run/shards/%A_%a.log"; done;;
  *) cat queue;;
esac
"""
SCANCEL = """\
#!/bin/sh
cd "$(dirname "$0")"
for job; do sed -i "s/^\\(${job}_.*\\)RUNNING/\\1CANCELLED/" queue; done
"""


class Slurm:
    """A queue that the test changes."""

    def __init__(self, place: Path, most: int) -> None:
        self.place, self.told = place, list[str]()
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL), ("queue", ""), ("job", "0"),
                           ("most", str(most)), ("answer", "")):
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        folder = RunFolder(place / "run")
        for shard in range(1, 21):
            (folder.shards / str(shard)).mkdir(parents=True)
        self.array = self.again()

    def again(self) -> SlurmArray:
        """Return what a later command knows of the pool."""
        return SlurmArray(StoredPool(pool=Pool(kind="slurm", lanes=4, blocks_per_task=1), name="x"),
                          RunFolder(self.place / "run"), Queue(self.told.append))

    def answer(self, how: str) -> None:
        (self.place / "answer").write_text(how)

    @property
    def rows(self) -> list[str]:
        return (self.place / "queue").read_text().split()

    def end(self, state: str, count: int) -> None:
        text = (self.place / "queue").read_text()
        (self.place / "queue").write_text(text.replace("RUNNING", state, count))

    def active(self) -> int:
        return sum("RUNNING" in row for row in self.rows)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Slurm(tmp_path, 3)


def test_every_shard_is_submitted_once_and_never_more_than_the_limit(slurm: Slurm) -> None:
    slurm.array.start(range(1, 21))
    assert slurm.active() == 3 and slurm.array.room() == 0
    assert slurm.told == ["3 tasks are submitted, the other 17 as jobs end: sbatch refuses: "
                          "QOSMaxSubmitJobPerUserLimit (`squeue --me` shows the jobs that count; another --account or "
                          "--qos after -- may have room)"]
    ended = 0
    while slurm.array.running():
        assert slurm.active() <= 4
        if ended == 5:
            (slurm.place / "most").write_text("10")  # other jobs of the user have ended
        slurm.end("COMPLETED", 1)
        ended += 1
    assert len(slurm.told) == 1
    assert sorted(slurm.array.tasks.values()) == list(range(1, 21)) and len(slurm.rows) == 20
    assert ended >= 20


def test_tasks_that_are_cancelled_at_once_are_not_followed_by_others(slurm: Slurm) -> None:
    slurm.array.start(range(1, 21))
    slurm.end("CANCELLED", 3)
    assert slurm.array.running() == set() and slurm.array.cancelled() == set(range(1, 21))
    assert len(slurm.rows) == 3


def test_a_lost_task_is_no_reason_to_stop(slurm: Slurm) -> None:
    slurm.array.start(range(1, 21))
    slurm.end("CANCELLED", 1)
    assert slurm.array.running() == set(range(2, 21)) and slurm.active() == 3


def test_a_single_task_that_is_refused_is_an_error(slurm: Slurm) -> None:
    (slurm.place / "most").write_text("0")
    with pytest.raises(UsageError, match=r"sbatch refuses: QOSMaxSubmitJobPerUserLimit .*; --resume RUN submits the"):
        slurm.array.start([1, 2])


def test_an_array_whose_answer_is_lost_is_known_and_not_submitted_twice(slurm: Slurm) -> None:
    slurm.array.start([1])
    slurm.answer("late")  # Slurm has it, and sbatch is killed
    slurm.array.start([2, 3])
    assert slurm.array.running() == {1, 2, 3} and len(slurm.rows) == 3
    assert slurm.told == ["sbatch was ended by signal 9; `squeue --name x` shows whether the job is submitted all the "
                          "same; the queue is asked"]
    assert slurm.array.tasks == {"1_0": 1, "2_0": 2, "2_1": 3} == slurm.again().tasks


def test_an_array_that_slurm_does_not_have_is_submitted_again_when_it_is_asked_twice(slurm: Slurm) -> None:
    slurm.array.start([1])
    slurm.answer("lost")
    slurm.array.start([2, 3])
    slurm.answer("")
    assert slurm.array.running() is None and len(slurm.rows) == 1
    assert slurm.array.running() == {1, 2, 3} and len(slurm.rows) == 3


@pytest.mark.parametrize("answer", ["late", "lost"])
def test_a_first_array_without_an_answer_ends_the_pool_and_leaves_no_task(slurm: Slurm, answer: str) -> None:
    slurm.answer(answer)
    with pytest.raises(UsageError, match="--resume RUN goes on with it"):
        slurm.array.start([1, 2])
    slurm.array.cancel()
    assert slurm.active() == 0


def test_a_later_command_knows_an_array_of_one_that_was_killed_before_the_answer(slurm: Slurm) -> None:
    slurm.answer("late")
    with pytest.raises(UsageError):
        slurm.array.start([1, 2])
    later = slurm.again()
    assert later.unsure == [1, 2] and later.running() == {1, 2} and later.tasks == {"1_0": 1, "1_1": 2}
