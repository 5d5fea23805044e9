"""The commands one after the other on one run, as a user has them: run, killed, resumed, verified, bundled, reproduced.

Slow, all but one: each is many commands. The parts of it are tested by themselves in the default run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.record.folder.lock import NAME
from repro.record.folder.store import read_record
from tests.chaos import faults
from tests.commands import command, start
from tests.plans import suite
from tests.waiting import until

INVENTED = suite("invented", """\
matrix:
  engine: [{kind: fake, samples_scale: 20000}, {kind: fake, samples_scale: 21000}]
""", seeds=3, batch="{global: 16}", stop="{metric: top1, target: 0.9, max_epochs: 100}", evaluate_every=1600,
    launcher="inline")
TRIALS = 6
REAL = suite("small", """\
matrix:
  batch: [{global: 64}, {global: 128}]
""", seeds=2, head="master_seed: 20151102\n", workload="digits-mlp", optimizer="{kind: sgd, lr: 0.05}",
    stop="{metric: top1, target: 0.85, max_epochs: 6}", evaluate_every=720, processes=2, determinism="bitwise",
    timeout_seconds=120)


def results(run: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in run.glob("trials/*/result.json")}


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of invented figures that Ctrl-C has ended after a few of its trials."""
    folder = tmp_path_factory.mktemp("joint")
    (folder / "suite.yaml").write_text(INVENTED)
    process = start(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    until(lambda: len(results(folder / "run")) >= 1, process)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 130, error
    assert 1 <= len(results(folder / "run")) < TRIALS, "it was not interrupted"
    return folder / "run"


@pytest.fixture
def run(cut_short: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cut_short, tmp_path / "run"))


@pytest.mark.slow
def test_a_partial_record_is_read_by_every_command(run: Path) -> None:
    done = len(results(run))
    for arguments in (("report", "run", "--to", "html,markdown,csv"), ("compare", "run"), ("verify", "run"),
                      ("diff", "run", "run"), ("bundle", "run", "-o", "b.zip"), ("verify", "b.zip")):
        code, out, error = command(run.parent, *arguments)
        assert code == (1 if arguments[0] == "verify" else 0), (arguments, out, error)
    said = command(run.parent, "verify", "b.zip").out
    assert f"{TRIALS - done} of {TRIALS} planned trials have no readable result" in said


@pytest.mark.slow
def test_an_owner_on_another_machine_is_named_and_replaced_if_it_gives_no_sign(run: Path) -> None:
    (run / NAME).write_text(json.dumps({"pid": 1, "host": "elsewhere", "since_ms": 0}))
    before = results(run)
    code, _, error = command(run.parent, "run", "--resume", "run", "--no-mlflow")
    assert code == 0 and "is locked by process 1 on elsewhere" in error and "; watching for 40 s" in error
    record = read_record(run)
    assert not record.missing() and not (run / NAME).exists()
    assert [item.text for item in record.incidents if item.kind == "lock"] == [
        "the lock of process 1 on another computer since 1970-01-01 00:00:00, which no longer runs, was replaced"]
    assert {name: text for name, text in results(run).items() if name in before} == before
    assert command(run.parent, "verify", "run")[0] == 0
    assert command(run.parent, "bundle", "run", "-o", "b.zip")[0] == 0
    with zipfile.ZipFile(run.parent / "b.zip") as bundle:
        names = bundle.namelist()
        assert "incidents.jsonl" in names, "what befell the run goes with its figures"
        assert not [name for name in names if NAME in name or name.startswith("report/")]
        assert socket.gethostname() not in bundle.read("incidents.jsonl").decode()
    assert command(run.parent, "verify", "b.zip")[0] == 0


