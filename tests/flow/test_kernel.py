"""`repro.run` and `repro.gate` in a real Jupyter kernel: events, *Interrupt*, what a cell shows, and what is left."""

from __future__ import annotations

import json
import os
import queue
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import repro
from tests.commands import PLUGINS, ROOT, command, environment
from tests.plans import suite
from tests.waiting import LONG_SECONDS, until

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

PATHS = f"{ROOT}{os.pathsep}{PLUGINS}"
MANY = 10
"""Repeats of a run that is to be interrupted: far more than it gets to."""
SUITE = suite("noted", """\
matrix: {processes: [1, 2]}
baseline: {processes: 1}
primary: {candidate: {processes: 2}, baseline: {processes: 1}}
""", seeds=MANY, stop="{metric: top1, target: 0.05, max_epochs: 0.1}", evaluate_every=64)
GATED = suite("gated", """\
matrix:
  engine: [ddp, {kind: planted, defect: sum}]
""", processes=2, batch="{global: 32}", stop="{metric: top1, target: 0.05, max_epochs: 0.1}", evaluate_every=64)


class Notebook:
    """A kernel in a folder, cell by cell."""

    def __init__(self, folder: Path) -> None:
        self.kernel = manager.KernelManager(kernel_name="python3")
        self.kernel.start_kernel(cwd=str(folder), env=environment(PYTHONPATH=PATHS))
        self._client = self.kernel.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=LONG_SECONDS)
        self.process = psutil.Process(self.kernel.provisioner.pid)

    def close(self) -> None:
        self._client.stop_channels()
        self.kernel.shutdown_kernel(now=True)

    def begin(self, code: str) -> str:
        return str(self._client.execute(code))

    def end(self, cell: str) -> dict[str, Any]:
        """Return what a cell showed: `text`, `data` of its value, `error` with its traceback."""
        found: dict[str, Any] = {"text": "", "data": {}, "error": None}
        late = time.monotonic() + LONG_SECONDS
        while time.monotonic() < late:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                assert self.process.is_running()
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                found["text"] += content["text"]
            elif kind == "display_data":  # the progress: rich's console in a notebook
                found["text"] += content["data"]["text/plain"]
            elif kind == "execute_result":
                found["data"] = content["data"]
            elif kind == "error":
                found["error"] = content
            elif kind == "status" and content["execution_state"] == "idle":
                return found
        raise AssertionError("the cell did not end")

    def shown(self, code: str) -> dict[str, Any]:
        found = self.end(self.begin(code))
        assert found["error"] is None, found["error"]
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "suite.yaml").write_text(SUITE)
    (folder / "gated.yaml").write_text(GATED)
    return folder


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Iterator[Notebook]:
    found = Notebook(folder)
    found.shown("import repro")
    yield found
    found.close()


@pytest.mark.slow
def test_an_interrupted_cell_ends_its_run_in_order_and_says_how_it_goes_on(notebook: Notebook, folder: Path) -> None:
    notebook.shown("events = []")
    cell = notebook.begin("run = repro.run('suite.yaml', out='run', mlflow=False, on_event=events.append)")
    ledger = folder / "run/ledger.jsonl"
    until(lambda: ledger.is_file() and ledger.read_bytes().count(b"\n") >= 5)  # two lines an attempt: in the third
    notebook.kernel.interrupt_kernel()
    found = notebook.end(cell)
    error = found["error"]
    assert error["ename"] == "RunInterrupted" and "resume with: repro run --resume run" in error["evalue"]
    assert error["traceback"] == [f"RunInterrupted: {error['evalue']}"], "one line, and nothing from inside"
    assert "\n" not in error["evalue"] and "Traceback" not in found["text"]
    assert found["text"].count("interrupted by Ctrl-C; reporting the completed trials") == 1
    left = [" ".join(item.cmdline()) for item in notebook.process.children(recursive=True)]
    assert [item for item in left if "resource_tracker" not in item] == [], "Python's own, one a process, stays"
    record = repro.open(folder / "run")
    assert record.state.startswith("unmodified") and 2 <= len(record.trials) < 2 * MANY
    assert (folder / "run/report/report.html").is_file() and not (folder / "run/run.lock").exists()
    assert set(record.trials["status"]) == {"ok"}
    told = json.loads(notebook.shown("import json; print(json.dumps(events))")["text"])
    assert told[0] == {"event": "stage", "text": "checking data and starting processes"}
    begun, ended = ([item for item in told if item["event"] == kind] for kind in ("trial_started", "trial_ended"))
    assert [item["number"] for item in begun] == list(range(1, len(begun) + 1)) and begun[0]["count"] == 2 * MANY
    times = dict(zip(record.trials["trial_id"], record.trials["tta_wall_seconds"], strict=True))
    assert {item["trial_id"]: item["tta_wall_seconds"] for item in ended} == times
    assert set(times) <= {item["trial_id"] for item in begun}

    resumed = command(folder, *shlex.split(error["evalue"].partition("resume with: repro ")[2]), "--no-mlflow",
                      PYTHONPATH=PATHS)
    assert resumed.code == 0, resumed.error
    again = repro.open(folder / "run").trials.set_index("trial_id")["tta_wall_seconds"]
    assert len(again) == 2 * MANY and again[list(times)].to_dict() == times, "what had ended was not run again"


