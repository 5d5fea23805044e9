"""Workers of a volume are killed at random moments: no task is lost, no voxel is written twice into a sum."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from repro.papers.chunkflow.grid import Grid
from repro.papers.chunkflow.queues import open_queue
from repro.papers.chunkflow.store import Output
from repro.papers.chunkflow.task_queue import Counts
from tests.redis_server import needs_redis, redis_server
from tests.volume_worker import prepare, start

pytestmark = pytest.mark.slow

WORKERS = 3
VISIBILITY = 1.0


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path}/tasks.db"
        return
    with redis_server(tmp_path) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.mark.parametrize(("kills", "size"), [(5, 44), pytest.param(100, 84, marks=pytest.mark.slow)])
def test_killed_workers_lose_nothing_and_double_nothing(tmp_path: Path, address: str, kills: int, size: int) -> None:
    grid = Grid((size,) * 3, (12,) * 3, (4,) * 3)
    values = prepare(tmp_path, grid, address, kills)
    rng = random.Random(kills)
    workers = [start(tmp_path, address, VISIBILITY, 0.02) for _ in range(WORKERS)]
    queue = open_queue(address, VISIBILITY)
    while not (tmp_path / "log").exists():
        time.sleep(0.01)
    for _ in range(kills):
        time.sleep(rng.uniform(0.02, 0.25))
        assert queue.counts().open, "all tasks were done before the last kill"
        victim = workers.pop(rng.randrange(WORKERS))
        victim.kill()
        victim.join()
        assert victim.exitcode == -9
        workers.append(start(tmp_path, address, VISIBILITY, 0.02))
    for each in workers:
        each.join()
        assert each.exitcode == 0
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    received = [task for what, task, _ in log if what == "received"]
    repeated = len(received) - grid.chunks
    print(f"{kills} kills, {grid.chunks} tasks, {len(received)} receipts")
    output = Output(tmp_path / "out")
    assert set(received) == set(output.tasks())
    assert repeated > 0, "no kill met a worker with a task"
    assert queue.counts() == Counts(0, 0, 0)
    assert output.left() == 0
    assert np.array_equal(output.volume[:], values), "not bit for bit"
    queue.close()
