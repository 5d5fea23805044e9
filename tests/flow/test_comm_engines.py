"""Every engine trains alike under every algorithm: real processes, gloo links on loopback.

Tolerance: algorithms differ in the order of float32 sums only; seen up to 6e-8 in the weights after 10 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.doubling import Butterfly, HalvingDoubling
from repro.comm.algorithms.ring import Hierarchical, Ring
from repro.comm.algorithms.tree import Multicolor, ParameterServer, ReductionTree
from repro.engines.torch_engines import Ddp, Single
from repro.papers.jizhi.hybrid import Hybrid
from repro.seams.training import Comm
from tests.engine_ranks import SCATTERED, ZERO, Case, furthest, ranks, same_bytes

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

__all__ = ["ranks"]
Run = Callable[[Case], list[dict[str, Any]]]
TOLERANCE = 5e-7
ALGORITHMS: tuple[Comm, ...] = (
    Ring(), ReductionTree(), ReductionTree(shape="binomial", chunk_kib=None), Butterfly(), HalvingDoubling(),
    ParameterServer(), ParameterServer(shards=2), Multicolor(colors=2, arity=2, chunk_kib=1.0), Hierarchical(),
    Hierarchical(form="torus"),
    # Without the backend's own, to which it may leave everything.
    Hybrid(among=("direct", "butterfly", "halving-doubling", "ring"), tuning_seconds=0.2),
)
ENGINES = (Ddp(), *ZERO[:3], SCATTERED)
FOUR = [Case(engine, 4, 1, steps=10, comm=comm) for engine in ENGINES for comm in ALGORITHMS]
TWO = [Case(engine, 2, 1, steps=10, comm=comm) for engine in ENGINES for comm in ALGORITHMS
       if not isinstance(comm, Multicolor)]
PLAIN = [case for case in FOUR if isinstance(case.comm, Multicolor) or not case.comm.model_dump(exclude_defaults=True)]
# By default: every algorithm under the engine that only all-reduces, every engine under one algorithm, and the engine
# that does everything else under the algorithms that differ most.
FAST = [case for case in PLAIN if case.engine == Ddp() or case.comm == Ring()
        or (case.engine == SCATTERED and isinstance(case.comm, Hierarchical))]
FAST += [case for case in FOUR if case.engine == Ddp() and isinstance(case.comm, Hybrid)]
FAST += [case for case in TWO if case.comm == Ring() and case.engine == SCATTERED]
SLOW = [case for case in (*FOUR, *TWO) if case not in FAST]
PARITY = [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize("case", PARITY, ids=str)
def test_engines_train_alike_under_every_algorithm(ranks: Run, case: Case) -> None:
    reference = ranks(Case(Single(), 1, 4, steps=10))[0]
    found = ranks(case)
    assert all(same_bytes(rank["weights"], found[0]["weights"]) for rank in found)
    np.testing.assert_allclose(found[0]["losses"], reference["losses"], rtol=1e-5)
    assert furthest(found[0]["weights"], reference["weights"]) < TOLERANCE
    assert "all_reduce" in found[0]["effective"]["comm"].partition(";")[0]
    assert sum(line["sent_bytes"] or 0 for line in found[0]["traffic"]["lines"]) > 0
