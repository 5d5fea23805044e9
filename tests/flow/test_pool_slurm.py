"""A suite in a pool on a real Slurm: a job array on two nodes of one core each, and what may end its tasks."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.compare import compare
from repro.record.folder.store import Record, read_record
from tests.commands import command, environment, start
from tests.flow.test_pool import suite, weights
from tests.slurm_cluster import Cluster, needs_slurm, slurm
from tests.waiting import until

pytestmark = [pytest.mark.slow, needs_slurm]
PIN = "taskset -cp $([ $SLURMD_NODENAME = alpha ] && echo 0 || echo 1) $$ > /dev/null"
"""One core for each node: the nodes share this machine, and Slurm's tests do not bind tasks."""


class Pool:
    """A folder in which suites run in a pool of the cluster."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.variables = {**cluster.variables, "REPRO_SETUP": PIN}

    def start(self, name: str, epochs: int, pool: str = "{kind: slurm, lanes: 2}", *more: str
              ) -> subprocess.Popen[str]:
        suite(self.folder, epochs)
        return start(self.folder, "run", "s.yaml", "--no-mlflow", "--out", name, "--pool", pool, *more, "--",
                     "--partition=tests", **self.variables)

    def tasks(self, state: str = "RUNNING") -> list[str]:
        """Return the tasks of arrays in a state, `JOB_TASK`."""
        return self.cluster.told("squeue", "--noheader", "--array", f"--states={state}", "--format=%F_%K").split()

    def begun(self, name: str) -> list[str]:
        """Return the running tasks of which a trial has begun."""
        shards = {path.read_text().strip(): path.parent for path in (self.folder / name).glob("shards/*/task")}
        return [task for task in self.tasks() if task in shards and list(shards[task].glob("*/trials/*/system_1.txt"))]

    def resume(self, name: str, *options: str) -> None:
        ended = command(self.folder, "run", "--resume", name, "--no-mlflow", *options, **self.variables)
        assert ended.code == 0, ended.error

    def complete(self, name: str) -> Record:
        """Return a record of which nothing is missing, doubled or modified, with a verdict."""
        record = read_record(self.folder / name)
        assert [item.status for item in record.results] == ["ok"] * 12
        verified = command(self.folder, "verify", name)
        assert verified.code == 0, verified.out
        (found,) = compare(record.plan, record.results, execution=record.execution)
        assert found.left_out == () and found.verdict in ("faster", "slower", "same", "inconclusive")
        return record


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield Pool(tmp_path_factory.mktemp("pool"), cluster)


def test_two_nodes_give_the_record_of_one(pool: Pool) -> None:
    run = pool.start("two", 10)
    until(lambda: len(pool.tasks()) == 2, run)  # two lanes at the same time
    _, error = run.communicate(timeout=500)
    assert run.returncode == 0, error
    record = pool.complete("two")
    hosts = {item.shard: item.nodes[0].partition(",")[0] for item in record.attempts}
    assert set(hosts.values()) == {"alpha", "beta"} and len(hosts) == 6
    assert record.plan.cores == record.environment.cores == 1
    jobs = [moment.allocation for moment in record.node_history]
    assert all(job is not None and job.array_task and job.exclusive for job in jobs), jobs
    assert command(pool.folder, "run", "s.yaml", "--no-mlflow", "--out", "alone").code == 0
    assert weights(record) == weights(read_record(pool.folder / "alone"))


LIMITED = """\
#!/bin/sh
there=$(squeue --noheader --me --array | wc -l)
count=0
for word; do case $word in --array=0-*) last=${word#--array=0-}; count=$((${last%%%*} + 1));; esac; done
if [ $count -gt 0 ] && [ $((there + count)) -gt $MOST ]; then
  echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size \
and/or time limits)" >&2
  exit 1
