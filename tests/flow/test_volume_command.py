"""`repro volume`: operators composed on the command line, dead letters, full disks, and one line for what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import zarr

from repro.core.errors import UsageError
from repro.papers.chunkflow.grid import Grid
from repro.papers.chunkflow.queues import open_queue
from repro.papers.chunkflow.store import Output, open_volume
from repro.papers.chunkflow.task_queue import Counts
from tests.commands import environment
from tests.in_process import check_json
from tests.redis_server import needs_redis, redis_server
from tests.unit.record.resumable_runs import Bomb

pytestmark = pytest.mark.slow

CREATE = ("create-tasks", "v", "out", "--chunk", "12", "--overlap", "4", "--queue")
GRID = Grid((30, 20, 24), (12,) * 3, (4,) * 3)
CHAIN = ("read", "v", "infer", "--net", "identity", "blend", "write", "out")


def volume(folder: Path, *arguments: str, limit: int | None = None) -> tuple[int, str, str]:
    """Run `repro volume`; `limit`: the largest file in bytes that it may write."""
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit or 0, limit or 0))

    ended = subprocess.run([sys.executable, "-m", "repro", "volume", *arguments], cwd=folder, env=environment(),
                           capture_output=True, text=True, timeout=300, preexec_fn=lower if limit else None)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def values(tmp_path: Path) -> np.ndarray:
    """A volume at `v`."""
    made = np.random.default_rng(3).standard_normal(GRID.shape, dtype=np.float32)
    zarr.save_array(str(tmp_path / "v"), made)
    return made


def make_tasks(folder: Path, grid: Grid, out: str = "out", queue: str = "t.db") -> None:
    """Do in this process what `create-tasks` does."""
    made = open_queue(f"sqlite:{folder}/{queue}", make=True)
    made.add(Output.create(folder / out, grid, "float32").tasks())
    made.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=[needs_redis, pytest.mark.slow])])
def test_two_workers_share_the_tasks_and_give_the_input_back(tmp_path: Path, values: np.ndarray, kind: str) -> None:
    with redis_server(tmp_path) if kind == "redis" else nullcontext(0) as port:
        queue = f"redis://127.0.0.1:{port}/0#mine" if port else "sqlite:t.db"
        code, said, error = volume(tmp_path, *CREATE, queue)
        assert (code, error) == (0, "")
        assert said.startswith("24 tasks; next: repro volume run --queue")
        assert volume(tmp_path, "status", "--queue", queue)[1] == "waiting 24, in flight 0, dead letters 0\n"
        command = [sys.executable, "-m", "repro", "volume", "run", "--queue", queue, *CHAIN[:-3], "delay", "--seconds",
                   "0.05", *CHAIN[-3:]]
        both = [subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
                for _ in range(2)]
        done = [int(each.communicate(timeout=300)[0].split()[1].rstrip(",")) for each in both]
        assert sum(done) == 24
        assert np.array_equal(Output(tmp_path / "out").volume[:], values)


@pytest.mark.parametrize(("arguments", "message"), [
    ((*CREATE[:3], "--chunk", "32", "--overlap", "4", "--queue", "sqlite:t.db"),
     "error: chunk 32x32x32 is larger than the volume 30x20x24 on the first axis; use at most 30 there\n"),
    ((*CREATE[:3], "--chunk", "12,12,9", "--overlap", "6,6,5", "--queue", "sqlite:t.db"),
     "error: overlap 5 is over half of chunk 9 on the third axis; use at most 4 there\n"),
    ((*CREATE, "redis://127.0.0.1:1/0"), "start redis-server, or use sqlite:FILE\n"),
    (("run", "--queue", "redis://127.0.0.1:1/0", *CHAIN), "start redis-server, or use sqlite:FILE\n"),
    (("status", "--queue", "sqlite:t.db"), "error: queue sqlite:t.db does not exist; make it with repro volume create"),
    (("run", "--queue", "sqlite:t.db", "read", "v", "blnd", "write", "out"),
     "error: no operator named 'blnd'; did you mean 'blend'?\n"),
    ((*CREATE[:1], "nothing", *CREATE[2:], "sqlite:t.db"), "error: nothing: is no readable Zarr array"),
])
def test_what_is_wrong_is_one_line(
    tmp_path: Path, values: np.ndarray, arguments: tuple[str, ...], message: str
) -> None:
    code, said, error = volume(tmp_path, *arguments)
    assert (code, said) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_a_chain_that_would_double_voxels_is_refused(tmp_path: Path, values: np.ndarray) -> None:
    make_tasks(tmp_path, GRID)
    code, _, error = volume(tmp_path, "run", "--queue", "sqlite:t.db", "read", "v", "write", "out")
    assert code == 2
    assert error == "error: the chain read write cannot run; write it as: read V infer --net NAME blend write OUT\n"


def test_tasks_of_another_output_are_refused_and_stay(tmp_path: Path, values: np.ndarray) -> None:
    make_tasks(tmp_path, GRID)
    make_tasks(tmp_path, Grid(GRID.shape, (20,) * 3, (4,) * 3), "larger", "u.db")
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:u.db", "--visibility", "0.1", *CHAIN)
    assert (code, said) == (2, "")
    assert error == ("error: out: the tasks of this queue are for another output; name the one that create-tasks made "
                     "with them\n")
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:u.db", *CHAIN[:-1], "larger")
    assert (code, error) == (0, "") and said.endswith("dead letters 0, chunks left 0\n")
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:u.db", *CHAIN)
    assert (code, said) == (1, "done 0, failed 0, dead letters 0, chunks left 24\n")
    assert error == "the queue is empty, but not all of this output is done: its tasks were in another queue\n"


@pytest.mark.parametrize("index", ["-1", "x", "99999", "9" * 400])
def test_a_task_that_create_tasks_did_not_make_is_one_line(tmp_path: Path, index: str) -> None:
    output = Output.create(tmp_path / "out", Grid((8, 8, 8), (4, 4, 4), (1, 1, 1)), "float32")
    with pytest.raises(UsageError, match="the queue has a task that create-tasks did not make"):
        output.chunk_of(f"{output.name}/{index}")


def test_a_volume_that_is_to_be_unpickled_is_refused(tmp_path: Path) -> None:
    description = {"zarr_format": 2, "shape": [4, 4, 4], "chunks": [4, 4, 4], "dtype": "<f4", "compressor": None,
                   "fill_value": 0, "order": "C", "filters": [{"id": "pickle", "protocol": 4}]}
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/.zarray").write_text(json.dumps(description))
    (tmp_path / "volume/0.0.0").write_bytes(pickle.dumps(Bomb(tmp_path / "gone-off")))
    with pytest.raises(UsageError, match="is no readable Zarr array"):
        open_volume(tmp_path / "volume")[:]
    assert not (tmp_path / "gone-off").exists()


def test_a_damaged_chunk_of_the_input_becomes_a_dead_letter_and_the_rest_is_done(
    tmp_path: Path, values: np.ndarray
) -> None:
    shutil.rmtree(tmp_path / "v")
    stored = zarr.open_array(str(tmp_path / "v"), mode="w", shape=values.shape, chunks=(30, 20, 12), dtype="float32")
    stored[:] = values
    make_tasks(tmp_path, GRID)
    last = max((path for path in (tmp_path / "v").rglob("*") if path.is_file() and ".json" not in path.name
                and not path.name.startswith(".z")), key=str)
    last.write_bytes(b"\xff" * 40)
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:t.db", "--visibility", "0.1", "--most-receives", "2",
                               *CHAIN)
    assert code == 1
    assert said == "done 8, failed 32, dead letters 16, chunks left 16\n"
    assert error.count("\n") == 32 and "failed (2 receives)" in error
    assert "dead letters 16: chunks 1, 2, 4, 5" in volume(tmp_path, "status", "--queue", "sqlite:t.db")[1]
    found = volume(tmp_path, "status", "--queue", "sqlite:t.db", "--json")[1]
    check_json(("--json",), found)
    assert len(json.loads(found)["dead"]) == 16
    assert Output(tmp_path / "out").left() == 16


def test_a_file_that_may_not_grow_ends_the_worker_in_one_line_and_loses_nothing(
    tmp_path: Path, values: np.ndarray
) -> None:
    make_tasks(tmp_path, GRID)
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:t.db", "--visibility", "0.1", *CHAIN, limit=8000)
    assert (code, said) == (2, "")
    assert error.count("\n") == 1
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:t.db", "--visibility", "1", *CHAIN)
    assert (code, error) == (0, "")
    assert np.array_equal(Output(tmp_path / "out").volume[:], values)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True,
                             text=True, check=False) if os.geteuid() == 0 else None
    if mounted is None or mounted.returncode:
        pytest.skip("a small file system needs root and mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_store_without_space_is_one_line_and_work_goes_on_when_there_is_some(
    tmp_path: Path, values: np.ndarray, small_disk: Path
) -> None:
    create = ("create-tasks", "v", "small/out", "--chunk", "12", "--overlap", "4", "--queue", "sqlite:t.db")
    (small_disk / "other").write_bytes(b"x" * 900_000)
    code, _, error = volume(tmp_path, *create)
    assert code == 2
    assert error == "error: small/out: may take 0.4 MB, and 0.1 MB are free there; make room or name another place\n"
    (small_disk / "other").unlink()
    assert volume(tmp_path, *create)[0] == 0
    (small_disk / "other").write_bytes(b"x" * 900_000)
    chain = (*CHAIN[:-1], "small/out")
    code, said, error = volume(tmp_path, "run", "--queue", "sqlite:t.db", "--visibility", "1", *chain)
    assert (code, said) == (2, "")
    assert error == ("error: small/out: cannot be written: No space left on device; make room: unfinished tasks stay "
                     "in the queue\n")
    (small_disk / "other").unlink()
    assert volume(tmp_path, "run", "--queue", "sqlite:t.db", "--visibility", "1", *chain)[0] == 0
    assert np.array_equal(Output(small_disk / "out").volume[:], values)
    queue = open_queue(f"sqlite:{tmp_path}/t.db")
    assert queue.counts() == Counts(0, 0, 0)
    queue.close()
    assert open_volume(small_disk / "out/volume").shape == values.shape
