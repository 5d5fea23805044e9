"""Launcher slurm on a real Slurm with two nodes: submit, cancel, requeue, time limit, two suites at once, refusals."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.record.folder.store import Record, read_record
from tests.commands import command, environment
from tests.flow.test_nodes import written
from tests.slurm_cluster import needs_slurm, slurm

pytestmark = [pytest.mark.slow, needs_slurm]
LAUNCHER = "{kind: slurm, nodes: 2, silence_seconds: 5}"


class Site:
    """A Slurm cluster and a folder in which runs are submitted."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables

    def submit(self, name: str, epochs: int, seeds: int, *options: str) -> str:
        """Submit a suite and return the job's number."""
        (self.folder / f"{name}.yaml").write_text(
            written(seeds, epochs, LAUNCHER))
        code, said, error = command(self.folder, "run", f"{name}.yaml", "--no-mlflow", "--out", name, "--",
                                    "--partition=tests", *options, **self.variables)
        assert code == 0, error
        assert f"its output: {name}.slurm.log, the run: {name}\nnext: squeue" in said
        return said.split()[1]

    def told(self, *words: str) -> str:
        return subprocess.run(words, env=environment(**self.variables), check=True, capture_output=True, text=True,
                              timeout=60).stdout

    def state(self, job: str) -> str:
        return self.told("scontrol", "show", "job", job).partition("JobState=")[2].split()[0]

    def wait(self, job: str, *states: str, seconds: float = 240) -> None:
        until = time.monotonic() + seconds
        while (found := self.state(job)) not in states:
            assert time.monotonic() < until, (found, *(path.read_text() for path in self.folder.glob("*.slurm.log")))
            time.sleep(0.3)

    def wait_for(self, pattern: str, seconds: float = 200) -> None:
        until = time.monotonic() + seconds
        while not list(self.folder.glob(pattern)):
            assert time.monotonic() < until, [path.read_text() for path in self.folder.glob("*.slurm.log")]
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.slurm.log").read_text()

    def complete(self, name: str, trials: int) -> Record:
        """Return a record of which nothing is missing, doubled or modified."""
        record = read_record(self.folder / name)
        assert [item.status for item in record.results] == ["ok"] * trials, self.log(name)
        assert command(self.folder, "verify", name)[0] == 0
        return record


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield Site(tmp_path_factory.mktemp("site"), variables)


def test_two_submitted_suites_run_at_once_on_both_nodes(site: Site) -> None:
    jobs = {name: site.submit(name, 2, 2) for name in ("one", "two")}
    for name, job in jobs.items():
        site.wait(job, "COMPLETED", "FAILED")
        record = site.complete(name, 2)
        assert record.nodes.allocation is not None
        assert (record.nodes.allocation.job, record.nodes.allocation.nodes) == (job, ("alpha", "beta"))
        assert record.nodes.allocation.queued_seconds is not None
        assert [node.node for node in record.nodes.nodes] == [1]
    assert "REPRO_SECRET" not in site.log("one") + site.told("scontrol", "show", "job", jobs["one"])


def test_a_requeued_job_resumes_its_run(site: Site) -> None:
    job = site.submit("requeued", 100, 2)
    site.wait_for("requeued/trials/*/result.json")
    before = read_record(site.folder / "requeued").results
    site.told("scontrol", "requeue", job)
    time.sleep(2)
    site.wait(job, "COMPLETED", "FAILED")
    record = site.complete("requeued", 2)
    assert [item for item in record.results if item.trial_id == before[0].trial_id] == list(before)
    assert any(item.kind == "resumed" for item in record.incidents)


def test_a_cancelled_job_leaves_a_run_that_can_be_resumed(site: Site) -> None:
    job = site.submit("cancelled", 2000, 1)
    site.wait_for("cancelled/trials/*/system_1.txt")
    site.told("scancel", job)
    site.wait(job, "CANCELLED")
    until = time.monotonic() + 60
    while "interrupted by SIGTERM" not in site.log("cancelled"):
        assert time.monotonic() < until, site.log("cancelled")
        time.sleep(0.2)
    time.sleep(3)
    assert command(site.folder, "verify", "cancelled")[0] == 1, "incomplete"
    assert read_record(site.folder / "cancelled").results == ()


def test_a_time_limit_interrupts_the_run_before_it_kills_it(site: Site) -> None:
    job = site.submit("limited", 4000, 1, "--time=2")
    site.wait(job, "COMPLETED", "FAILED", "TIMEOUT")
    assert "interrupted by SIGTERM" in site.log("limited")
    assert command(site.folder, "verify", "limited")[0] == 1, "incomplete"


@pytest.mark.parametrize(("arguments", "words"), [
    (("--", "--partition=nowhere"), "error: sbatch refuses: sbatch: error: Batch job submission failed: Invalid "
                                    "partition name specified"),
    (("--", "--nodes=3"), "error: --nodes=3: the number of nodes is launcher.nodes, 2 here"),
    (("--launcher", "local", "--", "--nodes=3"), "only launcher slurm outside a job takes options after --"),
])
def test_what_is_refused_is_one_line(site: Site, arguments: tuple[str, ...], words: str) -> None:
    (site.folder / "bad.yaml").write_text(written(1, 1, LAUNCHER))
    code, _, error = command(site.folder, "run", "bad.yaml", "--no-mlflow", "--out", "bad", *arguments,
                             **site.variables)
    assert code == 2 and words in error
    assert not (site.folder / "bad").exists()


def test_a_job_with_too_few_nodes_says_so(site: Site) -> None:
    (site.folder / "few.yaml").write_text(written(1, 1, LAUNCHER))
    code, _, error = command(site.folder, "run", "few.yaml", "--no-mlflow", "--out", "few", SLURM_JOB_ID="1",
                             SLURM_JOB_NODELIST="alpha", **site.variables)
    assert code == 2
    assert "error: Slurm job 1 has 1 nodes, launcher.nodes is 2; submit it with --nodes=2" in error
