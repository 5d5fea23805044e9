"""A copy of a module's record for every test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))