fi
exec """
"""An sbatch that refuses an array as Slurm does whose accounts may have $MOST jobs."""


def limited(pool: Pool, folder: Path, most: int) -> Pool:
    (folder / "sbatch").write_text(f'{LIMITED}{shutil.which("sbatch")} "$@"\n')
    (folder / "sbatch").chmod(0o755)
    found = Pool(pool.folder, pool.cluster)
    found.variables |= {"PATH": f"{folder}:{environment()['PATH']}", "MOST": str(most)}
    return found


def test_a_limit_of_submitted_jobs_makes_smaller_arrays(pool: Pool, tmp_path: Path) -> None:
    run = limited(pool, tmp_path, 3).start("limited", 10, "{kind: slurm, lanes: 4}")
    _, error = run.communicate(timeout=500)
    assert run.returncode == 0, error
    assert ("3 tasks are submitted, the other 3 as jobs end: sbatch refuses: AssocMaxSubmitJobLimit; Batch job "
            "submission failed: Job violates accounting/QOS policy") in error, error
    record = pool.complete("limited")
    assert sorted(item.shard for item in record.attempts) == [f"{shard}/1" for shard in range(1, 7) for _ in range(2)]
    assert len({path.read_text() for path in (pool.folder / "limited").glob("shards/*/task")}) == 6


def test_a_single_task_that_is_refused_ends_the_pool(pool: Pool, tmp_path: Path) -> None:
    run = limited(pool, tmp_path, 0).start("full", 1)
    _, error = run.communicate(timeout=200)
    assert run.returncode == 2 and error.splitlines()[-1].startswith(
        "error: sbatch refuses: AssocMaxSubmitJobLimit; Batch job submission failed: "), error
    assert "`squeue --me` shows the jobs that count" in error
    assert error.endswith("--resume RUN submits the blocks that are missing\n"), error
    pool.resume("full")
    pool.complete("full")


SILENT = """\
#!/bin/sh
if [ -e $FOLDER/second ] && [ ! -e $FOLDER/third ]; then
  touch $FOLDER/third
  [ $TAKEN = no ] || SBATCH "$@" > /dev/null
  echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
  exit 1
