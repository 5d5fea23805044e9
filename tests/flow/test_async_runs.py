"""Runs whose workers wait for no other, or not for all: lags, work, bytes, what is shown, and ranks that are killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from repro.core.events import read_events
from repro.record.folder.store import Record, read_record
from repro.record.result.parts import Protocol
from repro.record.result.result_warnings import WorkersLost
from repro.record.result.results import Result
from tests.commands import command
from tests.plans import suite

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SUITE = suite("modes", """\
matrix:
  engine: [ENGINES]
""", workload="WORKLOAD", optimizer="{kind: sgd, lr: 0.02}", stop="{metric: top1, target: 0.99, max_epochs: 3}",
    processes=4, timeout_seconds=100, gate="GATE")
MODES = ("{kind: async-server, mode: async, shards: 2}, {kind: async-server, mode: mixed, group: 2}, "
         "{kind: async-server, mode: ssp, staleness: 2, divide_by_staleness: true}")
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
DIES = """\
import os
import signal

from repro.workloads.digits import DigitsMlp


class Dies(DigitsMlp):
    victim: int = 3
    after: int = 5

    def build(self, streams, device):
        parts = super().build(streams, device)
        look_up, self_calls = parts.train_batch, []

        def train_batch(epoch, indices):
            self_calls.append(epoch)
            if os.environ["RANK"] == str(self.victim) and len(self_calls) > self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            return look_up(epoch, indices)

        parts.train_batch = train_batch
        return parts
