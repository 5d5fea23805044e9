"""ZeRO++ on CPU: a second copy of the weights in groups of ranks trains as DDP does, and is read back."""

from __future__ import annotations

import pytest

from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp
from tests.engine_ranks import Case, Run, furthest, ranks

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

__all__ = ["ranks"]


def scattered(**options: int) -> DeepSpeedZero:
    """ZeRO 3 that keeps no small tensor complete on every rank."""
    config = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    return DeepSpeedZero(stage=3, config=config, **options)


@pytest.mark.parametrize(("world", "hpz"), [
    (2, 2), *(pytest.param(4, hpz, marks=pytest.mark.slow) for hpz in (2, 4))])
def test_a_second_copy_in_groups_trains_as_ddp(ranks: Run, world: int, hpz: int) -> None:
    ours = ranks(Case(scattered(hpz=hpz), world, overlap=None, warm_up=True))
    theirs = ranks(Case(Ddp(), world, warm_up=True))[0]
    assert [one["effective"]["hpz"] for one in ours] == [str(hpz)] * world
    assert max(abs(a - b) for a, b in zip(ours[0]["losses"], theirs["losses"], strict=True)) < 1e-5
    assert furthest(ours[0]["weights"], theirs["weights"]) < 1e-5


def test_without_it_there_is_none(ranks: Run) -> None:
    assert ranks(Case(scattered(), 2, overlap=None))[0]["effective"]["hpz"] == "1"


def test_the_type_of_gradients_on_the_wire_is_what_deepspeed_says(ranks: Run) -> None:
    found = ranks(Case(DeepSpeedZero(stage=1), 2, overlap=None, compression="bf16", warm_up=True))[0]["effective"]
    assert (found["communication_data_type"], found["comm_dtype"]) == ("bfloat16", "bfloat16")
