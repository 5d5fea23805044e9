"""Two runs on one machine: the second waits and names the first; another user's lock counts as well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from repro.core.errors import UsageError
from repro.runner import machine_watch
from repro.runner.machine_watch import VARIABLE, only_run_that_times

pytestmark = pytest.mark.slow

HOLD = """
import sys
from repro.runner import machine_watch
machine_watch.NAME = chr(0) + sys.argv[1]
with machine_watch.only_run_that_times(lambda text: print(text, flush=True)):
    print("holds", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"repro-timing-test-{uuid.uuid4().hex}"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(machine_watch, "NAME", f"\0{found}")
    return found


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for child in found:
        child.kill()
        child.communicate()


def start(name: str, holders: list[subprocess.Popen[str]], user: str = "") -> subprocess.Popen[str]:
    prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    child = subprocess.Popen([*prefix, sys.executable, "-c", HOLD, name], env=environment, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holders.append(child)
    return child


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_the_second_run_waits_and_names_the_first(name: str, holders: list[subprocess.Popen[str]]) -> None:
    first = start(name, holders)
    assert line(first) == "holds"
    second = start(name, holders)
    said = line(second)
    assert said.startswith("waiting for another run that times its trials on this machine (pid ")
    assert f"(pid {first.pid} of " in said
    first.kill()  # the kernel frees the name, whatever the end
    assert line(second) == "holds"


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can be two users")
def test_runs_of_two_users_exclude_each_other(
    name: str, holders: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = start(name, holders, "65534")
    assert line(first) == "holds"
    shown: list[str] = []
    monkeypatch.setattr(machine_watch.time, "sleep", lambda seconds: first.kill())
    with only_run_that_times(shown.append) as waited:
        assert waited > 0
        assert len(shown) == 1 and f"(pid {first.pid} of nobody)" in shown[0]
    with only_run_that_times(shown.append) as waited:
        assert waited == 0
        assert len(shown) == 1, "a free lock is taken without a word"


def test_two_runs_of_one_job_exclude_each_other(
    name: str, holders: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first = start(name, holders)
    assert line(first) == "holds"
    second = start(name, holders)
    assert f"(pid {first.pid} of " in line(second)


def test_off_does_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with only_run_that_times(print):
        monkeypatch.setenv(VARIABLE, "off")
        with only_run_that_times(pytest.fail):
            pass
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(UsageError, match="must be `off`, or not set"), only_run_that_times(print):
        pass
