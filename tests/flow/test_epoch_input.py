"""An epoch of input on real processes: every sample once, with its bytes, and the page cache as asked."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.backend import Backend
from repro.comm.algorithms.ring import Ring
from repro.core.random_streams import Streams
from repro.papers.in_memory import running
from repro.papers.in_memory.epoch_input import EpochInput
from repro.seams.measurement import Counted, Post
from repro.seams.training import Comm
from tests.commands import command
from tests.flow.test_comm_group import together

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SIZES = (1, 2, 3, 7, 64, 101)
"""Samples of an epoch; those below the number of ranks are left out, as a plan does."""


def epochs(comm: Comm, rank: int, world: int, **options: Any) -> dict[str, Any]:
    """Run four epochs; return the errors of the checks, the figures, and the samples of every epoch on this rank."""
    running: Any = EpochInput.model_validate(options).start(Post(rank, world, "cpu", Streams(7, 0), comm, 60.0))
    try:
        for _ in range(4):
            running.prepare()
            running.operate()
        found = running.finish(Counted(4, ()))
        return {"errors": {item.name: (item.error, item.limit) for item in found.checks},
                "samples": running.options.samples,
                "figures": dict(found.figures), "seen": [part.tolist() for part in running.seen]}
    finally:
        running.close()


def every_size(comm: Comm, rank: int, world: int) -> dict[str, Any]:
    cases = {f"memory {size} {every}": epochs(comm, rank, world, store="memory", samples=size, sample_bytes=999,
                                              shuffle_every=every)
             for size in SIZES if size >= world for every in (0, 1, 2)}
    # A chunk of 1 MiB holds two or three samples: a shuffle takes several all-to-alls.
    cases["memory, chunks"] = epochs(comm, rank, world, store="memory", samples=23, sample_bytes=400_000, chunk_mib=1)
    return cases | {f"files {size}": epochs(comm, rank, world, store="files", samples=size, sample_bytes=999)
                    for size in SIZES if size >= world}


@pytest.mark.parametrize(("world", "comm"), [(1, Backend), (2, Backend), (3, Ring)])
def test_each_sample_comes_once_with_its_bytes(world: int, comm: type[Comm]) -> None:
    ranks = [every_size(comm(), 0, 1)] if world == 1 else together(every_size, comm(), world, 30.0, 120.0)
    assert isinstance(ranks[0], dict), ranks
    for case in ranks[0]:
        found = [rank[case] for rank in ranks]
        for rank in found:
            assert all(error <= limit for error, limit in rank["errors"].values()), (case, rank["errors"])
        for epoch in range(4):  # counted here again, not by the measurement
            seen = sorted(number for rank in found for number in rank["seen"][epoch])
            assert seen == list(range(found[0]["samples"])), (case, epoch)
    if world > 1:
        moved = [rank["memory 101 1"] for rank in ranks]
        assert all(set(rank["seen"][1]) != set(rank["seen"][0]) for rank in moved), "samples change ranks"
        still = [rank["memory 101 0"] for rank in ranks]
        assert all(set(rank["seen"][1]) == set(rank["seen"][0]) for rank in still)
        assert all(rank["figures"]["shuffle_bytes"] > 0 for rank in moved)
        assert all(rank["figures"]["shuffle_bytes"] == 0 for rank in still)


def test_a_doubled_and_a_spoilt_sample_are_found() -> None:
    running: Any = EpochInput(store="memory", samples=9, sample_bytes=100).start(
        Post(0, 1, "cpu", Streams(7, 0), Backend(), 60.0))
    try:
        running.prepare()
        running.operate()
        running.seen[-1][0] = running.seen[-1][1]
        running.memory.blob[5] ^= 1
        errors = [item.error for item in running.finish(Counted(1, ())).checks]
    finally:
        running.close()
    assert errors == [2.0, 1.0], "one came twice and one never; one has another byte"


def test_the_page_cache_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(np.random.default_rng(0).bytes(1 << 20))
    os.sync()
    assert running.resident_share([file]) == 1.0
    running.evict([file])
    if running.resident_share([file]) == 1.0:
        pytest.skip("the folder for temporary files is on a file system in memory")
    assert running.resident_share([file]) == 0.0
    file.read_bytes()
    assert running.resident_share([file]) == 1.0


@pytest.mark.parametrize(("change", "words"), [
    (("  - {measurement.store: memory, measurement.cache: cold}", "#"), "samples in memory are always warm"),
    (("samples: 4001", "samples: 1"), "1 samples are fewer than 2 processes"),
    (("store: [files, memory]", "store: [files, tape]"), "tape"),
])
def test_bad_options_are_told_in_the_plan(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    text = files("repro.suites").joinpath("in-memory-data.yaml").read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / "own.yaml").write_text(text.replace(*change).replace("suite: in-memory-data", "suite: own"))
    _code, said, error = command(tmp_path, "plan", "own.yaml")
    assert words in said + error
    assert "Traceback" not in said + error
