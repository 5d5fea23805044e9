"""A trial that did not run as requested is invalid, with any result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.core.events import EventLog
from repro.record.derive.derive import derive
from repro.record.derive.effective import mismatches
from repro.record.log import schema
from repro.record.result.reasons import OtherData, Unlike
from repro.record.result.results import Result
from tests.unit.record.test_results import FINE, Script, make_trial, play

RIGHT = {"matmul_dtype": "float32", "weight_dtype": "float32", "gradient_dtype": "float32", "master_dtype": "float32",
         "comm_dtype": "float32", "tf32": "off", "compression": "none", "threads": "1", "loss_scale": "none",
         "comm": "gloo", "optimizer": "torch.optim.sgd.SGD", "overlap": "on"}


def judged(tmp_path: Path, effective: dict[str, Any], script: Script | None = None, **choices: Any) -> Result:
    def after(log: EventLog) -> None:
        log.write(schema.Settings(value={"OMP_NUM_THREADS": "1"}))
        log.write(schema.EffectiveSettings(value=effective))

    script = script or Script()
    script.after = after
    return derive(make_trial(**choices), 1, play(tmp_path / "log", script), FINE)


def test_settings_that_ran_as_requested_are_valid(tmp_path: Path) -> None:
    found = judged(tmp_path, RIGHT)
    assert (found.status, found.reason) == ("ok", "")
    assert found.tta_wall is not None


@pytest.mark.parametrize(("ran", "choices", "reason"), [
    ({"matmul_dtype": "float32"}, {"precision": "bf16-autocast"}, "matmul_dtype bfloat16 was asked for, float32 ran"),
    ({"weight_dtype": "bfloat16"}, {}, "weight_dtype float32 was asked for, bfloat16 ran"),
    ({"master_dtype": "bfloat16"}, {}, "master_dtype float32 was asked for, bfloat16 ran"),
    ({"gradient_dtype": "float16"}, {}, "gradient_dtype float32 was asked for, float16 ran"),
    ({"zero_stage": "2"}, {"engine": {"kind": "deepspeed", "stage": 1}}, "zero_stage 1 was asked for, 2 ran"),
    ({"comm_dtype": "bfloat16"}, {}, "comm_dtype float32 was asked for, bfloat16 ran"),
    ({"comm_dtype": "bfloat16,float32"}, {"compression": "bf16"}, "comm_dtype bfloat16 was asked for"),
    ({"comm_dtype": "float32", "compression": "fp16"}, {"compression": "fp16"}, "comm_dtype float16 was asked for"),
    ({"compression": "none"}, {"compression": "powersgd"}, "compression powersgd rank 1 was asked for, none ran"),
    ({"compression": "powersgd rank 1"}, {"compression": "powersgd", "compression_rank": 2}, "powersgd rank 2 was"),
    ({"overlap": "on"}, {"overlap": False}, "overlap off was asked for, on ran"),
    ({"overlap": "off"}, {"overlap": True}, "overlap on was asked for, off ran"),
    ({"threads": "2"}, {}, "threads 1 was asked for, 2 ran"),
    ({"tf32": "on"}, {}, "tf32 off was asked for, on ran"),
    ({"loss_scale": "65536"}, {}, "no loss scale was asked for, 65536 ran"),
    ({"loss_scale": "none", "matmul_dtype": "float16"}, {"precision": "fp16-autocast"}, "a loss scale was asked for"),
    ({"comm": "gloo"}, {"comm": "ring", "processes": 2}, "comm ring was asked for, backend ran"),
    ({"comm_algorithm": "tree", "comm_collectives": "all_reduce"}, {"comm": "ring", "processes": 2},
     "comm ring was asked for, tree ran"),
    ({"comm_algorithm": "ring"}, {"comm": "ring", "processes": 2}, "comm ring was asked for"),
    ({"comm_algorithm": "ring", "comm_collectives": "all_reduce"}, {"processes": 2}, "comm backend was asked for"),
])
def test_every_mismatch_makes_a_trial_invalid(
    tmp_path: Path, ran: dict[str, str], choices: dict[str, Any], reason: str
) -> None:
    found = judged(tmp_path, {**RIGHT, **ran}, **choices)
    assert found.status == "invalid"
    assert reason in found.reason
    assert found.tta_wall is None


def test_hybrid_may_leave_everything_to_the_backend(tmp_path: Path) -> None:
    left = {**RIGHT, "comm_algorithm": "hybrid", "comm_collectives": "all_reduce left to gloo"}
    assert judged(tmp_path, left, comm="hybrid", processes=2).status == "ok"


def test_unknown_settings_are_not_judged(tmp_path: Path) -> None:
    assert judged(tmp_path, {"comm_dtype": "unknown", "compression": "unknown", "loss_scale": "unknown"}).status == "ok"
    assert judged(tmp_path, {}).status == "ok"


def test_the_number_of_threads_follows_the_ranks_environment() -> None:
    choices = make_trial().choices
    assert mismatches(choices, {"threads": "4"}, {"OMP_NUM_THREADS": "4"}) == []
    assert mismatches(choices, {"threads": "4"}, {}) == [Unlike(name="threads", wanted="1", ran="4")]


def test_a_trial_that_missed_or_crashed(tmp_path: Path) -> None:
    missed = Script(values=(0.1, 0.2), outcome="missed", reason="top1 0.2 after 8 epochs")
    assert judged(tmp_path, {**RIGHT, "threads": "8"}, missed).status == "invalid"
    crashed = Script(stop=False)
    assert judged(tmp_path, {**RIGHT, "threads": "8"}, crashed).status == "crashed"


@pytest.mark.parametrize("what", ["data_order", "augmentation"])
def test_samples_fed_in_another_order_than_the_seeds_make_a_trial_invalid(tmp_path: Path, what: str) -> None:
    def after(log: EventLog) -> None:
        seeded = schema.Seeded(**{"data_order": True, "augmentation": True, what: False})
        log.write(schema.Fed(samples=3000, order="", augmentation="", as_seeded=seeded))

    found = derive(make_trial(), 1, play(tmp_path / "log", Script(after=after)), FINE)
    assert found.status == "invalid"
    assert found.reasons == (OtherData(what=what),)
