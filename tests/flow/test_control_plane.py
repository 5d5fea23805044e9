"""What goes through the controller, in real trials: counted by the kernel, equal for any size of the model."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.core.events import read_events
from repro.launchers.netns.probe import ability
from repro.record.folder.store import Record, read_record
from repro.record.result.results import Result
from repro.reporting import reporter
from tests.commands import ROOT, command
from tests.plans import suite

pytestmark = pytest.mark.slow

NO_FABRIC = pytest.mark.skipif(bool(ability().problem), reason=ability().problem)
SUITE = suite("control", """\
matrix:
  workload.hidden: [64, 512]
  launcher: LAUNCHERS
""", workload="{kind: digits-mlp, hidden: 64, depth: 2}", optimizer="{kind: sgd, lr: 0.05}",
    stop="{design: fixed_steps, steps: 6, warmup: 0}", evaluate_every=None, processes=2,
    comm="{kind: parameter-server, shards: 1}", gate="{skip: \"the gate is tested elsewhere\"}")
ACKNOWLEDGEMENT = 66
"""Bytes of the frame of a TCP acknowledgement with time stamps."""


def _run(out: Path, suite: str, *options: str) -> Record:
    code, _, error = command(ROOT, "run", suite, *options, "--no-mlflow", "--json", "--out", str(out))
    assert code in (0, 3), error
    return read_record(out)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of a smaller and a larger model, on this machine and, if it can, on the emulated cluster."""
    folder = tmp_path_factory.mktemp("control")
    launchers = "[local]" if ability().problem else "[local, {kind: fabric, rate: 1gbit}]"
    (folder / "control.yaml").write_text(SUITE.replace("LAUNCHERS", launchers))
    _run(folder / "run", str(folder / "control.yaml"))
    return folder / "run"


def _check(record: Record) -> None:
    """Hold every trial against what is exact: nothing in training, equal bytes for any |W|, formula's bytes."""
    startup, messages = defaultdict(set), defaultdict(list)
    for result in record.results:
        choices = record.cell(result.cell_id).choices
        found, world = result.controller, choices.processes
        assert result.status == "ok" and found is not None and found.ranks == world, result
        assert (found.training.bytes, found.training.messages) == (0, 0), "no handshake in any step"
        assert result.controller_bytes == found.startup.bytes > 0
        startup[choices.origin, world].add(found.startup.bytes)
        messages[choices.origin, world].append(found.startup.messages)
        traffic = result.traffic
        assert traffic is not None and traffic.formula is not None
        assert traffic.busiest_sent_bytes == traffic.formula.sent_bytes, "to the byte"
        if found.control_frames is not None:
            _check_frames(result)
    assert all(len(seen) == 1 for seen in startup.values()), "independent of |W| and of the algorithm, to the byte"
    # Two requests in a row may share a segment.
    assert all(max(seen) <= 1.03 * min(seen) for seen in messages.values())


def _check_frames(result: Result) -> None:
    found, network = result.controller, result.network
    assert found is not None and found.control_frames is not None and found.data_frames is not None and network
    # Delayed acknowledgements of start-up, one per connection, and ARP; both sides of every rank's two connections.
    assert found.control_frames.bytes <= found.ranks * 2 * 2 * ACKNOWLEDGEMENT
    whole = sum(network.control_sent_bytes) + sum(network.control_received_bytes)
    frames = sum(network.control_sent_frames) + sum(network.control_received_frames)
    # Both ends count: a frame from a rank to the store is the rank's alone, because the store is at the switch.
    assert found.startup.bytes < whole <= found.startup.bytes + frames * (ACKNOWLEDGEMENT + 40)
    assert result.bytes_sent is not None
    assert result.bytes_sent < found.data_frames.sent_bytes < 1.2 * result.bytes_sent + 20_000


def test_nothing_goes_through_the_controller_in_training(root: Path) -> None:
    _check(read_record(root))


def test_the_logs_bytes_are_those_of_the_file(root: Path) -> None:
    for result in read_record(root).results:
        path = root / "trials" / result.trial_id / f"result_{result.attempt}.txt"
        lines = path.read_bytes().splitlines(keepends=True)
        keys = [event.key for event in read_events(path)[0]]
        start, stop = keys.index("run_start"), keys.index("x_phases")
        assert result.controller is not None
        assert result.controller.log_startup_bytes == sum(map(len, lines[:start]))
        assert result.controller.log_training_bytes == sum(map(len, lines[start:stop + 1]))


def test_the_record_verifies_and_every_report_has_it(root: Path, tmp_path: Path) -> None:
    assert verify(root).sound
    found = [Path(path) for name in ("html", "csv") for path in reporter(name).write(read_record(root), tmp_path)]
    text = "".join(path.read_text(encoding="utf-8") for path in found if path.suffix in (".html", ".csv"))
    assert 'id="controller"' in text
    assert "Frame bytes on the control network" in text or ability().problem
    for name in ("controller_startup_bytes", "controller_training_messages", "controller_bytes", "busiest_bytes"):
        assert name in text


@NO_FABRIC
def test_the_smoke_form_of_mimatrix(tmp_path: Path) -> None:
    record = _run(tmp_path / "run", "mimatrix", "--seeds", "1", "-o", "stop.steps=10", "-o", "stop.warmup=2",
                  "-o", "processes=2,8")
    assert len(record.results) == 8
    _check(record)
    busiest = {(cell.choices.comm.kind, cell.choices.processes, cell.choices.workload.options["hidden"]):
               record.of_cell(cell.cell_id)[0].busiest_bytes for cell in record.plan.cells}
    assert busiest["parameter-server", 8, 512] / busiest["parameter-server", 2, 512] == pytest.approx(7, rel=0.01)
    assert busiest["ring", 8, 512] / busiest["ring", 2, 512] == pytest.approx(1.75, rel=0.01)
