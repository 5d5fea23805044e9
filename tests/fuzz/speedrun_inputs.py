"""Records of speed-runs as inputs: one log between good ones, and the files of an import."""

from __future__ import annotations

from pathlib import Path

from repro.published import importing
from repro.published.store import RECORD, RESULTS
from tests.fuzz.published_inputs import _import, _imported
from tests.unit.published.made_speedruns import Box, Run, arm, runs, scaled

NAME = "2026-07-17_Fp8"


def _record(folder: Path) -> Path:
    arm(folder / "in" / NAME / "baseline", runs(steps=20, every=10))
    home = arm(folder / "in" / NAME / "this_pr", runs(steps=20, every=10, times=scaled(0.98)))
    (folder / "in" / NAME / "README.md").write_text("losses: (std=0.0013, mean=3.2783)\n")
    return home / "00000000.txt"


def _speed_logs(folder: Path) -> list[bytes]:
    _record(folder)
    made = (Run(), Run(unit="s"), Run(warm=True), Run(box=None), Run(loss="nan"), Run(box=Box(gpus=1)))
    return [Run(**{**vars(run), "steps": 20, "every": 10}).text().encode() for run in made]


def _speed_log(data: bytes, folder: Path) -> None:
    (folder / "in" / NAME / "this_pr" / "00000000.txt").write_bytes(data)
    _import("speedrun", folder / "in", folder)


def _speed_imports(folder: Path) -> list[bytes]:
    _record(folder)
    importing.import_results("speedrun", folder / "in", folder / "made")
    return [name.encode() + b"\n" + (folder / "made" / name).read_bytes() for name in (RECORD, RESULTS)]


def _speed_imported(data: bytes, folder: Path) -> None:
    _imported(data, folder, "system=baseline")
