"""Every defect of tests/plugins in DDP, ZeRO 1 and ZeRO 3, in fp32 and in bfloat16: nearly all are stopped. Slow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

ALLOWED = 2
"""Defects that nothing stops, and those that another check stops than expected."""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast"])
@pytest.mark.parametrize("engine", ["ddp", "zero1", "zero3"])
def test_planted_defects_are_stopped_and_named(
    monkeypatch: pytest.MonkeyPatch, engine: str, precision: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugins"))
    from defects import DEFECTS
    from run_defects import run

    found = run(engine, precision, list(DEFECTS))
    assert len(found) >= 30
    assert sum(not item.by for item in found) <= ALLOWED
    misnamed = [item for item in found if item.by == "gate" and item.check not in DEFECTS[item.defect].checks]
    assert len(misnamed) <= ALLOWED
    for name in ("run_defects", "defects", "evaluation_defects", "outside_defects", "unread_defects", "late_defects",
                 "passing_defects", "stranger_defects", "plant"):
        sys.modules.pop(name, None)
