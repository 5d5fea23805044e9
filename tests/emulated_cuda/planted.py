"""Small programs with one planted bug each that a CPU forgives and a GPU does not, and the same programs without it.

`python -m tests.emulated_cuda.planted`, in the emulated environment, runs all and prints as JSON what stopped each.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from tests.commands import free_port

SECONDS = 60
SIZE = 1000


class WrongValue(Exception):
    """The program ended with a value that a comparison with a run on the CPU refuses."""


class Planted(NamedTuple):
    """A program and what finds its bug."""

    program: Callable[[bool], None]
    """Takes whether the bug is left out."""
    words: str
    """In the message that stops the program with the bug."""
    check: str
    """What finds it, as in docs/devices.md."""
    ranks: int = 1

    @property
    def name(self) -> str:
        return self.program.__name__.replace("_", " ")


CASES: list[Planted] = []


def planted(check: str, words: str, ranks: int = 1) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    def register(program: Callable[[bool], None]) -> Callable[[bool], None]:
        CASES.append(Planted(program, words, check, ranks))
        return program

    return register


def expect(found: float, wanted: float) -> None:
    if not math.isclose(found, wanted, rel_tol=1e-5):
        raise WrongValue(f"wrong value {found}, {wanted} is right")


def pinned() -> torch.Tensor:
    return torch.ones(SIZE).pin_memory()


# ---- places


@planted("devices of an operator", "found at least two devices, cuda:0 and cpu")
def a_tensor_left_on_the_cpu(right: bool) -> None:
    weights, batch = torch.ones(4, 4, device="cuda"), torch.ones(4, 4)
    expect((weights @ (batch.cuda() if right else batch)).sum().item(), 64)


@planted("devices of an operator", "found at least two devices, cuda:1 and cuda:0")
def a_tensor_on_another_device(right: bool) -> None:
    weights, bias = torch.ones(4, device="cuda:1"), torch.ones(4, device="cuda:1" if right else "cuda:0")
    expect((weights + bias).sum().item(), 8)


@planted("devices of an operator", "Expected a 'cuda' device type for generator")
def a_generator_of_the_cpu(right: bool) -> None:
    generator = torch.Generator("cuda" if right else "cpu").manual_seed(1)
    torch.randperm(5, generator=generator, device="cuda")


@planted("devices of an operator", "can't convert cuda:0 device type tensor to numpy")
def numpy_of_a_device_tensor(right: bool) -> None:
    tensor = torch.ones(4, device="cuda")
    expect(float((tensor.cpu() if right else tensor).numpy().sum()), 4)


@planted("memory that the host cannot read", "signal 11")
def a_pointer_of_the_device_read_by_the_host(right: bool) -> None:
    tensor = torch.ones(4, device="cuda")
    copy = tensor.cpu()
    ctypes.string_at((copy if right else tensor).data_ptr(), 4)


@planted("devices of the process", "Attempting to deserialize object on CUDA device 2")
def a_checkpoint_of_a_device_that_is_not_there(right: bool) -> None:
    path = Path(tempfile.mkdtemp()) / "saved.pt"
    torch.save(torch.ones(4, device="cuda:1"), path)
    torch.load(path, map_location="cuda:0" if right else "cuda:2")


@planted("memory of the device", "CUDA out of memory")
def a_list_that_keeps_every_activation(right: bool) -> None:
    kept = []
    for _ in range(40):
        kept.append(torch.empty(512 << 20, dtype=torch.uint8, device="cuda"))
        if right:
            kept.clear()


@planted("NaN in memory that nothing has written", "wrong value nan")
def memory_used_without_being_written(right: bool) -> None:
    total = (torch.zeros if right else torch.empty)(SIZE, device="cuda")
    total += 1
    expect(total.sum().item(), SIZE)


@planted("figures compared", "wrong value")
def peak_memory_read_before_the_reset(right: bool) -> None:
    del_me = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    del del_me
    if right:
        torch.cuda.reset_peak_memory_stats()
    torch.ones(1024, dtype=torch.uint8, device="cuda")
    expect(torch.cuda.max_memory_allocated(), 1024)


# ---- copies


@planted("clocks of streams", "race: aten::sum")
def a_copy_to_the_device_not_waited_for(right: bool) -> None:
    stream, source = torch.cuda.Stream(), pinned()
    with torch.cuda.stream(stream):
        copied = source.to("cuda", non_blocking=True)
    if right:
        torch.cuda.current_stream().wait_stream(stream)
    expect(copied.sum().item(), SIZE)


@planted("NaN until a copy is waited for", "wrong value nan")
def a_copy_to_the_host_not_waited_for(right: bool) -> None:
    copied = torch.ones(SIZE, device="cuda").to("cpu", non_blocking=True)
    if right:
        torch.cuda.synchronize()
    expect(float(copied.sum()), SIZE)


@planted("pinned memory compared", "pinned memory was changed before its copy")
def a_pinned_buffer_filled_again_too_early(right: bool) -> None:
    source, done = pinned(), torch.cuda.Event()
    copied = source.to("cuda", non_blocking=True)
    done.record()
    if right:
        done.synchronize()
    source.fill_(2)
    expect(copied.sum().item(), SIZE)


# ---- streams and events


@planted("clocks of streams", "race: aten::sum")
def a_stream_not_joined(right: bool) -> None:
    stream, values = torch.cuda.Stream(), torch.ones(SIZE, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        values.mul_(2)
    if right:
        torch.cuda.current_stream().wait_stream(stream)
    expect(values.sum().item(), 2 * SIZE)


@planted("clocks of streams", "race: aten::mul on")
def a_stream_that_starts_too_early(right: bool) -> None:
    stream, values = torch.cuda.Stream(), torch.ones(SIZE, device="cuda")
    if right:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        values.mul_(2)
    stream.synchronize()
    expect(values.sum().item(), 2 * SIZE)


@planted("clocks of streams", "race: aten::sum")
def an_event_waited_for_before_it_is_recorded(right: bool) -> None:
    stream, values, ready = torch.cuda.Stream(), torch.zeros(SIZE, device="cuda"), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        values.add_(1)
        if right:
            ready.record()
    torch.cuda.current_stream().wait_event(ready)
    ready.record(stream)
    expect(values.sum().item(), SIZE)


@planted("devices of events", "does not match recording stream's device index")
def an_event_of_another_device(right: bool) -> None:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream("cuda:0"))
    event.record(torch.cuda.current_stream("cuda:0" if right else "cuda:1"))


@planted("events that are over", "CUDA error: device not ready")
def elapsed_time_before_the_end(right: bool) -> None:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.ones(SIZE, device="cuda").to("cpu", non_blocking=True)
    stop.record()
    if right:
        stop.synchronize()
    start.elapsed_time(stop)


@planted("owners of freed memory", "was freed while")
def memory_freed_while_another_stream_uses_it(right: bool) -> None:
    stream, values = torch.cuda.Stream(), torch.ones(SIZE, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        doubled = values * 2
        if right:
            values.record_stream(stream)
    del values
    torch.zeros(SIZE, device="cuda")
    stream.synchronize()
    expect(doubled.sum().item(), 2 * SIZE)


# ---- processes


@planted("forked processes", "Cannot re-initialize CUDA in forked subprocess")
def a_fork_after_the_start_of_cuda(right: bool) -> None:
    torch.ones(1, device="cpu" if right else "cuda")
    in_child(lambda: torch.ones(1, device="cuda").sum().item())


@planted("forked processes", "Cannot re-initialize CUDA in forked subprocess")
def a_fork_after_asking_whether_there_is_a_device(right: bool) -> None:
    if right:
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    torch.cuda.is_available()
    in_child(lambda: torch.ones(1, device="cuda").sum().item())


@planted("one device, one rank", "Duplicate GPU detected", ranks=2)
def index_0_on_rank_1(right: bool) -> None:
    rank = start_group()
    device = f"cuda:{rank if right else 0}"
    torch.cuda.set_device(device)
    add_up(torch.ones(4, device=device))


@planted("one device, one rank", "Duplicate GPU detected", ranks=2)
def a_missing_set_device(right: bool) -> None:
    rank = start_group()
    if right:
        torch.cuda.set_device(rank)
    add_up(torch.ones(4, device="cuda"))


@planted("devices of a collective", "No backend type associated with device type cpu", ranks=2)
def a_tensor_of_the_cpu_given_to_nccl(right: bool) -> None:
    device = f"cuda:{start_group()}"
    torch.cuda.set_device(device)
    add_up(torch.ones(4, device=device if right else "cpu"))


@planted("clocks of streams", "race: aten::sum", ranks=2)
def a_result_of_a_collective_read_before_it_is_waited_for(right: bool) -> None:
    device = f"cuda:{start_group()}"
    torch.cuda.set_device(device)
    values = torch.ones(SIZE, device=device)
    work = dist.all_reduce(values, async_op=True)
    if right:
        work.wait()
    expect(values.sum().item(), 2 * SIZE)


@planted("clocks of streams", "race: aten::zero_", ranks=2)
def an_input_of_a_collective_changed_before_it_is_over(right: bool) -> None:
    device = f"cuda:{start_group()}"
    torch.cuda.set_device(device)
    values, everything = torch.ones(SIZE, device=device), torch.zeros(2 * SIZE, device=device)
    work = dist.all_gather_single(everything, values, async_op=True)
    if right:
        work.wait()
    values.zero_()
    work.wait()
    expect(everything.sum().item(), 2 * SIZE)


def start_group() -> int:
    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl")
    return rank


def add_up(values: torch.Tensor) -> None:
    dist.all_reduce(values)
    expect(values.sum().item(), 8)


def in_child(act: Callable[[], object]) -> None:
    """Run something in a forked process and raise what it raises."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, outcome(act).encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 10_000).decode()
    os.waitpid(child, 0)
    if said != "ok":
        raise RuntimeError(said)


def outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "ok"


# ---- the run: every program in processes that are forked from this one, which has not used the device


def run(case: Planted, right: bool) -> str:
    """Run a program on all its ranks; return "ok", or what stopped the first rank that failed."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(case.ranks))
    folder = Path(tempfile.mkdtemp())
    children: dict[int, Path] = {}
    for rank in range(case.ranks):
        path = folder / str(rank)
        if (child := os.fork()) == 0:
            signal.alarm(SECONDS)
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            path.write_text(outcome(lambda: case.program(right)))
            os._exit(0)
        children[child] = path
    found = "ok"
    while children:
        child, status = os.wait()
        path = children.pop(child)
        said = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else path.read_text()
        if said != "ok" and found == "ok":
            found = said
            time.sleep(0.1 * bool(children))
            for other in children:
                os.kill(other, signal.SIGKILL)
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = {case.name: [run(case, right=False), run(case, right=True)] for case in CASES}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
