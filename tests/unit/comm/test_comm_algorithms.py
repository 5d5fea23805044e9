"""Every algorithm on links in memory that are as strict as gloo's: nothing moves before both sides are there."""

from __future__ import annotations

import re
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402 - after the skip
from hypothesis import strategies as st  # noqa: E402

from repro.comm.algorithm import OPERATIONS, Algorithm, Operation  # noqa: E402
from repro.comm.algorithms.doubling import Butterfly, HalvingDoubling  # noqa: E402
from repro.comm.algorithms.ring import Hierarchical, Ring  # noqa: E402
from repro.comm.algorithms.tree import Multicolor, ParameterServer, ReductionTree  # noqa: E402
from repro.comm.runtime.program import REDUCTIONS, compile_program, execute, execute_rounds, own_rounds  # noqa: E402
from repro.comm.schedule import cut  # noqa: E402
from repro.papers.jizhi.hybrid import Hybrid, interpolate  # noqa: E402
from tests.commands import ROOT  # noqa: E402
from tests.memory_wire import MemoryNet, MemoryWire  # noqa: E402
from tests.plans import setting  # noqa: E402

TINY = 0.05
"""KiB of a chunk: small buffers then have many."""
ALGORITHMS: tuple[Algorithm, ...] = (
    Ring(), Ring(chunk_kib=TINY), ReductionTree(), ReductionTree(arity=3, chunk_kib=TINY),
    ReductionTree(arity=1, chunk_kib=TINY), ReductionTree(shape="binomial", chunk_kib=None), Butterfly(),
    HalvingDoubling(), ParameterServer(), ParameterServer(shards=3), Multicolor(colors=2, arity=4, chunk_kib=TINY),
    Multicolor(colors=2, arity=2), Multicolor(), Hierarchical(), Hierarchical(group=3), Hierarchical(group=1),
    Hierarchical(group=4, form="torus"), Hierarchical(group=3, form="torus"), Hybrid(),
)
WORLDS = range(1, 10)
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64")
BITS = {"float32": 23, "bfloat16": 7, "float16": 10, "float64": 52, "int64": 63}


def name(algorithm: Algorithm) -> str:
    options = ",".join(f"{key}={value}" for key, value in algorithm.model_dump(exclude_defaults=True).items())
    return f"{type(algorithm).__name__}({options})"


def marks(algorithm: Algorithm, world: int) -> tuple[pytest.MarkDecorator, ...]:
    """By default: even and odd worlds, powers of two and others; many chunks among fewer ranks."""
    few = str(TINY) in name(algorithm)
    return () if world in (1, 2, 3, 4) or (world == 6 and not few) else (pytest.mark.slow,)


PAIRS = [pytest.param(algorithm, world, id=f"{name(algorithm)}-{world}", marks=marks(algorithm, world))
         for algorithm in ALGORITHMS for world in WORLDS if algorithm.runs("all_reduce", world)]


