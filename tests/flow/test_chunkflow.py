"""Inference over a volume as trials: real ranks on both queues, checks that catch a doubled voxel, record and page."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.commands import command
from tests.plans import measurement_suite
from tests.redis_server import needs_redis, redis_server

pytest.importorskip("torch")

pytestmark = pytest.mark.slow


def written(kind: str, options: str, processes: int) -> str:
    volume = f"{{kind: {kind}, shape: [40, 24, 24], chunk: 16, overlap: 8, {options}}}"
    return measurement_suite("small", volume, processes=processes, stop="{repeats: 2, warmup: 1}")


DOUBLED = """\
from repro.papers.chunkflow.volume_inference import VolumeInference
from repro.papers.chunkflow import operators


class Doubled(VolumeInference):
    title = "blending without weights"

    def start(self, post):
        operators.Blend.apply = lambda blend, piece, grid: operators.Piece(piece.index, piece.data.astype("float64"))
        return super().start(post)
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=[needs_redis, pytest.mark.slow])])
def test_ranks_share_a_queue_and_every_check_passes(tmp_path: Path, kind: str) -> None:
    with redis_server(tmp_path) if kind == "redis" else nullcontext(6379) as port:
        (tmp_path / "s.yaml").write_text(written(
            "volume-inference", f"queue: {kind}, redis_port: {port}", 2))
        code, _, error = command(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "run")
        assert code == 0, error
    result = json.loads(next((tmp_path / "run").glob("trials/*/result.json")).read_text())
    assert result["status"] == "ok", result
    assert [(item["error"], item["limit"]) for item in result["operation"]["checks"]] == [(0, 0), (0, 0), (0, 1e-5)]
    figures = {item["name"]: item["value"] for item in result["operation"]["figures"]}
    assert 0.05 < figures["seam_error"] < 0.6 < figures["largest_error"]
    assert (figures["chunks"], figures["computed"]) == (16, 16 * 16**3 / (40 * 24 * 24))
    assert 8 <= figures["tasks_of_busiest"] < 16
    assert result["effective"]["queue"] == {"sqlite": "SqliteQueue", "redis": "RedisQueue"}[kind]
    assert command(tmp_path, "verify", "run")[0] == 0
    assert "identity: output against input" in (tmp_path / "run/report/report.html").read_text()


def test_a_queue_that_cannot_be_reached_stops_the_run_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(written("volume-inference", "queue: redis, redis_port: 1", 1))
    _, said, error = command(tmp_path, "plan", "s.yaml")
    assert "this plan cannot be run here: queue redis://127.0.0.1:1/0#" in said + error
    code, _, error = command(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "run")
    assert code == 2
    assert error.splitlines()[-1].startswith("error: queue redis://127.0.0.1:1/0#repro-volume-plan cannot be reached: ")
    assert not (tmp_path / "run").exists()


def test_blending_that_doubles_voxels_is_an_invalid_trial(tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(DOUBLED)
    (tmp_path / "s.yaml").write_text(written('"doubled.py:Doubled"', "", 1))
    _, said, error = command(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "run")
    assert "invalid, identity: output against input, exactly: the error is" in error
    assert "0 of 1 ended well" in said
