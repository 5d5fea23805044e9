"""Identity and placement: what has to agree between two starts of a run, and what a scheduler may choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.machine import Machine
from repro.record.environment.differences import differences
from repro.record.environment.environment import Environment, take
from repro.record.environment.nodes import Nodes
from repro.record.environment.placement import JOBS, Placement, cores_here, host_here, split


def here() -> Environment:
    return take(Machine("cpu", 0, 4), ())


def early(settings: dict[str, str], limits: dict[str, str]) -> Environment:
    """An environment of a record whose placement was not recorded apart."""
    return here().model_copy(update={"settings": settings, "limits": limits, "placement": None})


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                  "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"])
def test_what_a_scheduler_sets_forbids_no_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = here()
    monkeypatch.setenv(name, "3")
    there = here()
    assert there.placement is not None and there.placement.settings[name] == "3" and name not in there.settings
    assert differences(before, there) == []
    assert differences(early({name: "1"}, {}), early({}, {})) == []


def test_a_variable_that_tunes_forbids_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = here()
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert [item.text for item in differences(before, here())] == [
        "setting NCCL_ALGO unknown, now Tree"]


def test_computers_of_one_class_differ_by_some_pages() -> None:
    gib = 1 << 30
    one, other, larger = (here().model_copy(update={"memory_bytes": size})
                          for size in (64 * gib - 4096, 64 * gib - 8192, 128 * gib))
    assert differences(one, other) == []
    assert [item.text for item in differences(one, larger)] == ["memory bytes 64 GiB, now 128 GiB"]
    quick, slow = (one.model_copy(update={"governor": name}) for name in ("performance", "powersave"))
    assert [item.text for item in differences(quick, slow)] == ["governor performance, now powersave"]


def test_the_memory_and_the_cores_of_a_job_are_its_placement() -> None:
    found = {"memory.max": "1000", "cpuset.cpus": "0-3", "cpu.max": "50000 100000", "pids.max": "max"}
    assert split(found, places=False) == {"cpu.max": "50000 100000"}
    assert differences(early({}, found), early({}, {**found, "memory.max": "2000", "cpuset.cpus": "8-11"})) == []


def test_only_a_run_on_several_and_a_job_name_their_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPRO_NODE", "SLURMD_NODENAME", *JOBS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "janes-laptop")
    (tmp_path / "one").write_text("a" * 32)
    first, again, other = (host_here(False, tmp_path / name) for name in ("one", "one", "none"))
    assert first == again != other and first.startswith("computer ") and "jane" not in first + other
    assert host_here(True, tmp_path / "one") == "janes-laptop"
    monkeypatch.setenv("REPRO_NODE", "worker-7")
    assert host_here(False, tmp_path / "one") == "worker-7"
    monkeypatch.delenv("REPRO_NODE")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "alpha")
    assert host_here(False, tmp_path / "one") == "alpha"


def test_a_place_is_a_host_and_what_part_of_it() -> None:
    whole = Placement(host="alpha", cores="0-3,8")
    assert whole.name == "alpha, cores 0-3,8"
    assert whole.model_copy(update={"gpus": ("GPU-01234567-89ab",)}).name == "alpha, cores 0-3,8, GPUs GPU-01234567"
    assert cores_here()[0].isdecimal()
    interface, other = (whole.model_copy(update={"settings": {"NCCL_SOCKET_IFNAME": name, "SLURM_NTASKS": name}}).name
                        for name in ("ib0", "eth0"))
    assert interface != other and interface.startswith("alpha, cores 0-3,8, settings ")
    assert whole.model_copy(update={"limits": {"memory.max": "max", "pids.max": "7"},
                                    "settings": {"SLURM_NTASKS": "2"}}).name == whole.name


def test_another_job_or_place_is_a_change_and_another_clock_is_none() -> None:
    place = Placement(host="alpha", cores="0")
    one = Nodes(here=place, at_ms=1)
    assert one.same_places(Nodes(here=place, at_ms=2, preload_seconds=3.0))
    assert not one.same_places(Nodes(here=Placement(host="beta", cores="0")))
    assert one.names() == ("alpha, cores 0",)
