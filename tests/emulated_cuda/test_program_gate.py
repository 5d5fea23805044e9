"""The gate of programs on emulated GPUs: a Trainer's and Accelerate's FSDP 2, DDP and ZeRO train as one device does."""

from __future__ import annotations

import importlib.util

import pytest

from repro.program.gate.judge import Difference, Intended
from tests.traced_programs import against, traced

NEEDS = {"accelerated.py": "accelerate", "trainer.py": "transformers"}
REFERENCES = {"accelerated.py": ("--gpu",), "trainer.py": ("--gpu", "--processes", "1")}
SWITCHES = {"fsdp2": (("ACCELERATE_USE_FSDP", "true"),), "zero2": (("ACCELERATE_USE_DEEPSPEED", "true"),)}
WRAPPERS = {"fsdp2": "fsdp2", "zero2": "deepspeed-2", "zero3": "deepspeed-3", "ddp": "ddp"}
pytestmark = pytest.mark.rehearse


def judged(program: str, backend: str, settings: tuple[str, ...], mistake: str = "") -> Difference | None:
    """Return the first difference of two devices from one."""
    if importlib.util.find_spec(NEEDS[program]) is None:
        pytest.skip(f"{NEEDS[program]} is not installed")
    reference = traced(program, (*REFERENCES[program], *settings), 1, devices=1)
    null = traced(program, (*REFERENCES[program], *settings), 1, reference.width, devices=1)
    planted = ("--mistake", mistake) if mistake else ()
    ours = traced(program, ("--gpu", "--backend", backend, *settings, *planted), 2, devices=2,
                  environment=SWITCHES.get(backend, ()) if program == "accelerated.py" else ())
    return against(ours, reference, null, Intended(2, WRAPPERS[backend]))


@pytest.mark.parametrize(("program", "backend", "settings"), [
    *(("trainer.py", backend, settings) for backend in ("ddp", "fsdp2", "zero2", "zero3")
      for settings in ((), ("--bf16",), ("--clip", "0.5"))),
    ("accelerated.py", "fsdp2", ()), ("accelerated.py", "fsdp2", ("--precision", "bf16")),
])
def test_a_healthy_variant_is_not_accused(program: str, backend: str, settings: tuple[str, ...]) -> None:
    found = judged(program, backend, settings)
    assert found is None, f"{found.check} {found.step} {found.text}"


def test_half_precision_weights_under_fsdp_2_are_stopped() -> None:
    found = judged("trainer.py", "fsdp2", (), "half weights")
    assert found is not None
    assert (found.check, found.step) == ("formats", 0)
    assert "no float32 master weights" in found.text