@pytest.mark.slow
def test_the_second_of_two_writers_is_refused_with_the_first_named(run: Path) -> None:
    both = [start(run.parent, "run", "--resume", "run", "--no-mlflow") for _ in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    refused = [error for error, code in ends if code == 2]
    # Where one had ended before the other looked, that one found nothing left to do.
    assert all(code in (0, 2) for _, code in ends) and len(refused) < 2, ends
    assert all("is being written by process" in error and error.count("\n") == 1 for error in refused)
    record = read_record(run)
    assert not record.missing() and not (run / NAME).exists()
    assert len([item for item in record.attempts if item.status == "ok"]) == TRIALS
    assert command(run.parent, "verify", "run")[0] == 0


@pytest.fixture
def read_only(run: Path) -> Iterator[Path]:
    """The run on a file system that cannot be written, for root too."""
    if os.geteuid():
        for path in (run, *run.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield run
        return
    target = run.parent / "fixed"
    target.mkdir()
    subprocess.run(["mount", "--bind", str(run), str(target)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_read_and_the_rest_is_refused_in_one_line(read_only: Path) -> None:
    folder, name = read_only.parent, read_only.name
    for arguments in (("verify", name), ("compare", name), ("bundle", name, "-o", "b.zip"),
                      ("report", name, "--out", "elsewhere")):
        assert command(folder, *arguments)[0] == (1 if arguments[0] == "verify" else 0), arguments
    for arguments in (("run", "--resume", name, "--no-mlflow"), ("report", name)):
        code, _, error = command(folder, *arguments)
        assert code == 2 and error.count("\n") == 1 and "cannot be written" in error, (arguments, error)


# ---- real training


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(REAL)
    return tmp_path


@pytest.mark.slow
def test_strict_refuses_a_machine_that_would_spoil_the_figures(small: Path) -> None:
    process = start(small, "run", "suite.yaml", "--no-mlflow", "--strict", "--out", "run", OMP_NUM_THREADS="512")
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and "Traceback" not in error, error
    assert "error: --strict: this machine is not fit for the run: " in error.splitlines()[-1]
    assert "core(s) are too few for 1024 threads of ranks" in error
    assert not (small / "run" / "ledger.jsonl").exists() and not (small / "run" / NAME).exists()


@pytest.mark.slow
def test_run_verify_bundle_reproduce(small: Path) -> None:
    code, out, error = command(small, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert code == 0, out + error
    assert command(small, "verify", "run")[0] == 0
    code, out, error = command(small, "bundle", "run", "-o", "run.zip")
    assert code == 0, out + error
    assert command(small, "verify", "run.zip")[0] == 0
    code, out, error = command(small, "reproduce", "run.zip", "--even-if-undecided", "--out", "again")
    assert code == 0 and "reproduced" in out, out + error
    assert "no recorded difference in code, libraries, hardware, settings or data" in out
    assert command(small, "verify", "again")[0] == 0
    assert command(small, "bundle", "again", "-o", "again.zip")[0] == 0
    assert not (small / "again" / NAME).exists()


@pytest.mark.slow
def test_killed_resumed_verified_bundled_reported_compared(small: Path) -> None:
    process = start(small, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    until(lambda: len(results(small / "run")) >= 2 and len(faults.ranks_of(process.pid)) == 2, process)
    process.kill()
    process.communicate()
    before = results(small / "run")
    assert command(small, "verify", "run")[0] == 1
    code, _, error = command(small, "run", "--resume", "run", "--no-mlflow")
    assert code == 0, error
    assert {name: text for name, text in results(small / "run").items() if name in before} == before
    assert not read_record(small / "run").missing()
    for arguments in (("verify", "run"), ("bundle", "run", "-o", "run.zip"), ("verify", "run.zip"),
                      ("report", "run", "--to", "html,markdown"), ("compare", "run"), ("compare", "run", "run")):
        code, out, error = command(small, *arguments)
        assert code == (2 if arguments == ("compare", "run", "run") else 0), (arguments, out, error)
    page = (small / "run" / "report" / "report.html").read_text()
    assert "which no longer runs, was replaced" in page and "trials had ended" in page


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_ends_the_trial_and_a_second_one_ends_at_once(small: Path, twice: bool) -> None:
    process = start(small, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    until(lambda: len(results(small / "run")) >= 1 and len(faults.ranks_of(process.pid)) == 2, process)
    ranks = faults.ranks_of(process.pid).values()
    if twice:
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)  # they do not end on request: the user waits for this
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    if twice:
        assert "killed; completed trials are kept" in error
    else:
        assert (small / "run" / "report" / "report.html").is_file()
        assert [item.status for item in read_record(small / "run").attempts][-1] == "interrupted"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))
    assert not (small / "run" / NAME).exists()
    for arguments in (("report", "run"), ("compare", "run"), ("verify", "run")):
        assert command(small, *arguments)[0] == (1 if arguments[0] == "verify" else 0), arguments
    code, _, error = command(small, "run", "--resume", "run", "--no-mlflow")
    assert code == 0, error
    assert command(small, "verify", "run")[0] == 0


@pytest.mark.slow
def test_ctrl_c_during_a_reproduction_is_130_and_leaves_nothing(small: Path) -> None:
    assert command(small, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--seeds", "1")[0] == 0
    process = start(small, "reproduce", "run", "--even-if-undecided", "--out", "again")
    until(lambda: len(faults.ranks_of(process.pid)) == 2, process)
    ranks = faults.ranks_of(process.pid).values()
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in error, error
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))
    assert not (small / "again" / NAME).exists()
