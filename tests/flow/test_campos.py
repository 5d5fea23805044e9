"""The smoke form of suite campos on emulated nodes, as this user and as an ordinary one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from repro.launchers.netns.probe import ability
from repro.record.store import read_record
from tests.flow.test_fabric import ROOT, _ordinary_users

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(ability().problem), reason=ability().problem or "")]


@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv to become an ordinary user with")
@pytest.mark.parametrize(("prefix", "python"), _ordinary_users())
def test_the_smoke_form_shows_every_mode(tmp_path: Path, prefix: tuple[str, ...], python: str) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    command = [*prefix, python, "-m", "repro", "run", "campos", "--seeds", "1", "-o", "stop.max_epochs=2",
               "--no-mlflow", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)})
    assert done.returncode in (0, 3), done.stderr
    found = read_record(tmp_path / "run").results
    assert {item.protocol.mode for item in found if item.protocol} == {"sync", "async", "mixed", "ssp"}
    for item in found:
        assert item.status in ("ok", "missed", "diverged"), item.reason
        assert item.network is not None and item.network.origin == "emulated"
        assert item.protocol is not None
        updates = [own.updates for own in item.protocol.by_group]
        if item.protocol.mode == "async":
            assert updates[3] == min(updates), "the slow worker does least"
