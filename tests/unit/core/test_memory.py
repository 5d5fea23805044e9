"""Memory: what is available is the least of what the machine and each control group have left; a peak starts anew."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from repro.core import memory


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "OWN", tmp_path / "own")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
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


LARGE, SMALL = 120 << 20, 64 << 20


def resident_block(size: int) -> mmap.mmap:
    """Return memory of its own, written to; malloc could take it from pages that are resident already."""
    block = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        block[page] = 1
    return block


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts the peak anew")
def test_a_new_count_forgets_what_was_freed_and_sees_what_comes() -> None:
    block = resident_block(LARGE)
    high = memory.peak_bytes()
    block.close()
    memory.reset_peak()
    low = memory.peak_bytes()
    assert high - low > LARGE // 2
    again = resident_block(SMALL)
    assert memory.peak_bytes() - low > SMALL // 2
    again.close()


def test_without_the_files_of_linux_it_is_the_peak_of_the_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "none" / "either")
    memory.reset_peak()
    assert memory.peak_bytes() > 1 << 20
