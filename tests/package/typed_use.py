"""Every public name of `repro`, with the type that a checker of a user must see: mypy and pyright read this file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from pandas import DataFrame
from typing_extensions import assert_type

import repro
from repro.bundle.verify_files import VerifyAnswer


def planned() -> repro.Planned:
    found = repro.plan("quickstart", ["processes=1,2"], seeds=2)
    assert_type(found, repro.Planned)
    assert_type(found.seconds, float | None)
    for frame in (found.cells, found.trials, found.skipped):
        assert_type(frame, DataFrame)
    return found


def ran(event: list[Mapping[str, Any]]) -> repro.Run:
    assert_type(repro.gate({"suite": "x"}, only=["engine=ddp"]), DataFrame)
    return repro.run(Path("suite.yaml"), seeds=2, master_seed=1, out="runs/x", mlflow=False, on_event=event.append)


def opened(run: repro.Run) -> repro.Run:
    for frame in (run.trials, run.evaluations, run.steps, run.pairs, run.cells, run.comparisons, run.warnings,
                  run.tables["phases"], run.describe("trials")):
        assert_type(frame, DataFrame)
    assert_type(run.environment, Mapping[str, Any])
    assert_type(run.name, str)
    assert_type(run.path, Path)
    assert_type(run.state, str)
    assert_type(run.unverified, bool)
    assert_type(run.report("html", out="here"), list[str])
    assert_type(run.bundle(), Path)
    assert_type(run.verify().answer, VerifyAnswer)
    return repro.open(["a.zip", Path("b")], unverified=True)


def compared(run: repro.Run) -> repro.Comparison:
    found = run.compare({"engine": "ddp"}, "deepspeed", metric="tta_wall", margin=0.05)
    for text in (found.candidate, found.baseline, found.metric, found.unit, found.verdict, found.because,
                 found.differs):
        assert_type(text, str)
    for figure in (found.ratio, found.level, found.speedup, found.p):
        assert_type(figure, float | None)
    assert_type(found.interval, tuple[float, float] | None)
    assert_type(found.n, int)
    assert_type(found.exploratory, bool)
    assert_type(found.cautions, tuple[str, ...])
    assert_type(found.pairs, DataFrame)
    assert_type(found.nodes, DataFrame)
    assert_type(found.figures, dict[str, Any])
    assert_type(found.plot(), Axes)
    return found


def version() -> str:
    try:
        return repro.__version__
    except repro.ReproError as error:
        return str(error)
