"""Shards in processes of their own, which train nothing: ranks, gate, bytes, reports, tracking, and their death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from repro.bundle.verify import verify
from repro.core import registry
from repro.launchers.netns.probe import ability
from repro.record.folder.store import Record, read_record
from repro.record.result.parts import Protocol
from repro.record.result.results import Result
from repro.reporting import reporter
from tests.commands import start as start_repro
from tests.plans import suite
from tests.tracking_server import serving
from tests.waiting import until

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SUITE = suite("own", """\
matrix:
  engine: [ENGINES]
""", workload="{kind: digits-mlp, hidden: 32, depth: 1}", optimizer="{kind: sgd, lr: 0.02}",
    stop="{metric: top1, target: 0.99, max_epochs: EPOCHS}", processes=2, timeout_seconds=100,
    launcher="LAUNCHER", gate="GATE")
SYNC = "{kind: async-server, mode: sync, shards: 2, servers: own}"
ASYNC = "{kind: async-server, mode: async, shards: 2, servers: own}"


def start(folder: Path, engines: str, launcher: str = "local", epochs: int = 2,
          gate: str = "null") -> subprocess.Popen[str]:
    text = SUITE
    for name, value in {"ENGINES": engines, "LAUNCHER": launcher, "EPOCHS": str(epochs), "GATE": gate}.items():
        text = text.replace(name, value)
    (folder / "suite.yaml").write_text(text)
    return start_repro(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run")


def finish(folder: Path, process: subprocess.Popen[str]) -> Record:
    _, errors = process.communicate(timeout=600)
    assert "Traceback" not in errors
    assert process.returncode in (0, 1, 3), errors
    return read_record(folder / "run")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("own")
    return finish(folder, start(folder, f"{SYNC}, {ASYNC}"))


def by_mode(record: Record) -> dict[str, tuple[Result, Protocol]]:
    return {item.protocol.mode: (item, item.protocol) for item in record.results if item.protocol}


def test_both_modes_train_and_the_gate_judges_the_one_in_lock_step(record: Record) -> None:
    found = by_mode(record)
    assert found.keys() == {"sync", "async"} and {item.status for item, _ in found.values()} == {"missed"}
    assert record.parity is not None
    assert [item["problem"] for item in record.parity["findings"]] == [""]
    assert "mode=async" in next(iter(record.parity["skipped"]))
    assert verify(record.folder.root).sound


def test_the_plan_says_how_many_processes_run(record: Record) -> None:
    assert any("2 workers (ranks 0 to 1) and 2 servers (from rank 2) run: 4 processes" in note
               for note in record.plan.notes)
    assert {cell.choices.processes for cell in record.plan.cells} == {2}
    assert {cell.choices.ranks for cell in record.plan.cells} == {4}


def test_servers_move_what_all_workers_push_and_pull_and_count_for_no_worker(record: Record) -> None:
    for result, protocol in by_mode(record).values():
        each = protocol.updates * protocol.group * protocol.weight_bytes
        assert sum(server.received_bytes for server in protocol.servers) == each
        assert sum(server.sent_bytes for server in protocol.servers) == each
        assert result.traffic is not None and len(result.traffic.ranks) == 2 == protocol.workers
        assert sum(rank.sent_bytes for rank in result.traffic.ranks) == each, "every message is on the wire"
        assert result.bytes_sent == 2 * each
        assert result.busiest_bytes == max(server.sent_bytes + server.received_bytes for server in protocol.servers)
        assert len(protocol.computed_seconds) == 2
        assert result.effective["server_processes"] == "2"
        assert result.effective["optimizer"] == "torch.optim.sgd.SGD", "read back from the shard that steps"
        assert result.controller is not None and result.controller.ranks == 2


def test_every_report_has_the_lags(record: Record, tmp_path: Path) -> None:
    found = [path for name in ("html", "markdown", "latex", "csv", "jsonl")
             for path in map(Path, reporter(name).write(record, tmp_path))]
    text = {path.name: path.read_text(encoding="utf-8") for path in found
            if path.suffix in (".html", ".md", ".tex", ".csv", ".jsonl")}
    assert "2 shards in 2 separate processes" in text["report.html"] and "Version lag, mean" in text["report.html"]
    for name, warned in (("report.md", "report.md"), ("training.tex", "report.tex")):
        assert "Version lag" in text[name] and "Clock lag" in text[name] and "older weights" in text[warned]
    for column in ("version_lag", "clock_lag", "controller_bytes", "busiest_bytes"):
        assert column in text["trials.csv"].splitlines()[0].split(",")
    assert "version_lag" in text["report.jsonl"]


def test_a_tracking_server_has_the_lags_over_the_steps(record: Record, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    with serving(tmp_path) as site:
        registry.load("reporter", "mlflow")(tracking_uri=site.uri, ended=True).write(record, tmp_path)
        client = mlflow.MlflowClient(site.uri)
        experiments = [item.experiment_id for item in client.search_experiments()]
        runs = [run for run in client.search_runs(experiments) if "staleness/version_lag" in run.data.metrics]
        found = by_mode(record)
        assert sorted(run.data.metrics["staleness/version_lag"] for run in runs) == pytest.approx(
            sorted(item.version_lag for item, _ in found.values()))
        series = [client.get_metric_history(run.info.run_id, "curve/version_lag") for run in runs]
        assert sorted(len(points) for points in series) == [0, 2], "one point a block; in lock step every lag is 0"
        assert all({"traffic/controller_bytes", "traffic/busiest_bytes", "staleness/clock_lag"} <=
                   run.data.metrics.keys() for run in runs)


@pytest.mark.parametrize("engine", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_dead_server_ends_the_trial_with_its_name(tmp_path: Path, engine: str) -> None:
    process = start(tmp_path, engine, epochs=4000, gate="{skip: a server dies}")
    try:
        victim = wait_for_rank(process.pid, 3, tmp_path)
        os.kill(victim, signal.SIGKILL)
        result = finish(tmp_path, process).results[0]
    finally:
        process.kill()
    assert result.status == "crashed"
    assert "rank 3: killed by SIGKILL" in result.reason and "it held server shard 1" in result.reason


def wait_for_rank(parent: int, rank: int, folder: Path) -> int:
    """Return the process of a rank, once the trial has logged its first evaluation."""
    def running() -> int | None:
        logs = list(folder.glob("run/trials/*/result_1.txt"))
        if logs and "eval_accuracy" in logs[0].read_text(encoding="utf-8"):
            for child in psutil.Process(parent).children(recursive=True):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{child.pid}/fd/1").readlink().name == f"rank{rank}.log":
                        return child.pid
        return None

    return until(running) or 0


@pytest.mark.skipif(bool(ability().problem), reason=ability().problem or "")
def test_on_the_emulated_cluster_every_server_has_a_node_and_a_link(tmp_path: Path) -> None:
    launcher = "{kind: fabric, rate: 1gbit, rates: {3: 100mbit}}"
    found = by_mode(finish(tmp_path, start(tmp_path, f"{SYNC}, {ASYNC}", launcher)))
    assert found.keys() == {"sync", "async"}
    for result, protocol in found.values():
        assert result.network is not None and result.network.node_of_rank == (0, 1, 2, 3)
        assert result.network.stated_bits_per_second[3] == 100e6
        for server, node in zip(protocol.servers, (2, 3), strict=True):
            assert server.sent_bytes < result.network.sent_bytes[node], "its link carries it, headers included"
