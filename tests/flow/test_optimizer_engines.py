"""Every optimizer trains alike in every engine that a plan allows it in; where it is refused, it would not.

Tolerances: rounding of float32, amplified by the rules that divide by small roots or round to bfloat16 (Muon).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.precisions import Bf16Master
from repro.engines.torch_engines import Fsdp, Single
from repro.seams.training import Engine
from tests.engine_ranks import Case, Run, check_warm_up, furthest, ranks, same_bytes, thorough
from tests.optimizer_cases import ENGINES, EVERYWHERE, OPTIMIZERS, ZERO_0, ZERO_1, ZERO_2

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytest.importorskip("pytorch_optimizer")
pytest.importorskip("schedulefree")

__all__ = ["ranks"]
TOLERANCE = {"adaptahead": 1e-5, "rmsprop": 1e-5, "lars": 5e-6, "shampoo": 1e-4, "muon": 2e-3}
STEPS = 12
Named = tuple[str, Engine]


def case_of(name: str, engine: Engine, world: int = 2) -> Case:
    return Case(engine, world, 2, OPTIMIZERS[name], 0.5, steps=STEPS)


ALL: list[Named] = [(name, engine) for name, engines in ENGINES.items() for engine in engines]
FAST: list[Named] = [(name, engine) for name, engine in ALL if engine == EVERYWHERE[0] or
                     (name, engine) in [("lars", Fsdp()), ("schedule-free-adamw", Fsdp()), ("muon", Fsdp())]]


def parameters(chosen: list[Named]) -> list[object]:
    cases = [(name, engine) for name, engine in ALL]
    return [pytest.param(*item, id=f"{item[0]}-{type(item[1]).__name__}{getattr(item[1], 'stage', '')}",
                         marks=[] if item in chosen else [pytest.mark.slow]) for item in cases]


@pytest.mark.parametrize(("name", "engine"), parameters(FAST))
def test_training_is_that_of_one_plain_process(ranks: Run, name: str, engine: Engine) -> None:
    reference = ranks(Case(Single(), optimizer=OPTIMIZERS[name], clip=0.5, steps=STEPS))[0]
    found = ranks(case_of(name, engine))
    assert same_bytes(found[0]["weights"], found[1]["weights"])
    assert furthest(reference["weights"], reference["initial"]) > 0.01
    assert furthest(found[0]["weights"], reference["weights"]) < TOLERANCE.get(name, 2e-6)
    assert found[0]["effective"]["optimizer_options"] == reference["effective"]["optimizer_options"]


@pytest.mark.parametrize(("name", "engine"), parameters(FAST[:2] + FAST[-2:]))
def test_a_warm_up_leaves_nothing_behind(ranks: Run, name: str, engine: Engine) -> None:
    check_warm_up(ranks, case_of(name, engine))


@pytest.mark.parametrize("name", ["lars", "lamb", pytest.param("soap", marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", thorough([ZERO_1, ZERO_2], [ZERO_1]), ids=str)
def test_zero_would_silently_train_whole_tensor_rules_differently(ranks: Run, name: str, engine: Engine) -> None:
    """The plan's refusal is passed by: nothing fails, ranks agree, losses stay small, and the weights are others.

    Not here: Muon fails on a vector, and Shampoo's factor of a vector has as many rows as the vector.
    """
    reference = ranks(Case(Single(), optimizer=OPTIMIZERS[name], clip=0.5, steps=STEPS))[0]
    whole, flat = ranks(case_of(name, ZERO_0))[0], ranks(case_of(name, engine))
    assert same_bytes(flat[0]["weights"], flat[1]["weights"])
    assert furthest(whole["weights"], reference["weights"]) < 5e-6
    assert flat[0]["losses"][-1] < 2 * reference["losses"][0]
    away = furthest(flat[0]["weights"], reference["weights"])
    print(f"{name}: ZeRO {engine.model_dump()['stage']} ends {away:.2g} from one plain process, ZeRO 0 "
          f"{furthest(whole['weights'], reference['weights']):.2g}")
    assert away > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lars", "lamb", "lion", "schedule-free-sgd"])
def test_norms_of_divided_rows_go_through_the_algorithm(ranks: Run, name: str) -> None:
    reference = ranks(Case(Single(), optimizer=OPTIMIZERS[name], clip=0.5, steps=STEPS))[0]
    for world in (2, 4):
        found = ranks(replace(case_of(name, Fsdp(), world), comm=Ring()))
        assert furthest(found[0]["weights"], reference["weights"]) < 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lars", "lamb", "muon", "schedule-free-adamw"])
def test_under_bf16_master_fsdp_is_ddp(ranks: Run, name: str) -> None:
    case = replace(case_of(name, Fsdp()), precision=Bf16Master())
    reference, found = ranks(replace(case, engine=EVERYWHERE[0]))[0], ranks(case)[0]
    assert furthest(found["weights"], reference["weights"]) < (5e-3 if name == "muon" else 1e-4)
    assert found["totals"] == reference["totals"]


@pytest.mark.parametrize("precision", ["Fp32", "Bf16Master"])
def test_an_evaluation_sees_the_average_and_training_goes_on_from_the_same_bits(ranks: Run, precision: str) -> None:
    case = replace(case_of("schedule-free-sgd", EVERYWHERE[0]), body="averages")
    found = ranks(replace(case, precision=Bf16Master()) if precision == "Bf16Master" else case)[0]
    assert same_bytes(found["before"], found["after"])
    assert furthest(found["before"], found["averaged"]) > 1e-4
    assert found["scored_inside"] == found["scored"]
    # The model itself has the average, also where the optimizer steps float32 copies of its weights.
    held = {item.name: item.values for item in found["held"]}
    averaged = {name: values.ravel() for name, values in found["averaged"].items()}
    assert furthest(held, averaged) < 4e-3 * max(float(abs(values).max()) for values in averaged.values())
    assert furthest(held, {name: values.ravel() for name, values in found["before"].items()}) > 1e-4
