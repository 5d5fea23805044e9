"""Available memory is the least of the machine's and of what each control group has left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from repro.core import available_memory as memory


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "OWN", tmp_path / "own")
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_without_control_groups_it_is_the_machines(groups: Path) -> None:
    assert memory.available_memory() == 1000


def test_the_limit_of_a_group_above_counts(groups: Path) -> None:
    (groups / "own").write_text("0::/a/b\n")
    write(groups / "cgroup/a/b", {"memory.max": "max\n", "memory.current": "5\n"})
    write(groups / "cgroup/a", {"memory.max": "500\n", "memory.current": "400\n",
                                "memory.stat": "anon 1\ninactive_file 50\n"})
    assert memory.available_memory() == 150


def test_in_a_container_only_the_top_is_visible(groups: Path) -> None:
    (groups / "own").write_text("0::/of/the/host\n")
    write(groups / "cgroup", {"memory.max": "300\n", "memory.current": "400\n"})
    assert memory.available_memory() == 0


def test_the_first_version_of_control_groups_is_read(groups: Path) -> None:
    (groups / "own").write_text("3:cpu,cpuacct:/x\n2:memory:/job\n")
    write(groups / "cgroup/memory/job", {"memory.limit_in_bytes": "90\n", "memory.usage_in_bytes": "20\n"})
    assert memory.available_memory() == 70
