"""Options of launcher fabric: valid ones, and those refused with a reason before anything runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from repro.compare.runs.runs import compare_runs
from repro.core import orphans
from repro.core.errors import SuiteError
from repro.launchers import emulated
from repro.launchers.emulated import Fabric
from repro.launchers.netns.namespaces import node_of
from repro.launchers.netns.probe import Ability
from repro.runner import doctor
from repro.seams.plugin import Setting
from repro.suite.choice import parse_choice
from tests.in_process import called
from tests.plans import plan_file, setting
from tests.records import SUITE, make_record


def _setting(processes: int, device: str = "cpu") -> Setting:
    return setting(launcher="fabric", processes=processes, device=device, device_count=8 if device == "cuda" else 0)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that can do all but delay."""
    monkeypatch.setattr(emulated, "ability", lambda: Ability(netem="no netem here"))


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100kbit", 1e5), ("10mbit", 1e7), ("2.5gbit", 2.5e9), ("1 Gbit", 1e9), ("1000MBIT", 1e9)],
)
def test_rates_are_read(text: str, bits: float) -> None:
    assert emulated.bits_per_second(text) == bits


@pytest.mark.parametrize("text", ["", "fast", "100", "100mb", "-1mbit", "1e9", "nan mbit", "1gbit/s", "mbit"])
def test_invalid_rates_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a rate; write a number and kbit, mbit or gbit"):
        Fabric(rate=text)


@pytest.mark.parametrize("text", ["0mbit", "99kbit", "31gbit"])
def test_a_rate_no_link_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="100kbit to 30gbit"):
        Fabric(rates={0: text})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": 0}, "greater than or equal to 1"),
        ({"nodes": 255}, r"255 nodes need more addresses than 10.77.0.0/24 has \(254\)"),
        ({"nodes": 3, "subnet": "10.0.0.0/30"}, r"has \(2\)"),
        ({"nodes": 1, "subnet": "10.0.0.0/32"}, r"has \(0\)"),
        ({"subnet": "169.254.7.0/24"}, "which the rendezvous uses"),
        ({"subnet": "127.0.0.0/24"}, "no subnet for nodes"),
        ({"nodes": 2, "rates": {2: "1gbit"}}, "rates names node 2; 2 nodes are counted 0 to 1"),
        ({"slowdown": {0: 0.5}}, "greater than or equal to 1"),
        ({"slowdown": {0: "slow"}}, "valid number"),
        ({"delay": "long"}, "is not a delay"),
        ({"delay": "11s"}, "outside the supported range, 1us to 10s"),
        ({"speed": "1gbit"}, "Extra inputs"),
    ],
)
def test_options_that_are_wrong_in_themselves(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Fabric.model_validate(options)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    ("options", "processes", "why"),
    [
        ({"nodes": 4}, 2, "4 nodes are more than 2 processes"),
        ({"nodes": 4}, 6, "6 processes cannot be placed on 4 nodes in equal blocks"),
        ({"subnet": "10.0.0.0/30"}, 4, "4 nodes need more addresses than 10.0.0.0/30 has (2)"),
        ({"rates": {4: "1mbit"}}, 4, "rates names node 4"),
        ({"slowdown": {2: 2.0}}, 2, "slowdown names rank 2; 2 ranks are counted 0 to 1"),
        ({"delay": "1ms"}, 2, "no netem here"),
        ({"nodes": 2}, 4, None),
        ({}, 8, None),
        ({"slowdown": {1: 1.5}, "rates": {"1": "10mbit"}}, 2, None),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(options: dict[str, Any], processes: int, why: str | None) -> None:
    said = Fabric.model_validate(options).unsupported(_setting(processes))
    assert said is None if why is None else why in (said or "")


@pytest.mark.usefixtures("able")
def test_a_straggler_on_a_gpu_is_not_pretended() -> None:
    assert "does not slow its GPU" in (Fabric(slowdown={0: 2.0}).unsupported(_setting(2, "cuda")) or "")
    assert Fabric(slowdown={0: 1.0}).unsupported(_setting(2, "cuda")) is None


def test_a_kernel_without_support_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "ability", lambda: Ability("this kernel cannot make a bridge"))
    assert Fabric().unsupported(_setting(2)) == "this kernel cannot make a bridge"


def test_an_invalid_rate_is_located_in_the_suite() -> None:
    with pytest.raises(SuiteError, match=r"launcher.rate.*'1gb' is not a rate"):
        plan_file("quickstart", "launcher.kind=fabric", "launcher.rate=1gb")


def test_labels_and_origin() -> None:
    choice = parse_choice("launcher", {"kind": "fabric", "nodes": 4, "rates": {3: "100MBIT"}})
    assert choice.label == 'fabric (nodes=4, rate=1gbit, rates={"3":"100mbit"})'
    assert parse_choice("launcher", choice.model_dump(mode="json")) == choice, "as read back from a record"
    assert choice.plugin.origin == "emulated"
    assert parse_choice("launcher", "local").plugin.origin == "measured"


@pytest.mark.parametrize(
    ("processes", "nodes", "dealt"),
    [(4, 4, [0, 1, 2, 3]), (4, 2, [0, 0, 1, 1]), (6, 2, [0, 0, 0, 1, 1, 1]), (3, 1, [0, 0, 0])],
)
def test_ranks_are_dealt_in_blocks(processes: int, nodes: int, dealt: list[int]) -> None:
    assert [node_of(rank, processes, nodes) for rank in range(processes)] == dealt


def test_an_owner_is_distinguished_from_a_later_process_of_its_number() -> None:
    mine = orphans.identity(os.getpid())
    assert mine == orphans.identity(os.getpid())
    assert mine != f"{os.getpid()}:1"


def test_doctor_fixes_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda folder: [])
    monkeypatch.setattr(orphans, "find", lambda: [7, 8])
    ended: list[int] = []
    monkeypatch.setattr(orphans, "end", lambda pids: ended.extend(pids) or [8])
    done = called("doctor", "--fix")
    assert (done.exit_code, ended) == (0, [7, 8])
    assert "orphaned processes ended: 1" in done.output
    assert "processes of runs that have ended: 7, 8" in doctor._orphans().found


@pytest.mark.parametrize(("ranks", "cores", "cautioned"), [(8, 2, False), (16, 4, False), (16, 2, True), (64, 2, True)])
def test_more_ranks_than_cores_carry_run_with_a_caution(able: None, ranks: int, cores: int, cautioned: bool) -> None:
    crowded = replace(_setting(ranks), cores=cores)
    assert Fabric().unsupported(crowded) is None
    note = Fabric().note(crowded)
    assert (note is not None) == cautioned
    if note:
        assert note.startswith(f"{ranks} ranks on {cores} cores ({ranks // cores} per core) are oversubscribed: bytes")
    too_many = f"65 processes are too many for {cores} cores; at most 64"
    assert Fabric().unsupported(replace(crowded, processes=65)) == too_many


def test_the_caution_is_in_plan_and_comparison(able: None, tmp_path: Path) -> None:
    suite = SUITE.replace("processes: [1, 2]", "processes: [1, 32]").replace("processes: 2}", "processes: 32}")
    record = make_record(tmp_path, suite.replace("  engine: ddp\n", "  engine: ddp\n  launcher: fabric\n"))
    (note,) = [text for text in record.plan.notes if "oversubscribed" in text]
    assert note.startswith("launcher fabric (rate=1gbit): 32 ranks on 2 cores (16 per core)")
    (again,) = [text for text in compare_runs([record.folder.root], None, None).notes if "oversubscribed" in text]
    assert note.endswith(again)
