"""`make gpu-smoke` without a GPU: what becomes of checks that crash, hang, are skipped or are cut off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gpu.smoke import NEEDED, ROOT, SKIPPED, Check, every_check, run
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


def check(name: str, code: str, limit_seconds: float = 60, **more: Any) -> Check:
    return Check(name, (sys.executable, "-c", code), limit_seconds, **more)


@pytest.mark.slow
def test_every_check_is_a_line_whatever_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        check("fine", "print('to 0.001')"), check("told", "print('{\"flops\": 1}')"),
        check("dead", "import os; os.abort()"),
        check("wrong", "print('x'); assert 1 == 2, 'of the weights\\nin two lines'"),
        check("slow", "import time; print('waits', flush=True); time.sleep(1000)", 2),
        check("not here", f"print('no such kernel'); raise SystemExit({SKIPPED})"),
        check("zero", "", deepspeed=True), check("pair", "", gpus=2)]
    assert run(checks, tmp_path / "out.json", {"python": "3"}, gpus=1, deepspeed=False, jobs=2) == 3
    record = json.loads((tmp_path / "out.json").read_text())
    found = {item["name"]: (item["status"], item["said"]) for item in record["checks"]}
    assert found == {
        "fine": ("ok", "to 0.001"), "told": ("ok", "1 facts, in the file"),
        "dead": ("failed", "ended by SIGABRT; it said last: nothing"),
        "wrong": ("failed", "AssertionError: of the weights"),
        "slow": ("timeout", "no end within 2 s; it said last: waits"), "not here": ("skipped", "no such kernel"),
        "zero": ("skipped", "DeepSpeed is not installed"), "pair": ("skipped", "needs 2 GPUs, there is one")}
    assert record["summary"] == {"ok": 2, "failed": 2, "timeout": 1, "skipped": 3, "not made": 0}
    assert record["finished"] and record["python"] == "3"
    assert "failed: wrong: AssertionError: of the weights" in capsys.readouterr().out


CUT = """
import sys
from pathlib import Path
from tests.gpu.smoke import Check, run
wait = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(1000)"
detached = Path("detached").resolve()
start = ("import subprocess, sys; "
         "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True).wait()")
checks = [Check("first", (sys.executable, "-c", "print('fine')"), 60),
          Check("long", (sys.executable, "-c", start, wait, str(detached)), 900),
          Check("never", (sys.executable, "-c", ""), 60)]
run(checks, Path("out.json"), {}, 1, True, 1)
"""
"""The second check waits for a process of another session, which writes its id."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_who_is_cut_off_keeps_what_had_ended(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", CUT], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    detached = tmp_path / "detached"
    try:
        waits = int(until(lambda: detached.exists() and detached.read_text().rstrip(), process))
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    record = json.loads((tmp_path / "out.json").read_text())
    assert [(item["name"], item["status"]) for item in record["checks"]] == [("first", "ok")]
    assert not record["finished"] and record["summary"]["not made"] == 2
    if number == signal.SIGKILL:
        os.kill(waits, signal.SIGKILL)
    else:
        assert "1 ok, 2 not made" in printed
        until(lambda: not psutil.pid_exists(waits) or psutil.Process(waits).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    done = subprocess.run([sys.executable, "-m", "tests.gpu.smoke"], cwd=tmp_path, capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    line, = done.stdout.splitlines()
    assert line.startswith("there is no GPU here that torch can use, so nothing was tried: ")
    assert done.returncode == 2 and not any(tmp_path.iterdir())


def test_the_checks_are_known_and_told_apart() -> None:
    """Their module needs torch; the list must not."""
    pytest.importorskip("torch")
    from tests.gpu.smoke_checks import CHECKS

    checks = every_check()
    assert len({item.name for item in checks}) == len(checks)
    assert {item.command[3] for item in checks} == set(CHECKS)
    assert all(item.deepspeed for item in checks if "zero" in item.name or "quickstart" in item.name)


def test_it_begins_without_any_package() -> None:
    code = "import sys, tests.gpu.smoke; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-S", "-c", code, "torch", "repro", *NEEDED], capture_output=True, text=True,
                          check=True, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout.strip() == "[]"


OTHERS = ("hypothesis", "jsonschema", "matplotlib", "mlflow", "pandas", "PIL", "pyarrow", "pyroute2", "rocrate",
          "setuptools", "zarr")
"""Modules of this environment that a machine with a GPU need not have."""


def test_the_checks_and_tests_for_gpus_need_no_other_package() -> None:
    pytest.importorskip("torch")
    code = ("import sys; sys.modules |= dict.fromkeys(sys.argv[1:]); "  # an import of any of them now fails
            "import repro.bench.device, tests.engine_ranks, tests.gpu.cases, tests.gpu.smoke_checks, tests.gpu.trials")
    done = subprocess.run([sys.executable, "-c", code, *OTHERS], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


TESTS = """
import time
import pytest

def test_compile(): ...
@pytest.mark.parametrize("name", ["waits"])
def test_overlap(name): time.sleep(1000)
def test_input_workers(): assert 1 == 2
"""


@pytest.mark.slow
def test_tests_for_gpus_run_by_importance_and_leave_lines_and_a_summary_when_cut_off(tmp_path: Path) -> None:
    """`make test-gpu`."""
    shutil.copy(ROOT / "tests/gpu/conftest.py", tmp_path)
    (tmp_path / "test_made.py").write_text(TESTS)
    process = subprocess.Popen([sys.executable, "-m", "pytest", "-ra", "--lines", "lines.jsonl", "."], cwd=tmp_path,
                               stdout=subprocess.PIPE, text=True)
    lines = tmp_path / "lines.jsonl"
    until(lambda: lines.exists() and lines.read_text().endswith("\n"), process)
    process.terminate()
    printed, _ = process.communicate(timeout=60)
    line, = map(json.loads, lines.read_text().splitlines())
    assert (line["test"], line["status"]) == ("test_made.py::test_input_workers", "failed")
    assert line["said"].startswith("assert 1 == 2")
    assert "FAILED test_made.py::test_input_workers" in printed and "1 failed" in printed