"""


def ran(
    folder: Path, engines: str, workload: str = "{kind: digits-mlp, hidden: 32, depth: 1}", gate: str = "null"
) -> Record:
    text = SUITE.replace("WORKLOAD", workload).replace("ENGINES", engines).replace("GATE", gate)
    (folder / "suite.yaml").write_text(text)
    code, _, error = command(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "7")
    assert code in (0, 1, 3), error
    return read_record(folder / "run")


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return ran(tmp_path_factory.mktemp("modes"), MODES)


def by_mode(record: Record) -> dict[str, tuple[Result, Protocol]]:
    return {item.protocol.mode: (item, item.protocol) for item in record.results if item.protocol}


def events(record: Record, key: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for log in sorted((record.folder.root / "trials").glob("*/result_1.txt")):
        read = read_events(log)[0]
        mode = next(event.value["mode"] for event in read if event.key == "x_protocol")
        found[mode] = [event.value for event in read if event.key == key]
    return found


def test_every_mode_trains_its_whole_budget_of_applied_samples(modes: Record) -> None:
    found = by_mode(modes)
    assert found.keys() == {"async", "mixed", "ssp"}
    for result, protocol in found.values():
        assert result.status == "missed", "an unreachable target: the budget ends it"
        assert result.samples == result.curve[-1].samples and not result.log_faults
        assert protocol.updates * protocol.group * 16 == result.samples, "counted when a gradient is applied"
        assert result.hashes["data_order"] == found["async"][0].hashes["data_order"], "the seed's, for any worker"
        assert protocol.evaluations == len(result.curve) == 3


def test_every_update_is_logged_with_its_staleness(modes: Record) -> None:
    for mode, blocks in events(modes, "x_updates").items():
        protocol = by_mode(modes)[mode][1]
        applied = [version for block in blocks for version in block["applied"]]
        assert applied == list(range(protocol.updates))
        lags = [lag for block in blocks for lag in block["staleness"]]
        assert lags == [at - read for block in blocks for at, read in zip(block["applied"], block["read"], strict=True)]
        if protocol.shards == 1:
            assert Counter(lags) == Counter(protocol.lag)
        assert sum(protocol.lag.values()) == protocol.updates * protocol.shards


def own_updates(record: Record, mode: str) -> dict[int, list[tuple[int, int]]]:
    """(version, staleness) of every update of the first shard, by worker."""
    found: dict[int, list[tuple[int, int]]] = {}
    for block in events(record, "x_updates")[mode]:
        for worker, applied, lag in zip(block["worker"], block["applied"], block["staleness"], strict=True):
            found.setdefault(worker, []).append((applied, lag))
    return found


@pytest.mark.parametrize("mode", ["async", "mixed"])
def test_the_lag_is_that_of_the_formula_but_for_the_end_terms(modes: Record, mode: str) -> None:
    protocol = by_mode(modes)[mode][1]
    groups = protocol.workers // protocol.group
    assert protocol.expected_lag == groups - 1 == {"async": 3, "mixed": 1}[mode]
    total = ends = 0
    for updates in own_updates(modes, mode).values():
        # A worker reads again as soon as its update is applied, so that its lags add up to the updates of all others
        # until its last one: its mean lag is their rate over its own.
        last, count = updates[-1][0], len(updates)
        own = sum(lag for _, lag in updates)
        assert own == last + 1 - count
        total += own
        ends += protocol.updates - 1 - last
    assert total + ends == (groups - 1) * protocol.updates


def test_nobody_gets_further_ahead_than_the_bound(modes: Record) -> None:
    protocol = by_mode(modes)["ssp"][1]
    assert protocol.staleness == 2 and max(protocol.ahead, default=0) <= 2


def test_the_rate_is_divided_by_the_staleness(modes: Record) -> None:
    for block in events(modes, "x_updates")["ssp"]:
        for lag, rate in zip(block["staleness"], block["rate"], strict=True):
            assert rate == pytest.approx(0.02 / max(1, lag), rel=1e-6)


def test_bytes_are_push_and_pull_of_every_worker_and_update(modes: Record) -> None:
    for result, protocol in by_mode(modes).values():
        assert result.traffic is not None
        sums: Counter[str] = Counter()
        for rank in result.traffic.ranks:
            for line in rank.lines:
                sums[line.operation] += line.payload_bytes
                sums["sent"] += line.sent_bytes or 0
                sums["received"] += line.received_bytes or 0
        each = protocol.updates * protocol.group * protocol.weight_bytes
        assert sums["push"] == sums["pull"] == each and sums["served"] == 2 * each
        assert sums["sent"] == sums["received"] < 2 * each, "a worker reaches the shard beside it through memory"


def test_the_mode_is_shown_everywhere(modes: Record) -> None:
    page = (modes.folder.root / "report/report.html").read_text(encoding="utf-8")
    assert 'id="servers"' in page and "Version lag, mean" in page and "snapshot" in page
    assert "mode=async" in page and "mode=mixed" in page
    assert "older weights" in page, "why there is no gate"
    for result, _ in by_mode(modes).values():
        assert result.effective["server_mode"] in page
        assert result.version_lag is not None and result.clock_lag is not None
    plan = json.loads((modes.folder.root / "plan.json").read_text())
    assert {cell["choices"]["engine"]["mode"] for cell in plan["cells"]} == {"async", "mixed", "ssp"}


def dying(folder: Path, engine: str, victim: int, how: str = KILLED) -> tuple[Result, Record]:
    (folder / "dies.py").write_text(DIES.replace(KILLED, how))
    record = ran(folder, engine, f"{{kind: 'dies.py:Dies', hidden: 32, depth: 1, victim: {victim}}}",
                 "{skip: a rank dies}")
    return record.results[0], record


def test_an_asynchronous_run_goes_on_without_a_killed_worker(tmp_path: Path) -> None:
    result, record = dying(tmp_path, "{kind: async-server, mode: async, shards: 2}", 3)
    assert result.status == "missed" and result.protocol is not None, result.reason
    assert result.protocol.lost == (3,)
    assert (3,) in [item.ranks for item in result.warnings if isinstance(item, WorkersLost)]
    assert result.samples == result.protocol.updates * 16
    assert "went on without rank 3" in (record.folder.root / "report/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("engine", "victim", "words"), [
    ("{kind: async-server, mode: async, shards: 2}", 1, "it held server shard 1"),
    ("{kind: async-server, mode: sync}", 3, "worker 3"),
    ("{kind: async-server, mode: ssp, staleness: 1}", 2, "worker 2"),
    ("{kind: async-server, mode: mixed, group: 2}", 2, "worker 2"),
    ("{kind: async-server, mode: async, shards: 2, servers: own}", 0, "worker 0"),
])
def test_others_crash_with_the_rank_named(tmp_path: Path, engine: str, victim: int, words: str) -> None:
    result, _ = dying(tmp_path, engine, victim)
    assert result.status == "crashed" and f"rank {victim}: killed by SIGKILL" in result.reason
    assert words in result.reason


@pytest.mark.parametrize(("servers", "victim"), [("beside", 0), ("beside", 1), ("beside", 3), ("own", 0), ("own", 1)])
def test_a_worker_that_fails_by_itself_ends_the_trial_with_its_reason(
    tmp_path: Path, servers: str, victim: int
) -> None:
    engine = f"{{kind: async-server, mode: async, shards: 2, servers: {servers}}}"
    result, _ = dying(tmp_path, engine, victim, 'raise RuntimeError("no more food")')
    assert result.status == "crashed" and f"rank {victim}: " in result.reason and "no more food" in result.reason
