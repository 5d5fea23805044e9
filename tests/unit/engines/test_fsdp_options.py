"""The options of engine fsdp, what it refuses, and how it divides a model; no process group is started."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from repro.comm.algorithms.doubling import Butterfly
from repro.comm.algorithms.ring import Ring
from repro.core.errors import TrialError
from repro.engines.torch_engines import Fsdp
from repro.seams.training import Comm
from tests.plans import setting


@pytest.mark.parametrize(("engine", "changes", "reason"), [
    (Fsdp(), {}, None),
    (Fsdp(), {"precision": "bf16-master", "weights": "bfloat16", "master_weights": True, "accumulation": 4}, None),
    (Fsdp(), {"compression": "bf16"}, None),
    (Fsdp(), {"compression": "bf16", "accumulation": 2}, "compression needs accumulation 1"),
    (Fsdp(), {"compression": "fp16", "weights": "bfloat16"}, "already have 16 bits"),
    (Fsdp(), {"compression": "powersgd"}, "PowerSGD hook does not reach"),
    (Fsdp(), {"overlap": False}, None),
    (Fsdp(), {"overlap": True}, "on a CPU its collectives block"),
    (Fsdp(), {"overlap": True, "device": "cuda"}, None),
    (Fsdp(wrap="model"), {"overlap": True, "device": "cuda"}, "use wrap: blocks"),
    (Fsdp(), {"overlap": False, "device": "cuda"}, "use wrap: model"),
    (Fsdp(wrap="model"), {"overlap": False, "device": "cuda"}, None),
])
def test_what_fsdp_cannot_do_is_refused_in_a_line(engine: Fsdp, changes: dict[str, Any], reason: str | None) -> None:
    found = engine.unsupported(setting(**changes))
    assert (found is None) if reason is None else (found is not None and reason in found and "\n" not in found)


@pytest.mark.parametrize(("comm", "processes", "reason"), [
    (Ring(), 2, None),
    (Butterfly(), 4, "leaves reduce_scatter to the backend"),
    (Butterfly(), 3, "leaves all_gather and reduce_scatter to the backend"),
    (Butterfly(), 1, None),
])
def test_algorithms_need_a_schedule_for_both_collectives(comm: Comm, processes: int, reason: str | None) -> None:
    found = Fsdp().unsupported(setting(comm=type(comm).__name__, own_algorithm=True, processes=processes,
                                       passed_through=tuple(comm.passes_through(processes))))
    assert (found is None) if reason is None else (found is not None and found.endswith(reason))


@pytest.mark.parametrize(("options", "stage"), [
    ({}, 3), ({"wrap": "model"}, 2), ({"wrap": "model", "reshard_after_forward": True}, 3),
    ({"reshard_after_forward": False}, 2), ({"wrap": ["Block"]}, 3),
])
def test_stage_of_zero(options: dict[str, Any], stage: int) -> None:
    assert Fsdp.model_validate(options).zero_stage() == stage


@pytest.mark.parametrize("wrap", ["layers", [], ["Linear", "../Linear"], [""]])
def test_wrap_is_a_choice_or_a_list_of_class_names(wrap: Any) -> None:
    with pytest.raises(ValidationError, match="wrap"):
        Fsdp.model_validate({"wrap": wrap})


def test_blocks_are_children_with_parameters_and_those_of_lists() -> None:
    torch = pytest.importorskip("torch")
    from repro.engines.plain.fsdp_session import blocks_of

    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ModuleList([nn.Linear(2, 2), nn.Flatten()]),
                          nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2))}))
    assert [type(block).__name__ for block in blocks_of(model)] == ["Linear", "Linear", "Sequential"]


def test_a_model_that_cannot_be_divided_as_requested_is_refused() -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from repro.engines.plain.fsdp_session import divide, inner_modules

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with pytest.raises(TrialError, match=r"no module of that class or path; its classes are Linear"):
        inner_modules(model, ("Block",))
    model.scale = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(TrialError, match="'scale' is a scalar"):
        divide(model, [], "cpu", None, MixedPrecisionPolicy())
