"""Process group for torch.distributed that runs an algorithm's schedules over an inner group's links.

Other collectives pass to the inner group, in the order of submission: to gloo for tensors of the host (objects that
ranks gather, bare barriers), to NCCL for those of a GPU.
"""

# mypy: disable-error-code="override"
# torch declares several signatures of a collective; only the one with options is called on a group.

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store

from repro.comm.runtime.lane import AlgorithmWork, Lane
from repro.comm.runtime.meter import Meter, OnCpu, OnGpu
from repro.comm.runtime.program import (
    DTYPES,
    REDUCTIONS,
    Program,
    Rounds,
    compile_program,
    execute,
    execute_rounds,
    own_rounds,
)
from repro.comm.runtime.wire import MissingRankFinder, NcclWire, Wire
from repro.comm.schedule import Collectives, Operation
from repro.core import devices
from repro.core.errors import TrialError

Tensors = list[torch.Tensor]

BACKEND = "repro"
NAMES = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "avg", dist.ReduceOp.PRODUCT: "product",
         dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}
DELEGATED_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32)
"""Types that every inner group can reduce."""
_current: list[tuple[Collectives, Meter, str]] = []
"""Algorithm, meter and device of new groups: the default group and the subgroups that engines create."""


def start_group(
    algorithm: Collectives, rank: int, world: int, device: str, timeout_seconds: float
) -> AlgorithmGroup:
    """Create the default process group of this rank."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise TrialError(f"{name} is not set: the launcher must give every rank the address of rank 0")
    devices.use(device)
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _make, devices=[devices.CPU, devices.GPU])
    _current[:] = [(algorithm, Meter(), device)]
    dist.init_process_group(BACKEND, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_seconds))
    group = dist.distributed_c10d._get_default_group()
    assert isinstance(group, AlgorithmGroup)
    return group


def _make(store: Store, rank: int, world: int, timeout: timedelta) -> AlgorithmGroup:
    algorithm, meter, device = _current[0]
    return make_group(algorithm, meter, store, rank, world, timeout, device)


def make_group(
    algorithm: Collectives, meter: Meter, store: Store, rank: int, world: int, timeout: timedelta, device: str = "cpu"
) -> AlgorithmGroup:
    """Create a group that is not registered with `torch.distributed`; its ranks meet through `store`."""
    inner = PrefixStore("inner", store)
    gloo = dist.ProcessGroupGloo(inner, rank, world, timeout)
    wire = (_connect_nccl(gloo, store, rank, world, timeout, torch.device(device)) if devices.on_gpu(device)
            else Wire(gloo, rank, world))
    return AlgorithmGroup(algorithm, wire, meter, store, timeout.total_seconds())


def _connect_nccl(
    gloo: Any, store: Store, rank: int, world: int, timeout: timedelta, device: torch.device
) -> Wire:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    apart = PrefixStore("nccl", store)
    # Only dist.ProcessGroup can put several messages into one NCCL call.
    inner = dist.ProcessGroup(apart, rank, world)
    kinds = dist.ProcessGroup.BackendType
    inner._set_default_backend(kinds.NCCL)
    inner._register_backend(torch.device(devices.GPU), kinds.NCCL,
                            dist.ProcessGroupNCCL(apart, rank, world, options))
    inner._register_backend(torch.device(devices.CPU), kinds.GLOO, gloo)
    return NcclWire(inner, rank, world, device)


class AlgorithmGroup(ProcessGroup):
    """Process group that runs the algorithm's collectives as schedules and passes the others to the inner group.

    torch calls the methods by these names, from Python and C++.
    """

    def __init__(
        self, algorithm: Collectives, wire: Wire, meter: Meter, store: Store, timeout_seconds: float
    ) -> None:
        rank, world = wire.rank, wire.world
        super().__init__(rank, world)  # type: ignore[call-arg]  # torch does not declare the constructor of subclasses
        self.inner, self.wire, self.meter, self.place, self.world = wire.inner, wire, meter, rank, world
        self.finder = MissingRankFinder(store, wire, timeout_seconds)
        clock = OnGpu(wire.device) if isinstance(wire, NcclWire) else OnCpu()
        self.lane = Lane(meter, f"comm of {world} ranks", clock)
        self.algorithm = algorithm
        self.by_rounds = isinstance(wire, NcclWire)
        self.kind = devices.GPU if self.by_rounds else devices.CPU
        """Of the tensors that the schedules send."""
        self.inner_name = "nccl" if self.by_rounds else "gloo"
        self.passed: set[tuple[str, str]] = set()
        """(inner backend, operation)."""
        self.ran: set[str] = set()
        self._name = ""
        self._program = lru_cache(maxsize=256)(self._compile)

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._name = name

    @property
    def group_name(self) -> str:
        """The name by which a device mesh (FSDP) finds this group; torch itself keeps it only with a backend of C++."""
        return self._name

    def getRank(self) -> int:  # noqa: N802 - torch's name
        return self.place

    def getSize(self) -> int:  # noqa: N802 - torch's name
        return self.world

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return BACKEND

    def describe(self) -> str:
        """Describe which collectives the algorithm ran, and which the inner group."""
        own = f"{self.algorithm.title}: {'+'.join(sorted(self.ran)) or 'nothing yet'}"
        if not self.passed:
            return f"{own}; over {self.inner_name}"
        names = sorted({inner for inner, _ in self.passed}, reverse=True)
        through = (f"{name}: {'+'.join(sorted(done for inner, done in self.passed if inner == name))}"
                   for name in names)
        return "; ".join((own, *through))

    def reset(self) -> None:
        """Drop compiled schedules and counts: the collectives so far were not part of the trial."""
        self._program.cache_clear()
        self.meter.take()
        self.ran.clear()
        self.passed.clear()

    # ---- what torch calls

    def allreduce(self, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        reduction = _reduction(opts)
        if reduction is None or not self._takes("all_reduce", *tensors):
            return self.pass_through("all_reduce", "allreduce", tensors, [tensors], opts)
        return self._queue(lambda item: self._all_reduce(item, reduction), tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        if not self._takes("broadcast", *tensors):
            return self.pass_through("broadcast", "broadcast", tensors, [tensors], opts)
        root = int(opts.rootRank)
        return self._queue(lambda item: self._broadcast(item, root), tensors, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> AlgorithmWork:
        if not self._takes("all_gather", output, tensor) or not output.is_contiguous():
            return self.pass_through("all_gather", "_allgather_base", [output], [output, tensor], opts)
        return self._queue(lambda item: self._all_gather(item, tensor), [output], opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> AlgorithmWork:
        reduction = _reduction(opts)
        if reduction is None or not self._takes("reduce_scatter", output, tensor):
            return self.pass_through("reduce_scatter", "_reduce_scatter_base", [output], [output, tensor], opts)
        return self._queue(lambda item: self._reduce_scatter(item, tensor, reduction), [output], opts)

    def pass_through(
        self, operation: str, method: str, results: Tensors, arguments: list[Any], opts: Any
    ) -> AlgorithmWork:
        """Queue the inner group's `method`, which writes the tensors `results`."""
        def job() -> None:
            with self.finder.naming_missing_rank():
                call: Callable[..., Any] = getattr(self.inner, method)
                work = call(*arguments, *(() if opts is None else (opts,)))
                if work is not None:  # NCCL gives none for a synchronous call, which is in this stream
                    work.wait()
            device = results[0].device if results else getattr(opts, "device", None)  # None: the caller states none
            inner = self.inner_name if device is None or devices.on_gpu(device) else "gloo"
            self.passed.add((inner, operation))
            name = str(results[0].dtype).removeprefix("torch.") if results else "none"
            self.meter.count(f"{operation} ({inner})", name, sum(item.nbytes for item in results), None, None)

        return self.lane.submit(job, results, opts)

    # Names used by torch before 2.13.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce(self, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("reduce", "reduce", tensors, [tensors], opts)

    def allgather(self, outputs: list[Tensors], tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("all_gather_list", "allgather", [*chain(*outputs)], [outputs, tensors], opts)

    def gather(self, outputs: list[Tensors], tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("gather", "gather", [*chain(*outputs)], [outputs, tensors], opts)

    def scatter(self, outputs: Tensors, tensors: list[Tensors], opts: Any = None) -> AlgorithmWork:
        return self.pass_through("scatter", "scatter", outputs, [outputs, tensors], opts)

    def reduce_scatter(self, outputs: Tensors, tensors: list[Tensors], opts: Any = None) -> AlgorithmWork:
        return self.pass_through("reduce_scatter_list", "reduce_scatter", outputs, [outputs, tensors], opts)

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("all_to_all", "alltoall", outputs, [outputs, tensors], opts)

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], in_sizes: list[int], opts: Any = None
    ) -> AlgorithmWork:
        return self.pass_through("all_to_all", "alltoall_base", [output], [output, tensor, out_sizes, in_sizes], opts)

    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("barrier", "barrier", [], [], opts)

    # ---- an engine's own messages: not queued, because a receive may depend on the caller's next call

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        return self.inner.send(tensors, peer, tag)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        return self.inner.recv(tensors, peer, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self.inner.recv_anysource(tensors, tag)

    def shutdown(self) -> None:
        self.lane.close()

    def abort(self) -> None:
        self.lane.broken = self.lane.broken or TrialError("the process group was aborted")

    def _takes(self, operation: Operation, *tensors: torch.Tensor) -> bool:
        plain = all(tensor.layout == torch.strided and tensor.dtype in DTYPES and tensor.device.type == self.kind
                    for tensor in tensors)
        return plain and self.algorithm.runs(operation, self.world)

    def _queue(self, do: Callable[[torch.Tensor], None], tensors: Tensors, opts: Any) -> AlgorithmWork:
        def job() -> None:
            with torch.no_grad():
                for tensor in tensors:
                    do(tensor)

        return self.lane.submit(job, tensors, opts)

    # ---- what the lane runs

    def _all_reduce(self, tensor: torch.Tensor, reduction: str) -> None:
        flat = tensor.contiguous().view(-1)
        if flat.dtype in DELEGATED_DTYPES and self.algorithm.delegates(self.world, flat.nbytes, flat.element_size()):
            self._delegate(flat, reduction)
        else:
            self._run("all_reduce", flat, flat.numel(), reduction)
        self._average(flat, reduction)
        _copy_back(tensor, flat)

    def _delegate(self, flat: torch.Tensor, reduction: str) -> None:
        """Run the inner group's all-reduce; an average is computed as a sum, then divided as for the schedules."""
        wanted = "sum" if reduction == "avg" else reduction
        options = dist.AllreduceOptions()
        options.reduceOp = next(op for op, name in NAMES.items() if name == wanted)  # type: ignore[assignment]
        with self.finder.naming_missing_rank():
            self.inner.allreduce([flat], options).wait()
        self.ran.add(f"all_reduce left to {self.inner_name}")
        self.passed.add((self.inner_name, "all_reduce"))
        self.meter.count(f"all_reduce ({self.inner_name})", str(flat.dtype).removeprefix("torch."), flat.nbytes, None,
                         None)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        flat = tensor.contiguous().view(-1)
        self._run("broadcast", flat, flat.numel(), root=root)
        _copy_back(tensor, flat)

    def _all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        part = output.view(self.world, -1)[self.place]
        if part.data_ptr() != tensor.data_ptr():
            part.copy_(tensor.reshape(-1))
        self._run("all_gather", output.view(-1), tensor.numel())

    def _reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, reduction: str) -> None:
        # Sums happen in place, and the caller's input must not change.
        flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
        self._run("reduce_scatter", flat, flat.numel(), reduction)
        part = flat.view(self.world, -1)[self.place]
        self._average(part, reduction)
        output.copy_(part.view_as(output))

    def _average(self, flat: torch.Tensor, reduction: str) -> None:
        """Divide the sum; equal bits on all ranks stay equal."""
        if reduction == "avg" and self.world > 1:
            flat.div_(self.world, rounding_mode=None if flat.is_floating_point() else "trunc")

    def _run(
        self, operation: Operation, flat: torch.Tensor, payload: int, reduction: str = "sum", root: int = 0
    ) -> None:
        program = self._program(operation, flat.numel(), flat.element_size(), root)
        sent, received = self.wire.sent, self.wire.received
        with self.finder.naming_missing_rank():
            if isinstance(program, Program):
                execute(program, flat, self.wire, REDUCTIONS[reduction])
            else:
                execute_rounds(program, flat, self.wire, REDUCTIONS[reduction])
        self.ran.add(operation)
        self.meter.count(operation, str(flat.dtype).removeprefix("torch."), payload * flat.element_size(),
                         self.wire.sent - sent, self.wire.received - received)

    def _compile(self, operation: Operation, count: int, itemsize: int, root: int) -> Program | Rounds:
        arguments = (root,) if operation == "broadcast" else ()
        transfers = getattr(self.algorithm, operation)(self.world, count, itemsize, *arguments)
        if self.by_rounds:
            return own_rounds(transfers, self.place)
        return compile_program(transfers, self.place, itemsize)


def _reduction(opts: Any) -> str | None:
    """Return the name of the requested reduction; None if it passes through to the inner group."""
    wanted = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
    return next((name for op, name in NAMES.items() if wanted == op), None)


def _copy_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))
