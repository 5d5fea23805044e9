"""Workers on a volume as real processes, to be started quickly and killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zarr

from repro.papers.chunkflow.grid import Grid
from repro.papers.chunkflow.operators import Blend, Delay, Infer, Read, Write
from repro.papers.chunkflow.queues import open_queue
from repro.papers.chunkflow.store import Output
from repro.papers.chunkflow.task_queue import Counts, Message, TaskQueue
from repro.papers.chunkflow.volume_workers import work

MOST_RECEIVES = 50


class Observed(TaskQueue):
    """A queue that notes in a file what is received and deleted."""

    def __init__(self, inner: TaskQueue, log: Path) -> None:
        self.inner, self.log = inner, os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def receive(self) -> Message | None:
        message = self.inner.receive()
        if message is not None:
            os.write(self.log, f"received {message.body} {os.getpid()}\n".encode())
        return message

    def delete(self, message: Message) -> bool:
        done = self.inner.delete(message)
        os.write(self.log, f"deleted {message.body} {os.getpid()}\n".encode())
        return done

    def counts(self) -> Counts:
        return self.inner.counts()

    def add(self, bodies: Sequence[str]) -> None:
        self.inner.add(bodies)

    def dead(self) -> list[str]:
        return self.inner.dead()

    def remove(self) -> None:
        self.inner.remove()

    def close(self) -> None:
        self.inner.close()


def prepare(folder: Path, grid: Grid, address: str, seed: int) -> np.ndarray:
    """Make a random volume `v`, its empty output `out` and its tasks; return the volume."""
    values = np.random.default_rng(seed).standard_normal(grid.shape, dtype=np.float32)
    zarr.save_array(str(folder / "v"), values)
    queue = open_queue(address, make=True)
    queue.add(Output.create(folder / "out", grid, "float32").tasks())
    queue.close()
    return values


def start(folder: Path, address: str, visibility: float, delay: float) -> multiprocessing.process.BaseProcess:
    """Start a worker with the identity on what `prepare` made."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.volume_worker"])
    worker = context.Process(target=run, args=(folder, address, visibility, delay), daemon=True)
    worker.start()
    return worker


def run(folder: Path, address: str, visibility: float, delay: float) -> None:
    """Work until the queue is empty."""
    output = Write(str(folder / "out"))
    chain = [Read(str(folder / "v")), Infer("identity"), Delay(delay), Blend(), output]
    work(Observed(open_queue(address, visibility, MOST_RECEIVES), folder / "log"), chain, output.output, print)
