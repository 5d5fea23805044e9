"""What is read of Slurm without its commands: lists of nodes, options of sbatch; and the rate of a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import SuiteError, UsageError
from repro.core.machine import Machine
from repro.launchers.nodes.slurm_job import expand
from repro.launchers.nodes.slurm_queue import in_words
from repro.launchers.nodes.slurm_submit import _gpus_asked, _value, _whole_nodes
from repro.launchers.torchrun import Torchrun, link_rate
from tests.plans import planned, setting, suite


@pytest.mark.parametrize(("names", "found"), [
    ("alpha", ["alpha"]),
    ("alpha,beta", ["alpha", "beta"]),
    ("node[01-03,07],gpu1", ["node01", "node02", "node03", "node07", "gpu1"]),
    ("r[1-2]n[09-10]-ib,x", ["r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib", "x"]),
])
def test_a_list_of_nodes_is_expanded(names: str, found: list[str]) -> None:
    assert expand(names) == found


@pytest.mark.parametrize("names", ["", "node[1-2", "a,,b"])
def test_what_is_no_list_of_nodes_is_one_line(names: str) -> None:
    with pytest.raises(UsageError, match="is no list of nodes such as"):
        expand(names)


@pytest.mark.parametrize(("reason", "words"), [
    ("QOSMaxJobsPerUserLimit", "(until other jobs within this limit end)"),
    ("AssocGrpCPURunMinutesLimit", "(until other jobs within this limit end)"),
    ("AssocGrpCPUMinutesLimit", "(the time of its account or QOS is used up: "),
    ("QOSGrpWallLimit", "(the time of its account or QOS is used up: "),
    ("QOSMaxWallDurationPerJobLimit", "(it asks for more time than is allowed: never starts; "),
    ("AssocMaxNodePerJobLimit", "(it asks for more or less than is allowed: never starts; "),
    ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "(nodes that it needs are down, drained or reserved: "),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
     "(nodes that it needs are down, drained or reserved: "),
    ("JobHeldUser", "(it is held: "),
    ("BurstBufferResources", ""),
])
def test_a_reason_of_slurm_in_words(reason: str, words: str) -> None:
    found = in_words(reason)
    assert found.startswith(f"{reason} {words}" if words else reason) and found.endswith(")") == bool(words)


@pytest.mark.parametrize(("options", "lines"), [
    ((), ["--exclusive", "--mem=0"]),
    (("--partition=gpu", "--gpus-per-node=4"), ["--exclusive", "--mem=0"]),
    (("--mem=4G",), ["--exclusive"]),
    (("--mem-per-cpu=1G",), ["--exclusive"]),
    (("--mem-bind=local",), ["--exclusive", "--mem=0"]),
    (("-s",), []),
    (("--oversubscribe",), []),
    (("--exclusive=user",), []),
    (("-c4",), []),
    (("--cpus-per-task", "4"), []),
])
def test_a_job_has_whole_nodes_unless_options_ask_for_less(options: tuple[str, ...], lines: list[str]) -> None:
    assert [line.removeprefix("#SBATCH ") for line in _whole_nodes(options).splitlines()] == lines


@pytest.mark.parametrize(("options", "count"), [
    (("--gres=gpu:2",), 2),
    (("--gres", "gpu:a100:4,nvme:1"), 4),
    (("--gres=gpu",), 1),
    (("--gres=nvme:3",), 0),
    (("--gpus-per-node=a100:2,v100:1",), 3),
    (("--gpus-per-task=4",), 4),
    (("-G8",), 4),
    (("--gpus=7",), 4),
    (("--time=1",), 0),
])
def test_the_gpus_that_options_ask_for_on_each_of_two_nodes(options: tuple[str, ...], count: int) -> None:
    assert _gpus_asked(options, 2) == count


@pytest.mark.parametrize("options", [["-pgpu"], ["-p", "gpu"], ["--partition", "gpu"], ["--partition=x", "-p=gpu"]])
def test_an_option_has_several_forms(options: list[str]) -> None:
    assert _value([*options, "--time=1"], "partition", "p") == "gpu"


@pytest.mark.parametrize(("processes", "each", "words"), [
    (8, 8, None), (16, 8, None),
    (6, 4, "ranks_per_node 4 does not divide 6 processes"),
    (12, 4, "12 processes with ranks_per_node 4 need 3 nodes, and nodes is 2"),
])
def test_ranks_are_packed_or_refused(processes: int, each: int, words: str | None) -> None:
    launcher = Torchrun(nodes=2, ranks_per_node=each)
    assert launcher.unsupported(setting(processes=processes, launcher="torchrun", cores=8)) == words
    assert words or launcher.nodes_of(processes) == processes // each


def test_each_node_needs_as_many_gpus_as_ranks() -> None:
    on_gpu = setting(processes=8, device="cuda", device_count=8, launcher="torchrun")  # of both nodes
    assert Torchrun(nodes=2).unsupported(on_gpu) is None
    assert "8 processes need one GPU each; this machine has 4" in str(
        Torchrun(nodes=2, ranks_per_node=8).unsupported(setting(processes=8, device="cuda", device_count=4)))


def test_gpus_of_several_nodes_count_together(tmp_path: Path) -> None:
    text = suite("gpus", launcher="{kind: torchrun, nodes: 2}", comm="ring", processes=8, device="cuda")
    plan = planned(tmp_path, text, machine=Machine("cuda", 4, 16))
    assert [cell.choices.processes for cell in plan.cells] == [8] and not plan.skipped
    with pytest.raises(SuiteError, match="16 ranks, 6 GPUs; use -o processes=6"):
        planned(tmp_path, text.replace("processes: 8", "processes: 16").replace("64", "96"),
                machine=Machine("cuda", 3, 16))


def test_the_rate_of_a_link_is_measurable_or_none() -> None:
    pings = [1e-3 + 1e-5 * number for number in range(20)]
    assert link_rate(1 << 20, 0.1, pings) == pytest.approx((1 << 20) / (0.1 - 1.095e-3))
    assert link_rate(1 << 20, 1.2e-3, pings) is None, "the transfer is lost in the spread of latencies"
    assert link_rate(1 << 20, 0.9e-3, pings) is None, "no rate is infinite"
