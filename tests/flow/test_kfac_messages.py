"""The collectives and bytes of K-FAC in every step, by the meter of the communication algorithm and by formula.

With opt only factor steps and eigen steps send more than the gradients; with lw every step does; with a fraction every
step too, in smaller groups.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp
from repro.papers.kfac.kfac import Kfac
from repro.papers.kfac.options import Grid, assign
from repro.seams.training import Engine
from tests.engine_ranks import Case, Run, ranks

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

__all__ = ["ranks"]

FLOAT = 4
SUM, COPY = ("all_reduce", "float32"), ("broadcast", "float32")
PERIODS = {"factor_every": 2, "eigen_every": 4}
OPT, LW = Kfac(**PERIODS), Kfac(placement="lw", **PERIODS)
HALF = Kfac(placement="fraction", fraction=0.5, **PERIODS)


def layers(shapes: dict[str, tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (rows of A, rows of G) of the net in `tests.engine_ranks`, whose norm has no matrix; all have biases."""
    return [(math.prod(shape[1:]) + 1, shape[0]) for shape in shapes.values() if len(shape) > 1]


def of_step(case: Case, shapes: dict[str, tuple[int, ...]], step: int) -> tuple[tuple[int, int], list[dict[str, int]]]:
    """Return (collectives, bytes) of the sums, and for each rank those of the copies that it takes part in."""
    kfac, sizes = case.preconditioner, layers(shapes)
    grid = kfac.grid(case.world)
    dealt = assign(sizes, grid)
    gradients = FLOAT * sum(math.prod(shape) for shape in shapes.values())
    factors = FLOAT * sum(a**2 + g**2 for a, g in sizes)
    sums = (2, gradients + factors) if step % 2 == 0 else (1, gradients)
    copies = []
    for rank in range(case.world):
        found = {"collectives": 0, "payload_bytes": 0}
        if step % 4 == 0 and grid.workers > 1:
            mine = [layer for layer, column in enumerate(dealt.columns) if column == grid.column_of(rank)]
            owners = {owner for layer in mine for owner in dealt.owners[layer]}
            rows = [size for layer in mine for size in sizes[layer]]
            kept = [size**2 + (size if kfac.inverse == "eigen" else 0) for size in rows]
            found = {"collectives": len(owners), "payload_bytes": FLOAT * sum(kept)}
        if grid.columns > 1:
            found["collectives"] += len(set(dealt.columns))
            found["payload_bytes"] += FLOAT * sum(a * g for a, g in sizes)
        copies.append(found)
    return sums, copies


@pytest.mark.parametrize("engine", [Ddp(), DeepSpeedZero(stage=0)], ids=["ddp", "zero0"])
@pytest.mark.parametrize(("kfac", "world"), [
    (OPT, 2), (LW, 2), (OPT, 4), (LW, 4), (HALF, 4), (Kfac(inverse="direct", **PERIODS), 2),
], ids=["opt-2", "lw-2", "opt-4", "lw-4", "half-4", "direct-2"])
def test_every_step_sends_what_the_formula_says(ranks: Run, engine: Engine, kfac: Kfac, world: int) -> None:
    case = Case(engine, world, comm=Ring(), preconditioner=kfac, steps=6, body="messages")
    found = ranks(case)
    plain = ranks(replace(case, preconditioner=Case(engine).preconditioner))[0]["messages"]
    extra = plain[1].get(SUM, {}).get("collectives", 0) - 1  # DeepSpeed has no other float32 sums
    assert extra == 0
    for step in range(case.steps):
        sums, copies = of_step(case, found[0]["shapes"], step)
        for rank, wanted in zip(found, copies, strict=True):
            line = rank["messages"][step]
            assert (line[SUM]["collectives"], line[SUM]["payload_bytes"]) == sums, step
            assert counted(line.get(COPY)) == wanted, step
            assert line.keys() - {COPY} == plain[step].keys(), "no other collective than without K-FAC"
        # On a ring a sum of n bytes puts 2 (p - 1) n on the links, a copy (p - 1) n.
        on_links = sum(rank["messages"][step][SUM]["sent_bytes"] for rank in found)
        assert on_links == pytest.approx(2 * (world - 1) * sums[1], abs=8 * world)
        if kfac is not HALF:
            sent = sum(rank["messages"][step].get(COPY, {"sent_bytes": 0})["sent_bytes"] for rank in found)
            assert sent == (world - 1) * copies[0]["payload_bytes"]


def counted(line: dict[str, Any] | None) -> dict[str, int]:
    return {key: line[key] if line else 0 for key in ("collectives", "payload_bytes")}


def test_on_other_steps_opt_sends_no_more_than_plain_training_and_lw_does(ranks: Run) -> None:
    case = Case(Ddp(), 2, comm=Ring(), preconditioner=OPT, steps=6, body="messages")
    opt, lw = (ranks(replace(case, preconditioner=kfac))[0]["messages"] for kfac in (OPT, LW))
    plain = ranks(replace(case, preconditioner=Case(Ddp()).preconditioner))[0]["messages"]
    assert [step for step in range(6) if opt[step] == plain[step]] == [1, 3, 5]
    assert all(COPY in lw[step] for step in range(6)) and not any(COPY in plain[step] for step in range(6))


def test_the_grid_of_ranks() -> None:
    grid = Grid(8, 4)
    assert [grid.column_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (grid.column(1), grid.row_of(6), grid.columns) == ([4, 5, 6, 7], [2, 6], 2)


def test_factors_are_dealt_by_their_cost() -> None:
    dealt = assign([(10, 2), (9, 2), (3, 3)], Grid(2, 2))
    assert dealt.columns == (0, 0, 0)
    assert dealt.owners == ((0, 1), (1, 1), (1, 1))
    assert assign([(10, 2), (9, 2), (3, 3)], Grid(2, 1)).owners == ((0, 0), (1, 1), (1, 1))
