"""Limits of the control group that this process is in, and of those around it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from repro.core import control_group


def tree(root: Path, cgroup: str, **files: str) -> Path:
    """A made-up file system; `__` in a name stands for `/`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_of_nested_groups_the_tightest_limit_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/slurm/job/step\n",
                slurm__job__step__cpu_dot_max="max 100000", slurm__job__cpu_dot_max="150000 100000",
                slurm__cpu_dot_max="400000 100000", slurm__job__step__memory_dot_max="2000000000",
                slurm__job__memory_dot_max="1000000000", slurm__job__step__cpuset_dot_cpus_dot_effective="0-1",
                slurm__cpuset_dot_cpus_dot_effective="3")
    found = control_group.limits(root)
    assert found == {"cpu.max": "150000 100000", "memory.max": "1000000000", "cpuset.cpus": "0-1"}
    assert control_group.cores(found) == 1.5


def test_in_a_container_the_outermost_folder_is_its_own(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/docker/0123\n", cpu_dot_max="50000 100000")
    assert control_group.cores(control_group.limits(root)) == 0.5


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    root = tree(tmp_path, "4:memory:/a\n3:cpu:/a\n0::/\n", cpu__a__cpu_dot_cfs_quota_us="25000",
                cpu__a__cpu_dot_cfs_period_us="100000", memory__a__memory_dot_limit_in_bytes="9",
                memory__b__memory_dot_limit_in_bytes="1")
    found = control_group.limits(root)
    assert found["memory.limit_in_bytes"] == "9" and control_group.cores(found) == 0.25


@pytest.mark.parametrize("files", [{}, {"cpu_dot_max": "max 100000"}])
def test_without_a_limit_there_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert control_group.cores(control_group.limits(tree(tmp_path, "0::/\n", **files))) == math.inf
    assert control_group.limits(tmp_path / "elsewhere") == {}


def test_a_group_around_this_one_holds_it_back_too(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/job/step\n", job__cpu_dot_stat="throttled_usec 1500000",
                job__step__cpu_dot_stat="usage_usec 5\nthrottled_usec 500000")
    assert control_group.held_back_seconds(root) == 2.0
