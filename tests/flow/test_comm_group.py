"""The process group of an algorithm with real processes and gloo links: order, background work, a rank that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from repro.comm.algorithms.doubling import Butterfly, HalvingDoubling
from repro.comm.algorithms.ring import Hierarchical, Ring
from repro.comm.algorithms.tree import Multicolor, ParameterServer, ReductionTree
from repro.papers.jizhi.hybrid import Hybrid
from repro.seams.training import Comm
from tests.commands import free_port
from tests.engine_ranks import PRELOAD
from tests.waiting import LONG_SECONDS, until

pytest.importorskip("torch")

ALGORITHMS: tuple[Comm, ...] = (Ring(), ReductionTree(), Butterfly(), HalvingDoubling(), ParameterServer(shards=2),
                                Multicolor(colors=2), Hierarchical(),
                                # Without the backend's own, whose bytes are not counted.
                                Hybrid(among=("direct", "butterfly", "halving-doubling", "ring"),
                                       tuning_seconds=0.2))
TIMEOUT_SECONDS = 5.0


def start(
    pipe: Connection, job: Callable[..., Any], comm: Comm, rank: int, world: int, port: int, timeout: float
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        comm.start(rank, world, "cpu", timeout)
        pipe.send(job(comm, rank, world))
        dist.destroy_process_group()
    except BaseException:  # of a child: any error goes to the waiting test
        pipe.send(traceback.format_exc())


def together(
    job: Callable[..., Any], comm: Comm, world: int, timeout: float = TIMEOUT_SECONDS, limit: float = LONG_SECONDS
) -> list[Any]:
    """Return the values of `job(comm, rank, world)` by rank, or its traceback; None for a rank that died."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "tests.flow.test_comm_group"])
    port = free_port()
    pipes, processes = [], []
    for rank in range(world):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=start, args=(theirs, job, comm, rank, world, port, timeout),
                                         daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    deadline = time.monotonic() + limit
    answers: list[Any] = []
    for pipe in pipes:
        try:
            answers.append(pipe.recv() if pipe.poll(max(0.0, deadline - time.monotonic())) else "hung")
        except EOFError:
            answers.append(None)
    for process in processes:
        process.join(5)
        process.kill()
        process.join()
    return answers


# ---- what the ranks do


def collectives(comm: Comm, rank: int, world: int) -> dict[str, Any]:
    """Every collective an engine uses, many all-reduces in flight, and what was counted."""
    import torch
    import torch.distributed as dist

    comm.traffic()
    flying = [torch.full((size,), float(rank + size)) for size in (1, 70_000, 3, 0, 5_000)] * 4
    flying = [tensor.clone() for tensor in flying]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in flying]
    for work in reversed(works):
        work.wait()
    expected = [world * (world - 1) / 2 + world * len(tensor) for tensor in flying]
    found: dict[str, Any] = {"in_order": all(bool((tensor == value).all())
                                             for tensor, value in zip(flying, expected, strict=True))}
    counted = comm.traffic()
    found["moved"] = [(line["sent_bytes"], line["received_bytes"], line["collectives"]) for line in counted["lines"]]
    found["seconds"] = [counted[f"{part}_seconds"] for part in ("busy", "exposed", "overlapped")]
    strided = torch.arange(12.0).view(3, 4).t() * (rank + 1)
    dist.all_reduce(strided, op=dist.ReduceOp.AVG)
    found["strided"] = strided.flatten().tolist()
    whole = torch.full((3,), 2 * rank + 1)
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    found["integers"] = whole.tolist()
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    found["passed"] = int(bits)
    gathered, piece = torch.empty(2 * world), torch.empty(2)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank), -1.0]))
    source = torch.arange(2.0 * world)
    dist.reduce_scatter_tensor(piece, source)
    found["gathered"], found["piece"], found["kept"] = gathered.tolist(), piece.tolist(), source[-1].item()
    shared = torch.full((5,), float(rank))
    dist.broadcast(shared, src=world - 1)
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    half = dist.new_group([0, 1])
    if rank < 2:
        pair = torch.ones(3)
        dist.all_reduce(pair, group=half)
        found["pair"] = pair.tolist()
    found["shared"], found["objects"], found["effective"] = shared.tolist(), objects, comm.effective()
    return found


