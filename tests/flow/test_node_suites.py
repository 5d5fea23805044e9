"""The smoke forms of suites on emulated nodes, as users without privileges."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from repro.launchers.netns.probe import ability
from repro.record.folder.store import Record, read_record
from tests.flow.test_smoke_forms import smoke_form
from tests.other_users import environment_of, ordinary_users

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ability().problem), reason=ability().problem or ""),
    pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv to become an ordinary user with"),
    pytest.mark.parametrize(("prefix", "python"), ordinary_users()),
]


def ran(folder: Path, prefix: tuple[str, ...], python: str, suite: str, *options: str) -> Record:
    folder.chmod(0o777)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)
    command = [*prefix, python, "-m", "repro", "run", suite, "--seeds", "1", *options, "--no-mlflow", "--out",
               str(folder / "run")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900,
                          env=environment_of(folder))
    assert done.returncode in (0, 3), done.stderr
    return read_record(folder / "run")


def test_the_smoke_form_of_campos_shows_every_mode(tmp_path: Path, prefix: tuple[str, ...], python: str) -> None:
    found = ran(tmp_path, prefix, python, "campos", "-o", "stop.max_epochs=2").results
    assert {item.protocol.mode for item in found if item.protocol} == {"sync", "async", "mixed", "ssp"}
    for item in found:
        assert item.status in ("ok", "missed", "diverged"), item.reason
        assert item.network is not None and item.network.origin == "emulated"
        assert item.protocol is not None
        updates = [own.updates for own in item.protocol.by_group]
        if item.protocol.mode == "async":
            assert updates[3] == min(updates), "the slow worker does least"


@pytest.mark.parametrize("suite", ["poseidon", "local-sgd"])
def test_the_smoke_form_runs_on_emulated_nodes(
    tmp_path: Path, prefix: tuple[str, ...], python: str, suite: str
) -> None:
    record = ran(tmp_path, prefix, python, suite, *smoke_form(suite)[2:])
    assert record.results
    for item in record.results:
        assert item.status in ("ok", "missed"), item.reason
        assert item.network is not None and item.network.origin == "emulated"
