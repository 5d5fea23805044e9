"""Lets planned faults happen to runs in jobs of a real Slurm, resumes them, and checks what must hold.

    python -m tests.chaos.slurm_faults --faults 9 --seed 1

Every run completes, by itself, by Slurm's requeue or by `repro run --resume RUN -- OPTIONS`; no trial that had ended is
lost, doubled or changed; `repro verify` finds every record sound.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from repro.record.folder.store import read_record
from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.tally import Broken, Tally
from tests.commands import command
from tests.slurm_cluster import slurm
from tests.slurm_site import Site

EPOCHS, SEEDS = 200, 2
"""Trials that last some seconds."""
SLURMD_TIMEOUT = 20
MOST_JOBS = 4
"""Jobs of one run: more do not help."""
CUT_SECONDS = 6.0
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
JOINING = ("cut while joining", "kill agent while joining")
"""Happen before the first trial."""


def agents(site: Site, by: str = "python") -> list[psutil.Process]:
    """Return the agents of runs of a site that run, or the processes of srun that have started them."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or [""]
        is_srun = Path(words[0]).name == "srun"
        if {"--join", "--as"} <= {*words} and is_srun == (by == "srun") and process.info["cwd"] == str(site.folder):
            found.append(process)
    return found


def _kill(processes: Sequence[psutil.Process]) -> bool:
    for process in processes:
        process.kill()
    return bool(processes)


def kill_agent(site: Site, job: str) -> bool:
    return _kill(agents(site))


def replace_agent(site: Site, job: str) -> bool:
    """End an agent with the command that has started it: another one takes its place."""
    return _kill(agents(site, "srun")) and _kill(agents(site))


def requeue(site: Site, job: str) -> bool:
    site.told("scontrol", "requeue", job)
    return True


def cancel(site: Site, job: str) -> bool:
    site.told("scancel", job)
    return True