fi
[ -e $FOLDER/first ] && touch $FOLDER/second || touch $FOLDER/first
exec """
"""An sbatch whose third answer, to the second array, gets lost, after $TAKEN."""


@pytest.mark.parametrize("taken", ["yes", "no"])
def test_an_array_of_which_slurm_says_nothing_runs_once(pool: Pool, tmp_path: Path, taken: str) -> None:
    real = str(shutil.which("sbatch"))
    (tmp_path / "sbatch").write_text(f'{SILENT.replace("SBATCH", real)}{real} "$@"\n')
    (tmp_path / "sbatch").chmod(0o755)
    silent, name = Pool(pool.folder, pool.cluster), f"silent-{taken}"
    silent.variables |= {"PATH": f"{tmp_path}:{environment()['PATH']}", "FOLDER": str(tmp_path), "TAKEN": taken}
    run = silent.start(name, 60)
    lost = until(lambda: pool.begun(name), run)[0]
    pool.cluster.told("scancel", lost)  # its block needs another array
    _, error = run.communicate(timeout=500)
    assert run.returncode == 0, error
    assert "Socket timed out on send/recv operation; `squeue --name" in error, error
    record = pool.complete(name)
    starts = [item.shard for item in record.attempts if item.status == "ok"]
    assert len(starts) == 12 and all(starts.count(shard) == 2 for shard in starts), starts


def hear(run: subprocess.Popen[str], words: str) -> str:
    """Return the next line of stderr that has these words."""
    assert run.stderr is not None
    return next(line for line in run.stderr if words in line)


def test_the_reason_of_slurm_is_shown_while_a_job_waits(pool: Pool) -> None:
    def limit(time: str) -> None:
        pool.cluster.told("scontrol", "update", "PartitionName=tests", f"MaxTime={time}")

    def take_both_nodes() -> str:
        return pool.cluster.told("sbatch", "--parsable", "--partition=tests", "--nodes=2", "--exclusive",
                                 "--output=/dev/null", "--wrap", "sleep 600").strip()

    limit("2")
    run = pool.start("waiting", 2)
    assert hear(run, "PartitionTimeLimit").startswith(
        "1 job in Slurm's queue: PartitionTimeLimit (it asks for more time than is allowed: never starts; Ctrl-C, then "
        "pass a shorter --time after --)")
    first = take_both_nodes()
    until(lambda: pool.cluster.told("squeue", "--noheader", f"--job={first}", "--format=%T").strip() == "RUNNING", run)
    second = take_both_nodes()
    limit("INFINITE")
    assert hear(run, "in Slurm's queue") == "1 job in Slurm's queue: Resources (no node is free)\n"
    pool.cluster.told("scancel", first)
    assert hear(run, "in Slurm's queue").startswith("6 jobs in Slurm's queue: ")
    pool.cluster.told("scancel", second)
    _, error = run.communicate(timeout=500)
    assert run.returncode == 0, error
    pool.complete("waiting")


def test_requeue_cancel_a_node_down_and_a_killed_coordinator(pool: Pool) -> None:
    run = pool.start("faults", 200, "{kind: slurm, lanes: 2, blocks_per_task: 2}")
    try:
        first = until(lambda: pool.begun("faults"), run)[0]
        pool.cluster.told("scontrol", "requeue", first)
        second = until(lambda: [task for task in pool.begun("faults") if task != first], run)[0]
        pool.cluster.told("scancel", second)
        until(lambda: "run again as a whole" in (pool.folder / "faults/incidents.jsonl").read_text()
              if (pool.folder / "faults/incidents.jsonl").exists() else False, run)
        third = until(lambda: [task for task in pool.begun("faults") if task not in (first, second)], run)[0]
        node = pool.cluster.told("squeue", "--noheader", "--format=%N", f"--job={third}").strip()
        pool.cluster.told("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        time.sleep(2)
        pool.cluster.told("scontrol", "update", f"NodeName={node}", "State=RESUME")
        until(lambda: list((pool.folder / "faults").glob("trials/*/result.json")), run)
    finally:
        run.kill()
        run.communicate()
    pool.resume("faults")
    record = pool.complete("faults")
    assert any(item.status in ("started", "interrupted", "lost") for item in record.attempts)
    assert any(item.shard.endswith("/2") for item in record.attempts), "a task that Slurm started again"
    assert not pool.tasks() and not pool.tasks("PENDING")


def test_ctrl_c_ends_the_tasks_and_resume_runs_the_missing_blocks(pool: Pool) -> None:
    run = pool.start("cut", 60)
    until(lambda: list((pool.folder / "cut").glob("trials/*/result.json")), run)
    run.terminate()
    _, error = run.communicate(timeout=120)
    assert run.returncode == 130 and "resume with: repro run --resume cut" in error, error
    assert not pool.tasks() and not pool.tasks("PENDING")
    before = read_record(pool.folder / "cut").results
    assert 0 < len(before) < 12
    pool.resume("cut")
    record = pool.complete("cut")
    assert {item.trial_id: item for item in record.results}.items() >= {item.trial_id: item for item in before}.items()


def test_an_array_that_somebody_cancels_is_not_submitted_again(pool: Pool) -> None:
    run = pool.start("stopped", 200)
    array = until(lambda: pool.begun("stopped"), run)[0].partition("_")[0]
    pool.cluster.told("scancel", array)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 1 and "were cancelled, so no others are started" in error, (run.returncode, error)
    assert not pool.tasks() and not pool.tasks("PENDING")
    pool.resume("stopped", "--", "--partition=tests", "--job-name=mine")
    pool.complete("stopped")


@pytest.mark.parametrize(("options", "said"), [
    (("--partition=tests", "--array=3"), "--array=3: a pool sets it itself"),
    (("--partition=nowhere",), "sbatch refuses: "),
    (("--partition=tests", "--nodes=2"), "--nodes=2: the number of nodes is launcher.nodes, 1 here"),
])
def test_what_slurm_refuses_leaves_no_folder(pool: Pool, options: tuple[str, ...], said: str) -> None:
    suite(pool.folder, 1)
    ended = command(pool.folder, "run", "s.yaml", "--no-mlflow", "--out", "refused", "--pool",
                    "{kind: slurm, lanes: 2}", "--", *options, **pool.variables)
    assert ended.code == 2 and said in ended.error, ended.error
    assert [line for line in ended.error.splitlines() if not line.startswith("a short job asks a node")] == [
        ended.error.splitlines()[-1]], ended.error
    assert not (pool.folder / "refused").exists() and not list(pool.folder.glob(".refused*"))


def test_a_set_up_that_fails_is_named(pool: Pool) -> None:
    suite(pool.folder, 1)
    ended = command(pool.folder, "run", "s.yaml", "--no-mlflow", "--out", "unset", "--pool", "{kind: slurm, lanes: 2}",
                    "--", "--partition=tests", **{**pool.variables, "REPRO_SETUP": "false"})
    assert ended.code == 2 and "the job that asks a node for its cores and GPUs failed: " in ended.error, ended.error
    assert not (pool.folder / "unset").exists()
