"""A folder in which runs are submitted to a real Slurm."""

from __future__ import annotations

import time
from pathlib import Path

from repro.record.folder.store import Record, read_record
from tests.commands import command
from tests.flow.test_nodes import written
from tests.slurm_cluster import Cluster

LAUNCHER = "{kind: slurm, nodes: 2, silence_seconds: 5}"


class Site:
    """A Slurm cluster and a folder in which runs are submitted."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.variables = folder, cluster, cluster.variables

    def submit(
        self, name: str, epochs: int, seeds: int, *options: str, launcher: str = LAUNCHER, **variables: str
    ) -> str:
        """Submit a suite and return the job's number."""
        (self.folder / f"{name}.yaml").write_text(written(seeds, epochs, launcher))
        return self.job(name, "run", f"{name}.yaml", "--no-mlflow", "--out", name, "--", "--partition=tests", *options,
                        **variables)

    def resume(self, name: str, *arguments: str) -> str:
        """Submit a job that resumes a run and return its number."""
        return self.job(name, "run", "--resume", name, "--no-mlflow", *arguments, "--", "--partition=tests")

    def job(self, name: str, *arguments: str, **variables: str) -> str:
        code, said, error = command(self.folder, *arguments, **{**self.variables, **variables})
        assert code == 0, error
        assert f"its output: {name}.slurm.log, the run: {name}\nnext: squeue" in said
        return said.split()[1]

    def told(self, *words: str) -> str:
        return self.cluster.told(*words)

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
