"""A user without a name, a home folder or XDG folders: everything but a folder of its own works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repro.record.folder import index
from tests.commands import environment
from tests.other_users import homeless
from tests.records import make_record

pytestmark = pytest.mark.slow


def said(folder: Path, *command: str) -> str:
    """Run Python as that user; return what it printed."""
    done = subprocess.run([*homeless(), sys.executable, *command], cwd=folder, text=True, capture_output=True,
                          timeout=120, check=False, env={name: value for name, value in environment().items()
                                                         if not name.startswith("XDG_")})
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", [("compare", "run"), ("bundle", "run", "--out", "run.zip")])
def test_a_record_can_be_read_without_a_home_folder(tmp_path: Path, command: tuple[str, ...]) -> None:
    index.seal(make_record(tmp_path / "run").folder)
    assert "error: " not in said(tmp_path, "-m", "repro", *command)


def test_what_needs_a_folder_of_the_user_says_so_in_one_line(tmp_path: Path) -> None:
    found = said(tmp_path, "-m", "repro", "agent", "--join", "127.0.0.1:1")
    assert found == "error: this user has no home folder: set HOME, or XDG_CONFIG_HOME\n"


def test_mlflow_can_be_imported_without_a_home_folder(tmp_path: Path) -> None:
    text = "from repro.runner.tracking_store import configure_mlflow as ready; ready(1.0); import mlflow; print('fine')"
    assert said(tmp_path, "-c", text) == "fine\n"