def background(comm: Comm, rank: int, world: int) -> dict[str, Any]:
    """Show that an all-reduce continues while its caller is busy elsewhere."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    tensor = torch.ones(1 << 20)
    work = dist.all_reduce(tensor, async_op=True)
    until(work.is_completed)
    done, values = work.is_completed(), tensor[:2].tolist()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return {"done": done, "values": values, "later": future.wait()[0][0].item()}


def killed(comm: Comm, rank: int, world: int) -> dict[str, Any]:
    """Rank 2 dies between two steps; the others' next collectives say so."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}


def killed_in_the_inner_groups_own(comm: Comm, rank: int, world: int) -> dict[str, Any]:
    """The last rank dies; the others are in a collective that passes through, far from each other in gloo's ring."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000))
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    gathered = torch.empty(world << 16)
    try:
        for _ in range(3):
            dist.all_gather_into_tensor(gathered, torch.ones(1 << 16))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}


def stuck(comm: Comm, rank: int, world: int) -> dict[str, Any]:
    """Rank 1 is alive but does not come."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000))
    if rank == 1:
        time.sleep(TIMEOUT_SECONDS + 1.5)
        return {"error": "asleep"}
    try:
        dist.all_reduce(torch.ones(1000))
    except Exception as error:
        return {"error": str(error)}
    return {"error": ""}


# ---- tests


@pytest.mark.parametrize(("comm", "world"), [*((comm, 4) for comm in ALGORITHMS), (Ring(), 3), (HalvingDoubling(), 3)],
                         ids=lambda value: str(value) if isinstance(value, int) else type(value).__name__)
def test_collectives_of_a_group(comm: Comm, world: int) -> None:
    found = together(collectives, comm, world)
    for rank, said in enumerate(found):
        assert isinstance(said, dict), said
        mean = (world + 1) / 2
        assert said["in_order"]
        assert said["strided"] == [pytest.approx(float(4 * row + column) * mean) for column in range(4)
                                   for row in range(3)]
        assert said["integers"] == [world] * 3
        assert said["passed"] == (1 << world) - 1
        assert said["gathered"] == [part for peer in range(world) for part in (float(peer), -1.0)]
        assert said["piece"] == [2.0 * rank * world, (2.0 * rank + 1) * world] and said["kept"] == 2 * world - 1
        assert said["shared"] == [world - 1.0] * 5 and said["objects"] == [{"rank": peer} for peer in range(world)]
        assert said.get("pair", [2.0] * 3) == [2.0] * 3
        busy, exposed, overlapped = said["seconds"]
        assert busy > 0 and exposed > 0 and overlapped >= 0
        assert said["moved"][0][2] == 20 and len(said["moved"]) == 1
        assert "all_reduce" in said["effective"].partition(";")[0]
    sizes = (1, 70_000, 3, 0, 5_000)
    if isinstance(comm, ParameterServer):
        # The same rank is the busiest at every size, so its sum is the sum of the formula.
        busiest = sum(max(comm.load("all_reduce", world, size, 4)[0]) for size in sizes) * 4
        assert max(said["moved"][0][0] for said in found) == busiest


@pytest.mark.parametrize("comm", [Ring(), ReductionTree()], ids=lambda comm: type(comm).__name__)
def test_an_all_reduce_continues_while_the_caller_is_busy(comm: Comm) -> None:
    for said in together(background, comm, 3):
        assert said == {"done": True, "values": [3.0, 3.0], "later": 9.0}


@pytest.mark.parametrize(("comm", "job", "world", "victim"), [
    (Ring(), killed, 4, 2), (ReductionTree(), killed, 4, 2), (ParameterServer(), killed, 4, 2),
    # The inner group does not say whose link broke.
    (ReductionTree(), killed_in_the_inner_groups_own, 4, 3), (ReductionTree(), killed_in_the_inner_groups_own, 6, 5),
], ids=["ring", "tree", "parameter-server", "inner-4", "inner-6"])
def test_a_rank_that_dies_is_named_by_the_others(
    comm: Comm, job: Callable[..., Any], world: int, victim: int
) -> None:
    found = together(job, comm, world)
    assert found.pop(victim) is None
    for said in found:
        assert isinstance(said, dict), said
        assert f"rank {victim} is gone" in said["error"]


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    found = together(stuck, Ring(), 3)
    assert "rank 1 is gone" in found[0]["error"] and "rank 1 is gone" in found[2]["error"]
