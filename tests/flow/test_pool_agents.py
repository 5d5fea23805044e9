"""A pool of agents without a shared folder: nodes in namespaces of their own, one killed in the middle of a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.compare import compare
from repro.record.folder.ledger import Attempt, read_lines
from tests.commands import command
from tests.flow.test_node_namespaces import Cluster, finished, namespaces_work, sound
from tests.flow.test_pool import suite
from tests.waiting import until

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not namespaces_work(), reason="needs root, iproute2, util-linux and time namespaces")]
RUN = ("run", "s.yaml", "--no-mlflow", "--out", "run", "--pool", "{kind: agents, lanes: 2}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


def starts_of(ledger: Path) -> list[Attempt]:
    return read_lines(ledger, Attempt) if ledger.is_file() else []


def test_the_block_of_an_agent_that_is_killed_runs_again_on_the_other_lane(cluster: Cluster) -> None:
    suite(cluster.folder, epochs=60)
    agents = [cluster.agent(1), cluster.agent(2)]
    run = cluster.start(0, *RUN)
    ledgers = [cluster.folder / f"run/shards/{number}/1/ledger.jsonl" for number in (1, 2)]
    until(lambda: all(map(starts_of, ledgers)))
    assert not list(cluster.folder.glob("run/trials/*/result.json")), "both are in their first block"
    cluster.kill(agents[0])
    said = finished(run)
    assert "the run is over" in finished(agents[1])
    record = sound(cluster)
    lost = [item for item in record.attempts if item.status in ("started", "lost")]
    (shard,) = {item.shard for item in lost}
    assert Counter(item.status for item in lost)["started"] == 1, "the trial in which the lane was lost"
    assert {item.nodes[0].partition(",")[0] for item in lost} == {"node1"}, said
    assert {item.nodes[0].partition(",")[0] for item in record.attempts if item not in lost} == {"node2"}
    (again,) = {item.shard for item in record.attempts if item.repeat == lost[0].repeat} - {shard}
    assert len({item.trial_id for item in record.attempts if item.shard == again}) == 2, "the whole block"
    assert any("node1 was lost" in item.text for item in record.incidents if item.kind == "lane")
    (found,) = compare(record.plan, record.results, execution=record.execution)
    assert found.left_out == () and found.n == 6


def test_a_coordinator_that_is_killed_finds_its_agents_again(cluster: Cluster) -> None:
    suite(cluster.folder, epochs=20)
    agents = [cluster.agent(1), cluster.agent(2)]
    run = cluster.start(0, *RUN)
    until(lambda: list(cluster.folder.glob("run/trials/*/result.json")))
    cluster.kill(run)
    finished(cluster.start(0, "run", "--resume", "run", "--no-mlflow"))
    assert all("the run is over" in finished(agent) for agent in agents)
    record = sound(cluster)
    assert {item.nodes[0].partition(",")[0] for item in record.attempts} == {"node1", "node2"}


def test_what_agents_cannot_run_is_refused(tmp_path: Path) -> None:
    written = suite(tmp_path)
    ended = command(tmp_path, "run", "s.yaml", "--pool", "{kind: agents, lanes: 2}", "-o",
                    "launcher={kind: torchrun, nodes: 2}", "-o", "processes=2", "--no-mlflow")
    assert ended.code == 2 and "a lane is one computer" in ended.error, ended.error
    assert written.is_file() and not (tmp_path / "runs").exists()
