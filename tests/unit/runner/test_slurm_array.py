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
job=$(($(cat job) + 1)); echo $job > job; echo $job
for task in $(seq 0 $last); do echo "${job}_$task|RUNNING|None" >> queue; done
"""


class Slurm:
    """A queue that the test changes."""

    def __init__(self, place: Path, most: int) -> None:
        self.place, self.told = place, list[str]()
        for name, text in (("sbatch", SBATCH), ("squeue", '#!/bin/sh\ncat "$(dirname "$0")/queue"\n'),
                           ("queue", ""), ("job", "0"), ("most", str(most))):
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        folder = RunFolder(place / "run")
        for shard in range(1, 21):
            (folder.shards / str(shard)).mkdir(parents=True)
        self.array = SlurmArray(StoredPool(pool=Pool(kind="slurm", lanes=4, blocks_per_task=1), name="x"), folder,
                                Queue(self.told.append))

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