@pytest.mark.slow
def test_what_a_callback_raises_ends_no_run(notebook: Notebook) -> None:
    found = notebook.shown("def broken(event): raise ValueError('mine')\n"
                           "repro.run('suite.yaml', seeds=1, out='other', mlflow=False, on_event=broken)")
    assert "warning: on_event raised ValueError: mine (the first of" in found["text"]
    assert "Run other: suite noted, 2 of 2 trials, 2 cells" in found["data"]["text/plain"]
    assert "repro-display" in found["data"]["text/html"]


def test_an_error_is_one_line_in_a_notebook(notebook: Notebook) -> None:
    error = notebook.end(notebook.begin("repro.run('suite.yaml', ['engine=dpd'], out='none')"))["error"]
    assert error["ename"] == "SuiteError" and "did you mean 'ddp'" in error["evalue"]
    assert error["traceback"] == [f"SuiteError: {error['evalue']}"] and "\n" not in error["evalue"]


def test_another_thread_is_refused_because_signals_end_a_run(notebook: Notebook, folder: Path) -> None:
    cell = ("from concurrent.futures import ThreadPoolExecutor as Pool\n"
            "Pool(1).submit(repro.run, 'suite.yaml', out='none').result()")
    error = notebook.end(notebook.begin(cell))["error"]
    assert error["ename"] == "UsageError" and "call it in the main thread" in error["evalue"]
    assert not (folder / "none").exists()


@pytest.mark.slow
def test_the_gate_tells_which_candidate_differs_and_where(notebook: Notebook) -> None:
    shown = notebook.shown("checks = repro.gate('gated.yaml')\nchecks")["data"]["text/html"]
    assert shown.count("<table") == 1 and "planted (defect=sum)" in shown
    types = notebook.shown("print(checks.dtypes.astype(str).to_json())")["text"]
    assert json.loads(types) == {"candidate": "string", "group": "string", "check": "string", "passed": "boolean",
                                 "step": "Int64", "tensor": "string", "size": "float64", "tolerance": "float64",
                                 "text": "string"}
    rows = json.loads(notebook.shown("print(checks.to_json(orient='records'))")["text"])
    assert {row["candidate"].split()[0] for row in rows} == {"ddp", "planted"}
    failed = [row for row in rows if not row["passed"]]
    assert {row["candidate"].split()[0] for row in failed} == {"planted"}, rows
    first = min(failed, key=lambda row: row["step"])
    assert first["step"] == 1 and first["size"] > first["tolerance"] and first["tensor"] in first["text"]


def test_a_gate_that_nothing_can_pass_is_refused_in_one_line(notebook: Notebook) -> None:
    error = notebook.end(notebook.begin("repro.gate('gated.yaml', only=['engine=dpd'])"))["error"]
    assert error["traceback"] == [f"UsageError: {error['evalue']}"] and "matches no cell" in error["evalue"]


@pytest.mark.slow
def test_an_interrupted_gate_is_one_line_and_leaves_no_process(notebook: Notebook) -> None:
    def processes() -> list[str]:
        lines = [" ".join(item.cmdline()) for item in notebook.process.children(recursive=True)
                 if item.status() != psutil.STATUS_ZOMBIE]
        return [line for line in lines if "resource_tracker" not in line]

    cell = notebook.begin("repro.gate('gated.yaml')")
    until(lambda: len(processes()) >= 2)  # the two ranks, or those that start them
    notebook.kernel.interrupt_kernel()
    error = notebook.end(cell)["error"]
    assert error["ename"] == "RunInterrupted" and "nothing of it is kept" in error["evalue"]
    assert error["traceback"] == [f"RunInterrupted: {error['evalue']}"]
    assert processes() == []