def run(algorithm: Algorithm, operation: Operation, buffers: list[torch.Tensor], reduction: str = "sum",
        root: int = 0) -> tuple[list[int], list[int]]:
    """One collective over `buffers`, one a rank, in place; what every rank sent and received."""
    world = len(buffers)
    net = MemoryNet(world)
    wires = [MemoryWire(rank, net) for rank in range(world)]
    problems: list[str] = []

    def take_part(rank: int) -> None:
        arguments = (root,) if operation == "broadcast" else ()
        count, size = buffers[rank].numel(), buffers[rank].element_size()
        try:
            transfers = getattr(algorithm, operation)(world, count, size, *arguments)
            execute(compile_program(transfers, rank, size), buffers[rank], wires[rank], REDUCTIONS[reduction])
        except Exception as error:  # shown by the assertion below, whichever thread it was
            problems.append(f"rank {rank}: {error!r}")

    threads = [Thread(target=take_part, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert net.idle(), "a message without a receiver"
    return [wire.sent for wire in wires], [wire.received for wire in wires]


def draw(count: int, world: int, dtype: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "int64":
        return [torch.randint(-1000, 1000, (count,), generator=generator) for _ in range(world)]
    return [torch.randn(count, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
            for _ in range(world)]


def reference(buffers: list[torch.Tensor], reduction: str) -> torch.Tensor:
    exact = torch.stack([buffer if buffer.dtype == torch.int64 else buffer.double() for buffer in buffers])
    return {"sum": exact.sum(0), "max": exact.amax(0), "min": exact.amin(0)}[reduction]


def agree(found: torch.Tensor, wanted: torch.Tensor, world: int) -> None:
    """Equal for integers; within a rounding a rank of sums of order sqrt(p) otherwise."""
    if found.dtype == torch.int64:
        assert torch.equal(found, wanted)
    else:
        step = 2.0 ** -BITS[str(found.dtype).removeprefix("torch.")]
        torch.testing.assert_close(found.double(), wanted, rtol=world * step, atol=4 * world * step)


@pytest.mark.parametrize(("algorithm", "world"), PAIRS)
def test_every_rank_ends_with_the_same_bits_of_the_reduction(algorithm: Algorithm, world: int) -> None:
    cases = [(count, dtype, "sum") for count in (0, 1, 37, 500) for dtype in ("float32", "int64")]
    cases += [(61, dtype, "sum") for dtype in DTYPES] + [(61, "bfloat16", "max")]  # more are drawn at random below
    for count, dtype, reduction in cases:
        buffers = draw(count, world, dtype, seed=count)
        wanted = reference(buffers, reduction)
        moved = run(algorithm, "all_reduce", buffers, reduction)
        agree(buffers[0], wanted, world)
        assert all(torch.equal(buffer, buffers[0]) for buffer in buffers)
        assert moved == algorithm.load("all_reduce", world, count, buffers[0].element_size())[:2]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_large_buffers_and_the_same_bits_again(algorithm: Algorithm) -> None:
    world = 6
    if not algorithm.runs("all_reduce", world):
        world = 8
    count = 2_003 if str(TINY) in name(algorithm) else 300_001
    once, again = draw(count, world, "float32", 5), draw(count, world, "float32", 5)
    wanted = reference(once, "sum")
    moved = run(algorithm, "all_reduce", once)
    run(algorithm, "all_reduce", again)
    agree(once[0], wanted, world)
    assert all(torch.equal(buffer, once[0]) for buffer in [*once, *again])
    assert moved == algorithm.load("all_reduce", world, count, 4)[:2]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(ALGORITHMS), st.integers(1, 9), st.sampled_from(DTYPES), st.sampled_from(["sum", "max", "min"]),
       st.integers(0, 300), st.integers(0, 1000))
def test_any_size_type_and_reduction(
    algorithm: Algorithm, world: int, dtype: str, reduction: str, count: int, seed: int
) -> None:
    if not algorithm.runs("all_reduce", world):
        return
    buffers = draw(count, world, dtype, seed)
    wanted = reference(buffers, reduction)
    run(algorithm, "all_reduce", buffers, reduction)
    agree(buffers[0], wanted, world)
    assert all(torch.equal(buffer, buffers[0]) for buffer in buffers)


@pytest.mark.parametrize(("algorithm", "world"), [pair for pair in PAIRS if pair.values[1] in (2, 3, 6, 8)])
def test_rounds_by_themselves_give_the_same_bits_as_the_overlapped_program(algorithm: Algorithm, world: int) -> None:
    # How schedules run over NCCL: a round's messages at once, then its sums.
    once, again = draw(1000, world, "float32", 7), draw(1000, world, "float32", 7)
    run(algorithm, "all_reduce", once)
    net = MemoryNet(world)

    def take_part(rank: int) -> None:
        rounds = own_rounds(algorithm.all_reduce(world, 1000, 4), rank)
        execute_rounds(rounds, again[rank], MemoryWire(rank, net), REDUCTIONS["sum"])

    threads = [Thread(target=take_part, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(buffer, once[0]) for buffer in again)


OWN = [pytest.param(algorithm, operation, world, id=f"{name(algorithm)}-{operation}-{world}",
                    marks=marks(algorithm, world))
       for algorithm in ALGORITHMS for operation in OPERATIONS[1:] for world in WORLDS
       if algorithm.runs(operation, world)]


@pytest.mark.parametrize(("algorithm", "operation", "world"), OWN)
def test_other_collectives_of_their_own(algorithm: Algorithm, operation: Operation, world: int) -> None:
    for count in (0, 1, 13):
        buffers = draw(count * world, world, "int64", seed=3)
        parts, before = cut(count * world, world), [buffer.clone() for buffer in buffers]
        root = world // 2
        run(algorithm, operation, buffers, root=root)
        for rank, buffer in enumerate(buffers):
            start, stop = parts[rank]
            if operation == "broadcast":
                assert torch.equal(buffer, before[root])
            elif operation == "all_gather":
                assert torch.equal(buffer, torch.cat([before[at][slice(*parts[at])] for at in range(world)]))
            else:
                assert torch.equal(buffer[start:stop], reference(before, "sum")[start:stop])


@pytest.mark.parametrize("world", [1, 2, 5])
def test_the_algorithm_of_the_docs_is_an_all_reduce(world: int) -> None:
    shown = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE | re.DOTALL)
    (text,) = (block for block in shown if "class Star(Algorithm)" in block)
    found: dict[str, Any] = {"__name__": "star"}
    exec(text, found)
    buffers = draw(37, world, "float32", 0)
    wanted = reference([buffer.clone() for buffer in buffers], "sum")
    run(found["Star"](), "all_reduce", buffers)
    for buffer in buffers:
        agree(buffer, wanted, world)


def test_rounds_of_groups_are_those_of_the_paper() -> None:
    # section 12: 4(k-1) + 2(p/k-1) rounds
    assert Hierarchical(group=2).cost(8, 100, 4).rounds == 4 + 6
    assert Hierarchical(group=4).cost(16, 100, 4).rounds == 12 + 6
    assert Ring().cost(4, 400, 4).seconds(alpha=1.0, beta=0.5, gamma=0.25) == 6 + 0.5 * 2400 + 0.25 * 1200


@pytest.mark.parametrize("world", range(2, 65))
def test_inner_ranks_of_colours_are_disjoint(world: int) -> None:
    for arity in (1, 2, 3, 4, 8):
        trees = Multicolor(colors=64, arity=arity).trees(world)
        inner = [{parent for parent in tree.parents if parent is not None} for tree in trees]
        assert len(set().union(*inner)) == sum(map(len, inner))


def test_more_bytes_in_rounds_than_any_rank_sends_are_a_contradiction() -> None:
    for algorithm in ALGORITHMS:
        sent, received, cost = algorithm.load("all_reduce", 12, 1000, 4)
        assert cost == algorithm.cost(12, 1000, 4) and cost.path_bytes >= max(*sent, *received)


@pytest.mark.parametrize(("algorithm", "processes", "reason"), [
    (Hierarchical(group=3), 8, "groups of 3 do not divide 8 ranks"),
    (Multicolor(), 6, "4 colours of arity 4 on 6 ranks"), (Multicolor(), 8, None), (Hierarchical(group=4), 8, None),
    (Multicolor(colors=3, arity=2), 8, "the construction allows 2"),
    (ParameterServer(shards=5), 4, "5 shards need as many ranks"), (Ring(), 1, None), (Multicolor(), 1, None),
])
def test_options_that_do_not_fit_are_refused_with_the_reason(
    algorithm: Algorithm, processes: int, reason: str | None
) -> None:
    found = algorithm.unsupported(setting(processes=processes))
    assert found is None if reason is None else reason in str(found)


def test_collectives_that_pass_through_are_reported() -> None:
    assert "all_gather, reduce_scatter, broadcast" in str(Hierarchical().note(setting(processes=3)))
    assert Butterfly().passes_through(4) == ["reduce_scatter"]
    assert Butterfly().passes_through(3) == ["all_gather", "reduce_scatter"]


def test_hybrid_follows_its_model_or_its_measurements() -> None:
    # Latency decides for small messages, bytes for large ones; the direct exchange has the least of both.
    slow = Hybrid(among=("butterfly", "ring"), alpha_seconds=1e-3, beta_seconds=4e-8)
    assert [slow.pick(8, size) for size in (1 << 10, 1 << 24)] == ["butterfly", "ring"]
    assert Hybrid(alpha_seconds=1e-3, beta_seconds=4e-8).pick(8, 1 << 20) == "direct"
    tried = Hybrid(among=("direct", "ring", "backend"))
    tried._curves = {"direct": [(1 << 12, 1.0), (1 << 18, 9.0)],
                     "ring": [(1 << 12, 2.0), (1 << 18, 5.0), (1 << 20, 20.0)],
                     "backend": [(1 << 12, 3.0), (1 << 18, 5.2), (1 << 20, 23.0)]}
    assert [tried.pick(8, size) for size in (1 << 12, 1 << 18, 1 << 20)] == ["direct", "backend", "ring"]
    assert tried.pick(8, 1 << 24) == "ring", "what fell behind and was not tried any further is not chosen"
    assert tried.delegates(8, 1 << 18, 4) and not tried.delegates(8, 1 << 20, 4)
    curve = [(10, 1.0), (20, 2.0), (40, 6.0)]
    assert [interpolate(curve, size) for size in (1, 10, 15, 30, 80)] == [1.0, 1.0, 1.5, 4.0, 14.0]
    with pytest.raises(ValueError, match="must be given together"):
        Hybrid(alpha_seconds=1.0)
