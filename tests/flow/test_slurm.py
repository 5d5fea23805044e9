"""Launcher slurm on a real Slurm with two nodes: submit, cancel, requeue, time limit, two suites at once, refusals."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.record.environment.nodes import shared_nodes
from repro.record.folder.store import read_record
from repro.runner.run import prepare
from tests.chaos.slurm_faults import agents
from tests.commands import command
from tests.flow.test_nodes import written
from tests.plans import planned
from tests.slurm_cluster import needs_slurm, slurm
from tests.slurm_site import LAUNCHER, Site

pytestmark = [pytest.mark.slow, needs_slurm]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield Site(tmp_path_factory.mktemp("site"), cluster)


def shown(site: Site, job: str, name: str) -> str:
    """Return a field of a job as Slurm shows it."""
    return site.told("scontrol", "show", "job", job).partition(f" {name}=")[2].split()[0]


@pytest.mark.parametrize(("kind", "options", "cores"), [("whole", (), "8"), ("shared", ("--cpus-per-task=1",), "2")])
def test_jobs_have_whole_nodes_unless_the_user_asks_for_less(
    site: Site, kind: str, options: tuple[str, ...], cores: str
) -> None:
    jobs = {name: site.submit(name, 2, 2, *options) for name in (f"one-{kind}", f"two-{kind}")}
    for name, job in jobs.items():
        site.wait(job, "COMPLETED", "FAILED")
        found = site.complete(name, 2).nodes
        assert found.allocation is not None
        assert (found.allocation.job, found.allocation.nodes) == (job, ("alpha", "beta"))
        assert found.allocation.queued_seconds is not None
        assert [node.node for node in found.nodes] == [1]
        assert f"cpu={cores}," in (found.allocation.resources or "")
        assert (found.allocation.partition, found.allocation.restarts) == ("tests", 0)
        assert found.allocation.exclusive is (kind == "whole")
        assert len(list(shared_nodes(found.allocation))) == (kind == "shared")
    one, two = jobs.values()
    one_after_the_other = shown(site, two, "StartTime") >= shown(site, one, "EndTime")
    assert one_after_the_other == (kind == "whole")
    assert "REPRO_SECRET" not in site.log(f"one-{kind}") + site.told("scontrol", "show", "job", one)


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


def test_a_job_that_is_requeued_goes_on_on_another_node(site: Site) -> None:
    job = site.submit("moved", 100, 3, launcher="{kind: slurm, nodes: 1}")
    site.wait_for("moved/trials/*/result.json")
    first = site.told("squeue", "--noheader", "--format=%N", f"--job={job}").strip()
    site.told("scontrol", "update", f"NodeName={first}", "State=DRAIN", "Reason=test")
    try:
        site.told("scontrol", "requeue", job)
        time.sleep(2)
        site.wait(job, "COMPLETED", "FAILED")
    finally:
        site.told("scontrol", "update", f"NodeName={first}", "State=RESUME")
    record = site.complete("moved", 3)
    hosts = [name.partition(",")[0] for item in record.attempts for name in item.nodes]
    assert hosts[0] == first and set(hosts) == {"alpha", "beta"}
    assert len(hosts) == len(record.attempts), "every start names its node"
    (moved,) = (item for item in record.incidents if item.kind == "moved")
    assert moved.text.startswith("node 0 is ") and f"was {first}, cores " in moved.text
    found = [item.allocation for item in record.node_history]
    assert [item.nodes for item in found if item] == [(first,), (hosts[-1],)]
    assert [item.restarts for item in found if item] == [0, 1]


def test_a_script_of_ones_own_resumes_a_run_under_other_variables_of_slurm(site: Site) -> None:
    text = (Path(__file__).parents[2] / "examples/slurm/job.sh").read_text()
    (site.folder / "suite.yaml").write_text(written(2, 100, LAUNCHER))
    (site.folder / "job.sh").write_text(text.replace("runs/mine", "wrapped").replace(
        "exec repro run", f"DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 exec {sys.executable} -m repro run --no-mlflow"))
    submit = ("sbatch", "--parsable", f"--chdir={site.folder}", f"--output={site.folder}/wrapped.slurm.log",
              f"{site.folder}/job.sh")
    job = site.told(*submit).strip()
    site.wait_for("wrapped/trials/*/result.json")
    site.told("scancel", job)
    site.wait(job, "CANCELLED")
    job = site.told(*submit).strip()
    site.wait(job, "COMPLETED", "FAILED")
    record = site.complete("wrapped", 2)
    assert [item.kind for item in record.incidents if item.kind in ("resumed", "difference")] == ["resumed"]


def test_a_cancelled_job_leaves_a_run_that_another_job_resumes(site: Site) -> None:
    job = site.submit("cancelled", 300, 1)
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
    site.wait(site.resume("cancelled"), "COMPLETED", "FAILED")
    site.complete("cancelled", 1)


def test_a_killed_agent_is_started_again_within_the_run(site: Site) -> None:
    job = site.submit("killed", 300, 2)
    site.wait_for("killed/trials/*/system_1.txt")
    (agent,) = agents(site)
    agent.kill()
    site.wait(job, "COMPLETED", "FAILED")
    assert sorted(item.status for item in read_record(site.folder / "killed").results) == ["crashed", "ok"]
    log = site.log("killed")
    assert "srun beta ended with exit code 137 after" in log or "srun alpha ended with exit code 137 after" in log, log
    assert "it is started again (2 of 3)" in log
    site.wait(site.resume("killed", "--rerun-failed"), "COMPLETED", "FAILED")
    site.complete("killed", 2)


def test_the_set_up_of_a_user_runs_in_the_job_and_before_each_agent(site: Site) -> None:
    note = site.folder / "note"
    job = site.submit("set-up", 2, 1, REPRO_SETUP=f"shopt -q login_shell && echo $SLURMD_NODENAME >> {note}")
    site.wait(job, "COMPLETED", "FAILED")
    site.complete("set-up", 1)
    assert sorted(note.read_text().split()) == ["alpha", "beta"]


@pytest.mark.parametrize(("line", "words"), [
    ("module() { false; }; module load none",
     "error: REPRO_SETUP failed with exit code 1: module() { false; }; module load none"),
    ('[ "$SLURMD_NODENAME" = alpha ]', "error: 1 of 2 nodes are there: srun beta ended with exit code 2 after"),
])
def test_a_set_up_that_fails_is_one_line(site: Site, line: str, words: str) -> None:
    name = f"failing-{len(line)}"
    site.wait(site.submit(name, 2, 1, REPRO_SETUP=line), "COMPLETED", "FAILED")
    log = site.log(name)
    assert words in log and "started again" not in log and "Traceback" not in log, log
    assert not (site.folder / name).exists()


@pytest.mark.parametrize(("nodes", "words"), [
    (1, ""), (2, "error: no srun on PATH, as in a container, to start agents on beta; use launcher torchrun, and")])
def test_a_container_without_the_commands_of_slurm(site: Site, tmp_path: Path, nodes: int, words: str) -> None:
    for name in ("sbatch", "sh", "env"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    name = f"contained-{nodes}"
    (site.folder / f"{name}.yaml").write_text(written(1, 2, f"{{kind: slurm, nodes: {nodes}}}"))
    job = site.job(name, "run", f"{name}.yaml", "--no-mlflow", "--out", name, "--", "--partition=tests",
                   PATH=str(tmp_path))
    site.wait(job, "COMPLETED", "FAILED")
    if words:
        assert words in site.log(name)
        return
    found = site.complete(name, 1).nodes.allocation
    assert found is not None and found.nodes == ("alpha",)
    assert (found.queued_seconds, found.exclusive, found.partition) == (None, None, "tests")


@pytest.mark.parametrize(("trial", "options", "words"), [
    ("processes: 40", ("--partition=tests",), "20 processes are too many for 4 cores; at most 16"),
    ("processes: 40", ("--partition=gpus",), ""),
    ("processes: 40", ("--partition=gpus", "--cpus-per-task=2"), "20 processes are too many for 2 cores; at most 8"),
    ("processes: 8, device: cuda", ("-pgpus", "--gres=gpu:tesla:4"), ""),
    ("processes: 16, device: cuda", ("-p", "gpus", "--gpus-per-node=4"), "16 ranks, 8 GPUs"),
    ("processes: 8, device: cuda", ("--partition=gpus",),
     "the nodes of the job have GPUs and it asks for none: add --gpus-per-node=4 after --\nerror: -o batch"),
])
def test_the_check_before_a_submission_is_for_the_nodes_of_the_job(
    site: Site, trial: str, options: tuple[str, ...], words: str
) -> None:
    changes = [f"-o{key}={value}" for key, value in (item.split(": ") for item in trial.split(", "))]
    (site.folder / "checked.yaml").write_text(written(1, 1, LAUNCHER))
    code, said, error = command(site.folder, "run", "checked.yaml", "--no-mlflow", "--out", "checked",
                                "-obatch.global=80", *changes, "--", *options,
                                **site.variables)
    if words:
        assert code == 2 and words in error and error.count("error: ") == 1, error
    else:
        assert code == 0, error
        site.told("scancel", said.split()[1])


def test_a_time_limit_interrupts_the_run_before_it_kills_it(site: Site) -> None:
    job = site.submit("limited", 4000, 1, "--time=2")
    site.wait(job, "COMPLETED", "FAILED", "TIMEOUT")
    assert "interrupted by SIGTERM" in site.log("limited")
    assert command(site.folder, "verify", "limited")[0] == 1, "incomplete"


def test_without_an_answer_of_slurm_only_errors_of_every_machine_are_found(site: Site, tmp_path: Path) -> None:
    (tmp_path / "sbatch").symlink_to(str(shutil.which("sbatch")))
    (site.folder / "silent.yaml").write_text(written(1, 1, LAUNCHER))
    for processes, wanted in ((40, 0), (39, 2)):
        code, said, error = command(site.folder, "run", "silent.yaml", "--no-mlflow", "--out", "silent",
                                    "-obatch.global=80", f"-oprocesses={processes}", "--", "--hold",
                                    **site.variables, PATH=str(tmp_path))
        assert code == wanted, error
        if wanted:
            assert "batch.global" in error and "39" in error
        else:
            site.told("scancel", said.split()[1])


@pytest.mark.parametrize(("arguments", "words"), [
    (("--", "--partition=nowhere"), "error: sbatch refuses: invalid partition specified: nowhere; Batch job "
                                    "submission failed: Invalid partition name specified"),
    (("--resume", "local-run", "--", "--partition=tests"),
     "error: --partition=tests: only launcher slurm outside a job takes options after --; here it is local"),
    (("--", "--nodes=3"), "error: --nodes=3: the number of nodes is launcher.nodes, 2 here"),
    (("--resume", "nowhere", "--", "--partition=tests"), "error: nowhere: there is no such run folder"),
    (("--launcher", "local", "--", "--nodes=3"), "only launcher slurm outside a job takes options after --"),
])
def test_what_is_refused_is_one_line(site: Site, arguments: tuple[str, ...], words: str) -> None:
    (site.folder / "bad.yaml").write_text(written(1, 1, LAUNCHER))
    if "local-run" in arguments:
        prepare(planned(site.folder, written(1, 1, "local")), "", site.folder / "local-run")
    given = () if "--resume" in arguments else ("bad.yaml", "--out", "bad")
    code, _, error = command(site.folder, "run", *given, "--no-mlflow", *arguments, **site.variables)
    assert code == 2 and words in error
    assert not (site.folder / "bad").exists()


def test_a_job_with_too_few_nodes_says_so(site: Site) -> None:
    (site.folder / "few.yaml").write_text(written(1, 1, LAUNCHER))
    code, _, error = command(site.folder, "run", "few.yaml", "--no-mlflow", "--out", "few", SLURM_JOB_ID="1",
                             SLURM_JOB_NODELIST="alpha", **site.variables)
    assert code == 2
    assert "error: Slurm job 1 has 1 nodes, launcher.nodes is 2; submit it with --nodes=2" in error
