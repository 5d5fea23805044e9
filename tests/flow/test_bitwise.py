"""`determinism: bitwise` on the CPU: two executions hash-equal at steps 1, 10 and the end, after any earlier work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from repro.core import registry
from repro.core.machine import Machine
from repro.record.folder.store import Record
from repro.runner.run import Run, prepare
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan
from repro.workloads.digits import TRAIN_SAMPLES
from tests.plans import planned, suite
from tests.watcher import Silent

STEPS = 12
ENGINES = ("ddp", "{kind: ddp, bucket_mib: 0.1}",
           "fsdp", "{kind: fsdp, wrap: model}", *(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4)))
"""DDP with one bucket and with several, which are summed during back-propagation; FSDP; every ZeRO stage."""
BY_MODEL = "{kind: hybrid, alpha_seconds: 0.0001, beta_seconds: 1.0e-9}"


@dataclass(slots=True)
class Ungated(Run):
    """A second execution: the first has passed the parity gate."""

    def _parity(self) -> None: ...


def comms() -> list[str]:
    """Every algorithm that there is, as YAML; hybrid as it is allowed here, hierarchical in both forms."""
    special = {"hybrid": BY_MODEL, "hierarchical": "hierarchical, {kind: hierarchical, form: torus}"}
    return [special.get(name, name) for name in sorted(registry.names("comm"))]


def plan_of(folder: Path, processes: int, algorithms: list[str], engines: tuple[str, ...] = ENGINES) -> Plan:
    matrix = f"  comm: [{', '.join(algorithms)}]\n  engine: [{', '.join(engines)}]\n  processes: [{processes}]\n"
    epochs = f"{STEPS * 64 / TRAIN_SAMPLES:.6f}"
    return planned(folder, suite(
        "bitwise", f"matrix:\n{matrix}", workload="{kind: digits-mlp, hidden: 256}",
        optimizer="{kind: sgd, lr: 0.1, momentum: 0.9}", determinism="bitwise", timeout_seconds=300,
        stop=f"{{metric: top1, target: 0.01, max_epochs: {epochs}, design: fixed_budget}}"))


def executed(plan: Plan, out: Path, cls: type[Run] = Run) -> Record:
    return cls(plan, prepare(plan, "# made in a test\n", out), Machine("cpu", 0, 2), Silent()).execute()


def hashes(record: Record) -> dict[str, tuple[str, ...]]:
    """Trial -> weights at steps 1, 10 and the end."""
    names = ("weights_step_1", "weights_step_10", "final_weights")
    assert {item.status for item in record.results} == {"ok"}, [item.reason for item in record.results]
    return {item.trial_id: tuple(item.hashes[name] for name in names) for item in record.results}


def told(trial: Trial) -> str:
    return f"{trial.choices.engine.label} over {trial.choices.comm.label}"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_engine_and_algorithm_twice_in_another_order(tmp_path: Path, processes: int) -> None:
    """The second execution goes backwards: every trial then follows others in the warm fork server."""
    plan = plan_of(tmp_path, processes, comms())
    first = hashes(executed(plan, tmp_path / "first"))
    back = plan.model_copy(update={"order": tuple(reversed(plan.order))})
    second = hashes(executed(back, tmp_path / "second", Ungated))
    assert len(first) == len(plan.cells)
    assert all(len(set(found)) == 3 for found in first.values()), "weights that did not move show nothing"
    differ = [told(trial) for trial in plan.trials() if first[trial.trial_id] != second[trial.trial_id]]
    print(f"{processes} processes: {len(first) - len(differ)} of {len(first)} trials hash-equal at steps 1, 10, "
          f"{STEPS}; {len(set(first.values()))} different courses; skipped {len(plan.skipped)}")
    assert differ == []


def test_hybrid_that_picks_by_the_clock_is_not_bitwise(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 2, ["ring", "hybrid", BY_MODEL], ("ddp",))
    assert [cell.choices.comm.kind for cell in plan.cells] == ["ring", "hybrid"]
    skipped, = plan.skipped
    assert "picks by measured times" in skipped.reason and "alpha_seconds" in skipped.reason
    alone = plan_of(tmp_path, 1, ["hybrid", "ring"], ("ddp",))
    assert alone.skipped == (), "one process has nothing to pick"