def end_the_time(site: Site, job: str) -> bool:
    """Set a limit that is closer than Slurm's warning: the signal comes at once."""
    site.told("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    return True


def restart_controller(site: Site, job: str) -> bool:
    site.cluster.end("slurmctld", signal.SIGKILL)
    time.sleep(2)
    site.cluster.start("slurmctld")
    return True


def kill_slurmd(site: Site, job: str) -> bool:
    """Kill the daemon of a node: Slurm calls the node down, and starts the job again when it is back."""
    site.cluster.end("beta", signal.SIGKILL)
    _start_when_down(site, "beta")
    return True


def lose_host(site: Site, job: str) -> bool:
    """Let the computer fail on which the run's own process is, with its lock held; it comes back with another boot."""
    site.cluster.lose("alpha")
    _start_when_down(site, "alpha")
    return True


def _start_when_down(site: Site, node: str) -> None:
    until = time.monotonic() + 6 * SLURMD_TIMEOUT
    while "down" not in site.told("sinfo", "--noheader", f"--nodes={node}", "--format=%T"):
        if time.monotonic() > until:
            raise Broken(f"Slurm did not notice that slurmd of {node} is gone")
        time.sleep(0.5)
    site.cluster.start(node)


def cut_while_joining(site: Site, job: str) -> bool:
    """Cut every connection of agents, again and again, for a while."""
    cut, until = False, time.monotonic() + CUT_SECONDS
    while time.monotonic() < until:
        for agent in agents(site):
            for link in agent.net_connections() if agent.is_running() else ():
                if link.status == psutil.CONN_ESTABLISHED:
                    ended = subprocess.run(["ss", "--kill", "--no-header", "state", "established", "sport",
                                            f"= :{link.laddr.port}"], capture_output=True, text=True, check=True)
                    cut = cut or bool(ended.stdout.strip())
        time.sleep(0.05)
    return cut


KINDS: dict[str, Callable[[Site, str], bool]] = {
    "kill agent": kill_agent, "replace agent": replace_agent, "requeue": requeue, "cancel": cancel,
    "time limit": end_the_time, "restart controller": restart_controller, "kill slurmd": kill_slurmd,
    "lose host": lose_host, "cut while joining": cut_while_joining, "kill agent while joining": kill_agent,
}


class Drive:
    """One run after another, each with a fault."""

    def __init__(self, site: Site, tally: Tally) -> None:
        self.site, self.tally = site, tally

    def bear(self, number: int, fault: Fault) -> None:
        """Run a suite, let a fault happen to it, and resume it until it is complete.

        Raises:
            Broken: something does not hold.
        """
        name, site = f"run{number}", self.site
        site.cluster.wait_until_idle(180)
        job = site.submit(name, EPOCHS, SEEDS)
        self.tally.folders += 1
        self._wait_for_moment(name, fault)
        before = {item.trial_id: item for item in self._results(name) if item.status == "ok"}
        if not KINDS[fault.kind](site, job):
            raise Broken(f"{fault.kind}: there was nothing to do it to")
        self.tally.faults[fault.kind] += 1
        for _ in range(MOST_JOBS):
            self.tally.starts += 1
            site.wait(job, *ENDS, seconds=400)
            self._wait_for_end_of_run(name)
            if sorted(item.status for item in self._results(name)) == ["ok"] * SEEDS:
                break
            job = site.resume(name, "--rerun-failed")
        self._check(name, before)
        print(f"{fault.kind}: complete; the job said: {self._told(name)}", flush=True)

    def _wait_for_moment(self, name: str, fault: Fault) -> None:
        until = time.monotonic() + 200
        begun = f"{name}/trials/*/system_1.txt"
        while not (agents(self.site) if fault.kind in JOINING else list(self.site.folder.glob(begun))):
            if time.monotonic() > until:
                raise Broken(f"{name} does not begin: {self.site.log(name)}")
            time.sleep(0.02)
        time.sleep(fault.wait_seconds)

    def _wait_for_end_of_run(self, name: str) -> None:
        """Wait until no process of the job is left: Slurm calls a cancelled job ended before its processes are."""
        until = time.monotonic() + 90
        while any(name in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])):
            if time.monotonic() > until:
                raise Broken(f"{name}: its process does not end: {self.site.log(name)}")
            time.sleep(0.2)

    def _results(self, name: str) -> Sequence[object]:
        return read_record(self.site.folder / name).results if (self.site.folder / name / "plan.json").exists() else ()

    def _check(self, name: str, before: dict[str, object]) -> None:
        record, site = read_record(self.site.folder / name), self.site
        found = {item.trial_id: item for item in record.results}
        checks = {
            "every trial has one result": len(found) == len(record.results) == record.planned == SEEDS,
            "all are ok": {item.status for item in record.results} == {"ok"},
            "what had ended is unchanged": all(found.get(key) == item for key, item in before.items()),
            "the record is sound": command(site.folder, "verify", name)[0] == 0,
            "no traceback": "Traceback" not in site.log(name),
        }
        self.tally.checks.update(list(checks))
        self.tally.trials += len(found)
        self.tally.attempts.update(item.status for item in record.results)
        if wrong := [text for text, holds in checks.items() if not holds]:
            raise Broken(f"{name}: not so: {', '.join(wrong)}: {site.log(name)}")

    def _told(self, name: str) -> str:
        words = ("started again", "interrupted", "lost", "resume", "error", "waiting")
        return " | ".join(line for line in self.site.log(name).splitlines() if any(word in line for word in words))


def drive(folder: Path, planned: Sequence[Fault]) -> Tally:
    """Let all of it happen; what was broken is in the tally, the other faults go on."""
    tally = Tally()
    (folder / "slurm").mkdir()
    (folder / "site").mkdir()
    with slurm(folder / "slurm", SLURMD_TIMEOUT) as cluster:
        run = Drive(Site(folder / "site", cluster), tally)
        for number, fault in enumerate(planned):
            try:
                run.bear(number, fault)
            except AssertionError as error:
                tally.broken.append(f"{fault.kind}: {error}")
                print(f"BROKEN: {fault.kind}: {error}", flush=True)
                cluster.told("scancel", "--user=root")
    return tally


def plan(seed: int, count: int) -> list[Fault]:
    return faults.plan(seed, count, 2, tuple(KINDS), longest=2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    asked, begin = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repro-slurm-chaos-") as folder:
        tally = drive(Path(folder), plan(asked.seed, asked.faults))
    print(tally.text(time.monotonic() - begin))
    sys.exit(bool(tally.broken))


if __name__ == "__main__":
    main()
