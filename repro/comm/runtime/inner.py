"""Process group that passes collectives to an inner group (gloo or NCCL), in the order of submission."""

# mypy: disable-error-code="override"
# torch declares several signatures of a collective; only the one with options is called on a group.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import ProcessGroup, Store

from repro.comm.runtime.device import OnCpu
from repro.comm.runtime.lane import AlgorithmWork, Lane
from repro.comm.runtime.meter import Meter
from repro.comm.runtime.missing_rank import MissingRankFinder
from repro.comm.runtime.wire import Wire
from repro.core.errors import TrialError

Tensors = list[torch.Tensor]


class Links(NamedTuple):
    """Connection of one rank to the others."""

    inner: Any
    """The inner process group (gloo or NCCL)."""
    wire: Wire
    """Its point-to-point messages."""
    device: OnCpu
    """Order of its work relative to the caller's."""


class PassingGroup(ProcessGroup):
    """Passes every collective to the inner group; torch calls the methods by these names, from Python and C++."""

    inner_name = "gloo"

    def __init__(self, links: Links, meter: Meter, store: Store, timeout_seconds: float) -> None:
        rank, world = links.wire.rank, links.wire.world
        super().__init__(rank, world)  # type: ignore[call-arg]  # torch does not declare the constructor of subclasses
        self.inner, self.wire, self.meter, self.place, self.world = links.inner, links.wire, meter, rank, world
        self.finder = MissingRankFinder(store, self.wire, timeout_seconds)
        self.lane = Lane(meter, f"comm of {world} ranks", links.device)
        self.passed: set[str] = set()
        self._name = ""

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

    def pass_through(
        self, operation: str, method: str, results: Tensors, arguments: list[Any], opts: Any
    ) -> AlgorithmWork:
        """Queue the inner group's `method`, which writes the tensors `results`."""
        def job() -> None:
            with self.finder.naming_missing_rank():
                call: Callable[..., Any] = getattr(self.inner, method)
                call(*arguments, *(() if opts is None else (opts,))).wait()
            self.passed.add(operation)
            name = str(results[0].dtype).removeprefix("torch.") if results else "none"
            self.meter.count(f"{operation} ({self.inner_name})", name, sum(item.nbytes for item in results), None, None)

        return self.lane.submit(job, results, opts)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("all_reduce", "allreduce", tensors, [tensors], opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("broadcast", "broadcast", tensors, [tensors], opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("all_gather", "_allgather_base", [output], [output, tensor], opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("reduce_scatter", "_reduce_scatter_base", [output], [output, tensor], opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> AlgorithmWork:
        # Name used by torch before 2.13.
        return self.all_gather_single(output, tensor, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> AlgorithmWork:
        return self.reduce_scatter_single(output, tensor, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("reduce", "reduce", tensors, [tensors], opts)

    def allgather(self, outputs: list[Tensors], tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("all_gather_list", "allgather", _flat(outputs), [outputs, tensors], opts)

    def gather(self, outputs: list[Tensors], tensors: Tensors, opts: Any = None) -> AlgorithmWork:
        return self.pass_through("gather", "gather", _flat(outputs), [outputs, tensors], opts)

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

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], in_sizes: list[int], opts: Any = None
    ) -> AlgorithmWork:
        return self.alltoall_base(output, tensor, out_sizes, in_sizes, opts)

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


def _flat(rows: list[Tensors]) -> Tensors:
    return [item for row in rows for item in row]
