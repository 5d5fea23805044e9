"""Measured memory of weights, gradients and optimizer follows the stated formula; nothing is read back in a step."""

from __future__ import annotations

import pytest

from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Master, Fp32
from repro.engines.torch_engines import Ddp, Fsdp, Single
from repro.optimizers.muon import Muon
from repro.optimizers.rules import Soap
from repro.papers.local_sgd.local_sgd import LocalSgd, Outer
from repro.seams.training import Engine, Precision
from tests.engine_ranks import ADAMW, SCATTERED, SGD, Case, Run, ranks
from tests.optimizer_cases import ENGINES as OPTIMIZER_ENGINES
from tests.optimizer_cases import OPTIMIZERS

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

__all__ = ["ranks"]
WIDTH = 512
"""8 x 512 x 512 weights: two million parameters."""
SMALL = {"bucket_mib": 0.25}
"""DeepSpeed's default bucket holds 5e8 elements, far more than the states of this model."""
KEPT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
ENGINES = [Ddp(), Fsdp(), DeepSpeedZero(stage=0), DeepSpeedZero(stage=1, **SMALL), DeepSpeedZero(stage=2, **SMALL),
           DeepSpeedZero(stage=3, config=KEPT, **SMALL), LocalSgd(every=4),
           LocalSgd(every=4, outer=Outer(momentum=0.9, nesterov=True))]
FAST = (Fsdp, DeepSpeedZero)
slow = pytest.mark.slow
QUICK = [(Single(), "muon"), (Single(), "soap"), (Single(), "schedule-free-adamw"), (Fsdp(), "lars")]


def cases() -> list[object]:
    """Every engine; by default fp32 on two ranks of those that divide the states."""
    found: list[object] = []
    for engine in ENGINES:
        for world, precision in ((2, Fp32()), (4, Fp32()), (2, Bf16Master())):
            fast = world == 2 and isinstance(precision, Fp32) and engine in ENGINES[1:4:2]
            case = Case(engine, world, 1, ADAMW, precision=precision, wide=WIDTH, body="state_memory")
            found.append(pytest.param(case, marks=() if fast else slow, id=f"{case}"))
    return found


@pytest.mark.parametrize("case", cases())
def test_states_take_the_memory_of_the_formula(ranks: Run, case: Case) -> None:
    for rank in ranks(case):
        predicted, measured = rank["predicted"]["total"], rank["measured"] - rank["before"]
        print(f"{case}: measured {measured:,}, formula {predicted:,}, ratio {measured / predicted:.3f}")
        assert measured == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize(("engine", "name"), [
    pytest.param(engine, name, id=f"{type(engine).__name__}-{name}", marks=[] if (engine, name) in QUICK else slow)
    for name, engines in OPTIMIZER_ENGINES.items() for engine in (Single(), *engines) if engine in (Single(), Fsdp())])
def test_states_of_every_optimizer_take_the_memory_of_the_formula(ranks: Run, engine: Engine, name: str) -> None:
    pytest.importorskip("pytorch_optimizer")
    pytest.importorskip("schedulefree")
    optimizer = OPTIMIZERS[name]
    if isinstance(optimizer, Muon):
        optimizer = optimizer.model_copy(update={"hidden": None})
    if isinstance(optimizer, Soap):
        optimizer = Soap(lr=0.001)
    case = Case(engine, 1 if isinstance(engine, Single) else 2, 1, optimizer, wide=256, body="state_memory")
    for rank in ranks(case):
        predicted, measured = rank["predicted"], rank["measured"] - rank["before"]
        print(f"{case}: measured {measured:,}, formula {predicted['total']:,}")
        assert measured == pytest.approx(predicted["total"], rel=0.15)
        # 8 layers of n x n weights and n biases: Muon has 6 of the layers, SOAP and Shampoo two factors and two more
        # matrices of each (Shampoo those of the biases, too).
        n, count = 256, 8 * (256 * 256 + 256)
        kept = {"lars": count, "lion": count, "schedule-free-sgd": count, "muon": 2 * count - 6 * n * n,
                "soap": 2 * count + 32 * n * n, "shampoo": count + 32 * n * n + 16 * n * n}.get(name, 2 * count)
        assert predicted["optimizer"] == 4 * kept // case.world


@pytest.mark.parametrize("engine", [Single(), Ddp(), Fsdp()], ids=str)
@pytest.mark.parametrize("name", ["lars", "lamb", "adaptahead"])
def test_our_rules_read_nothing_back(ranks: Run, engine: Engine, name: str) -> None:
    world = 1 if isinstance(engine, Single) else 2
    for rank in ranks(Case(engine, world, 2, OPTIMIZERS[name], body="readbacks")):
        assert rank["readbacks"] == []


@pytest.mark.parametrize("engine", [Ddp(), Fsdp(), DeepSpeedZero(stage=0), DeepSpeedZero(stage=1),
                                    DeepSpeedZero(stage=2), SCATTERED], ids=str)
@pytest.mark.parametrize(("precision", "clip"), [
    (Fp32(), None), pytest.param(Fp32(), 0.5, marks=slow), pytest.param(Bf16Master(), None, marks=slow)], ids=str)
def test_no_code_of_ours_reads_back_in_a_step(
    ranks: Run, engine: Engine, precision: Precision, clip: float | None
) -> None:
    """DeepSpeed reads a norm or an overflow flag in every step; that is its own code, the same in any program."""
    for rank in ranks(Case(engine, 2, 2, SGD, clip, precision, body="readbacks")):
        print(engine, rank["readbacks"])
        theirs = [place for place in rank["readbacks"] if "/site-packages/deepspeed/" in place]
        assert [place for place in rank["readbacks"] if place not in theirs] == []
        assert not theirs or isinstance(engine, DeepSpeedZero)
