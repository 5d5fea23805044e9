"""Without torch, redis, zarr and ImageHash every command that trains nothing works; what needs one names the extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import repro

ROOT = Path(repro.__file__).parents[1]
ABSENT = ("torch", "deepspeed", "redis", "zarr", "imagehash", "pywt", "plotly")
PROGRAM = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
from repro.cli.main import main
main()
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}, timeout=120, check=False,
                          stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def bundle() -> Path:
    return ROOT / "docs/gallery/records/same.zip"


@pytest.mark.parametrize("arguments", [
    ("list", "measurements"), *(pytest.param(arguments, marks=pytest.mark.slow) for arguments in (
        ("--help",), ("list",), ("show", "chunkflow"), ("volume", "--help"), ("predict", "--help")))])
def test_what_is_there_is_shown(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = command(tmp_path, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [
    ("compare", "{bundle}"), pytest.param(("verify", "{bundle}"), marks=pytest.mark.slow),
    pytest.param(("report", "{bundle}", "--to", "html,markdown,csv"), marks=pytest.mark.slow)])
def test_a_record_of_training_is_read(tmp_path: Path, bundle: Path, arguments: tuple[str, ...]) -> None:
    ended = command(tmp_path, *(text.format(bundle=bundle) for text in arguments))
    assert ended.returncode == 0, ended.stderr


def test_a_volume_names_the_extra(tmp_path: Path) -> None:
    ended = command(tmp_path, "volume", "create-tasks", "v.zarr", "out", "--chunk", "8", "--overlap", "2",
                    "--queue", "sqlite:tasks.db")
    assert ended.returncode == 2
    assert ended.stderr == "error: package zarr is not installed: pip install 'repro-harness[papers]'\n"


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["dedup", "chunkflow"])
def test_a_suite_that_needs_an_extra_names_it_in_a_line(tmp_path: Path, suite: str) -> None:
    ended = command(tmp_path, "plan", suite)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and "is not installed: pip install 'repro-harness[papers]'" in ended.stderr
