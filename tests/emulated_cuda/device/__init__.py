"""Fills torch.cuda in: what a build of torch without CUDA leaves out, answered by the emulated device."""

from __future__ import annotations

import atexit
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda
import torch.distributed.distributed_c10d as c10d
from torch.cuda import nvtx

from . import _device

NAME = "Emulated H100"
CUDA_VERSION, DRIVER = "12.8", 12080


class Stream(torch.Stream):
    """torch.cuda.Stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Stream:
        if "stream_id" in given:
            return super().__new__(cls, **given)
        return super().__new__(cls, device=torch.device("cuda", index_of(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event(torch.Event):
    """torch.cuda.Event."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                external: bool = False) -> Event:
        return super().__new__(cls, device="cuda", enable_timing=enable_timing, blocking=blocking,
                               interprocess=interprocess)

    def elapsed_time(self, other: Event) -> float:
        return float(_device.elapsed(self.event_id, other.event_id))


def index_of(device: Any = None) -> int:
    """Index of a device as torch.cuda's functions take it; the current one for None."""
    if device is None or (isinstance(device, int) and device < 0):
        return int(_device.device())
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return int(_device.device() if device.index is None else device.index)


def properties(device: Any = None) -> SimpleNamespace:
    """The figures of an H100 that programs ask for; its memory is that of the emulated device."""
    index = index_of(device)
    return SimpleNamespace(
        name=NAME, major=9, minor=0, multi_processor_count=132, warp_size=32, is_integrated=0, is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048, gcnArchName="", L2_cache_size=50 << 20, regs_per_multiprocessor=65536,
        uuid=f"{_device.physical(index):08}-0000-0000-0000-000000000000", total_memory=_device.memory_info(index)[1],
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472)


def memory_stats(index: int) -> dict[str, Any]:
    """The allocator's figures in the nested form of torch._C; pools are not told apart."""
    found: dict[str, Any] = {}
    for name, value in _device.memory_figures(index).items():
        group, _, figure = name.partition(".")
        if not figure:
            found[name] = value
        else:
            for pool in ("all", "small_pool", "large_pool"):
                found.setdefault(group, {}).setdefault(pool, {})[figure] = value
    return found


def start() -> None:
    _device.start()
    torch.cuda.default_generators = tuple(_device.generator(index) for index in range(_device.count()))


def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    _device.set_device(device_index)
    _device.set_stream(stream_id, device_index)


def exchange(index: int) -> int:
    before = int(_device.device())
    if index >= 0:
        _device.set_device(index)
    return before


def nothing(*_: Any) -> None:
    """What has no effect here."""


def storage_parts(make: Any, resize: Any) -> dict[str, Any]:
    """Storages on the device: torch.load and `resize_` ask for them."""
    def new(cls: Any, *given: Any, device: Any = None, **named: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return make(cls, *given, **named, **({} if device is None else {"device": device}))
        return torch.empty(given[0] if given else 0, dtype=torch.uint8, device=device).untyped_storage()

    def resized(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        _device.resize_storage(torch.empty(0, dtype=torch.uint8, device=self.device).set_(self), size)
        return self

    return {"__new__": new, "resize_": resized}


def install() -> None:
    """Replace the stubs of torch.cuda and torch._C, and name the process group."""
    low: dict[str, Any] = {
        "init": start, "isInBadFork": _device.in_bad_fork, "getDeviceCount": _device.count_by_driver,
        "getDevice": _device.device, "setDevice": _device.set_device, "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange, "synchronize": _device.synchronize, "setStream": set_stream,
        "getCurrentRawStream": lambda index: _device.stream(index)[0],
        "getCurrentStream": lambda index: (*_device.stream(index), 1), "getDefaultStream": lambda index: (0, index, 1),
        "emptyCache": nothing, "memoryStats": memory_stats, "resetPeakMemoryStats": _device.reset_peak,
        "resetAccumulatedMemoryStats": nothing, "memoryFraction": nothing, "setMemoryFraction": nothing,
        "getMemoryFraction": lambda index: 1.0, "getAllocatorBackend": lambda: "native", "ipc_collect": nothing,
        "clearCublasWorkspaces": nothing, "getArchFlags": lambda: "sm_90", "getCompiledVersion": lambda: DRIVER,
        "getDriverVersion": lambda: DRIVER, "canDeviceAccessPeer": lambda one, other: True,
        "set_sync_debug_mode": nothing, "get_sync_debug_mode": lambda: 0, "hasPrimaryContext": _device.has_context,
        "isCurrentStreamCapturing": lambda: False,
    }
    for name, value in low.items():
        setattr(torch._C, f"_cuda_{name}", value)
    torch._C._nccl_version, torch._C._nccl_version_suffix = lambda: (2 << 32) | (28 << 16) | 9, lambda: b""
    cuda: Any = torch.cuda
    cuda._exchange_device = cuda._maybe_exchange_device = exchange
    cuda._is_in_bad_fork = _device.in_bad_fork
    cuda._cudart = SimpleNamespace()
    cuda._device_count_nvml = _device.count  # the driver's own count, which starts nothing
    cuda.Stream = cuda.streams.Stream = Stream
    cuda.Event = cuda.streams.Event = Event
    cuda.get_device_properties = cuda._get_device_properties = properties
    cuda.mem_get_info = cuda.memory.mem_get_info = lambda device=None: _device.memory_info(index_of(device))
    cuda.is_bf16_supported = lambda including_emulation=True: True
    nvtx._nvtx = SimpleNamespace(**dict.fromkeys(("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA"),
                                                 lambda *_: 0))
    torch.version.cuda = CUDA_VERSION
    for name, value in storage_parts(torch.UntypedStorage.__new__, torch.UntypedStorage.resize_).items():
        setattr(torch.UntypedStorage, name, value)
    names: Any = torch._C._distributed_c10d
    names.ProcessGroupNCCL = c10d.ProcessGroupNCCL = torch.distributed.ProcessGroupNCCL = _device.ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = c10d.default_pg_timeout


def autoload() -> None:
    """The entry point `torch.backends`: torch calls it at the end of `import torch`.

    A process that ends right after a backward pass must not take Python away from autograd's thread for the device.
    """
    install()
    atexit.register(time.sleep, 0.1)
