"""Input workers: batches are read ahead of the steps that use them, in the order in which the trial uses them."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from repro.core import devices, orphans
from repro.core.errors import TrialError
from repro.core.events import EventLog
from repro.core.random_streams import Streams
from repro.seams.training import Batch, Fed, SampleReader
from repro.seams.workload import map_tensors, tensors_in, to_device
from repro.worker.evaluation import ShareBatches, share_indices
from repro.worker.input.data_order import DataOrder
from repro.worker.input.trial_input import DirectInput, TrialInput
from repro.worker.setup import TrialContext, block_steps

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


ASK_SECONDS = 0.1
CLOSE_SECONDS = 10.0
"""Longest wait at the end for a batch that is being read; a worker that hangs ends with its rank."""
REAP_SECONDS = 1.0
"""Longest wait for the end of a worker whose connection broke."""
HINTS = {
    signal.SIGKILL: " (by the kernel when memory runs out, or by hand)",
    signal.SIGBUS: " (the batches on their way did not fit into /dev/shm)",
}


class Wanted(NamedTuple):
    """One batch to be read."""

    epoch: int | None
    """Pass over the training data; None: a batch of an evaluation."""
    indices: np.ndarray


@dataclass(frozen=True, slots=True)
class Item:
    """One batch that was read."""

    batch: Any
    fed: Fed | None
    """None: a batch of an evaluation."""

    def pin_memory(self) -> Item:
        """Return it in page-locked memory; torch calls this, and its own way would turn tuples into lists."""
        return Item(map_tensors(self.batch, lambda tensor: tensor.pin_memory()), self.fed)


class Reading:
    """The data set of the loader: reads the batch that a key asks for. A failure is a value: it comes in one line and
    without torch's text around it."""

    def __init__(self, reader: SampleReader) -> None:
        self.reader = reader

    def __getitem__(self, wanted: Wanted) -> Item | TrialError:
        try:
            if wanted.epoch is None:
                return Item(self.reader.evaluation(wanted.indices), None)
            read = self.reader.train(wanted.epoch, wanted.indices)
            return Item(read.batch, read.fed)
        except TrialError as error:
            return error
        except Exception as error:  # a reader of others may raise anything: it is the reason of the trial's end
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            return TrialError(f"an input worker failed: {type(error).__name__}: {first}".removesuffix(": "))


def arrive(log: EventLog, rank: int) -> None:
    """Prepare an input worker at its start: it ends with its rank, process `rank`, and closes the rank's log.

    The launcher ends the process group of a killed rank, but only while the launcher lives; the kernel's signal works
    without it.
    """
    orphans.signal_at_parent_exit(signal.SIGKILL)
    if os.getppid() != rank:  # it ended before the line above
        os._exit(1)
    log.leave_to_parent()


class WorkerInput(TrialInput):
    """Reads by `torch.utils.data.DataLoader`, from one list of keys for the whole rest of the trial.

    Training and evaluation batches are keys of the same list, so one set of workers serves both, and the first batches
    of a block are read during the evaluation before it. On CUDA the batches of the next step are copied from pinned
    memory on a stream of their own while the device computes.
    """

    def __init__(self, context: TrialContext, order: DataOrder, reader: SampleReader) -> None:
        self.context, self.order, self.reader = context, order, reader
        self.job = context.job
        self._loader: DataLoader[Any] | None = None
        self._workers: Sequence[Any] = ()
        """The worker processes."""
        self._items: Receiver | None = None
        self._copier = Copier(self.job.device)
        self._ahead: list[Item] = []
        """The batches of the next step, or the first one of the next evaluation, on the device; on CUDA only."""
        self._fed: list[Fed] = []

    def start(self, step: int) -> None:
        self.order.prepare(step)
        self._loader = self._open(self._keys(step))
        items = iter(self._loader)
        self._workers = items._workers  # type: ignore[attr-defined]  # torch has no public name for them
        self._items = Receiver(items, room=max(2, self.job.accumulation))

    def _open(self, keys: Iterator[Wanted]) -> DataLoader[Any]:
        """Return a loader of the batches that `keys` ask for; its workers start with its iterator."""
        import torch
        from torch.utils.data import DataLoader

        trial, asked, rank = self.context.trial, self.context.choices.input, os.getpid()
        seeds = torch.Generator()  # by default the workers' seed is drawn from the generator that dropout draws from
        seeds.manual_seed(Streams(trial.master_seed, trial.repeat).seed("input", self.job.rank))
        # Forked: what `open` has read is shared and not copied, and a reader need not be picklable.
        return DataLoader(
            Reading(self.reader), batch_size=None, sampler=keys, num_workers=asked.workers,  # type: ignore[arg-type]
            prefetch_factor=asked.depth, pin_memory=self._copier.pins, multiprocessing_context="fork", generator=seeds,
            worker_init_fn=lambda _: arrive(self.context.log, rank),
            collate_fn=lambda item: item,  # torch's own would turn the account's arrays into tensors
        )

    def _keys(self, step: int) -> Iterator[Wanted]:
        """Yield every batch that this rank uses from `step` to the end of the budget."""
        context, job = self.context, self.job
        while step < context.budget_steps:
            for _ in range(block_steps(context.choices, step)):
                epoch, shares = self.order.micro_batches(step, job.rank, job.world, job.accumulation)
                for indices in shares:
                    yield Wanted(epoch, indices)
                step += 1
            if context.choices.stop.has_target:
                yield from self._evaluation_keys()

    def _evaluation_keys(self) -> Iterator[Wanted]:
        return (Wanted(None, indices) for indices in share_indices(self.job, self.context.workload.eval_samples))

    def take(self, step: int) -> list[Batch]:
        items = self._ahead or self._next_step()
        while items[0].fed is None:  # an engine may leave an evaluation early; the evaluation says so
            items = self._next_step()
        self._ahead = []
        self._copier.wait(items)
        self._fed += [item.fed for item in items if item.fed is not None]
        return [item.batch for item in items]

    def look_ahead(self) -> None:
        if self._copier.pins:
            with suppress(StopIteration):  # after the last evaluation of the budget
                self._ahead = self._next_step()

    def _next_step(self) -> list[Item]:
        """Return the batches of the next step, or one of an evaluation if that comes first, on the device."""
        first = self._next()
        count = self.job.accumulation if first.fed is not None else 1
        return [self._copier.copy(item) for item in (first, *(self._next() for _ in range(count - 1)))]

    def _next(self) -> Item:
        assert self._items is not None, "it was started"
        found: Item = next(self._items)
        return found

    def evaluation(self) -> Collection[Batch]:
        return ShareBatches(self._next_evaluation, self.job, self.context.workload.eval_samples)

    def _next_evaluation(self, wanted: Iterator[np.ndarray]) -> Iterator[Batch]:
        """Yield the batches of one evaluation; their keys are in the loader's list already."""
        for _ in wanted:
            items = self._ahead or [self._copier.copy(self._next())]
            self._ahead = []
            self._copier.wait(items)
            yield items[0].batch

    def evaluation_again(self) -> Iterator[Batch]:
        loader = self._open(self._evaluation_keys())
        for item in loader:
            if isinstance(item, TrialError):
                raise item
            moved = self._copier.copy(item)
            self._copier.wait([moved])
            yield moved.batch

    def consumed(self) -> Sequence[Fed]:
        fed, self._fed = self._fed, []
        return fed

    def effective(self) -> dict[str, str]:
        assert self._loader is not None, "it was started"
        return {"input_workers": str(len(self._workers)), "input_ahead": str(self._loader.prefetch_factor),
                "input_order": self.order.kind}

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch raises it wherever the rank is when a worker ends, and when it waits
            self._raise_end(error)
            raise
        except (OSError, EOFError) as error:  # a worker ended in the middle of a batch, and may not be reaped yet
            with suppress(RuntimeError):  # torch's word of the same end
                ended = connection.wait([worker.sentinel for worker in self._workers], REAP_SECONDS)
                for worker in self._workers:
                    if worker.sentinel in ended:  # its files are closed a moment before its end can be read
                        worker.join(REAP_SECONDS)
            self._raise_end(error)
            raise

    def _raise_end(self, error: Exception) -> None:
        """Raise the end of an input worker in the place of its consequence, if one has ended."""
        for place, worker in enumerate(self._workers):
            if worker.exitcode:
                raise TrialError(f"input worker {place} {describe_end(worker.exitcode)}") from error
        # It may have ended before torch gave the processes out of its hands, or another thread has just reaped it.
        if told := re.search(r"DataLoader worker .* is killed by signal: ([^.]+)\.", str(error)):
            number = next((item for item in signal.Signals if signal.strsignal(item) == told[1]), signal.SIGKILL)
            raise TrialError(f"an input worker {describe_end(-number)}") from error

    def close(self) -> None:
        """End the workers: torch's iterator does so when nothing refers to it."""
        if self._items is not None:
            self._items.close()
        self._items, self._loader, self._ahead = None, None, []


def describe_end(exit_code: int) -> str:
    """Return how a process ended, for example `was killed by SIGKILL (by the kernel when ...)`."""
    if exit_code > 0:
        return f"ended with exit code {exit_code}"
    name = signal.Signals(-exit_code)
    return f"was killed by {name.name}{HINTS.get(name, '')}"


class Copier:
    """Copies batches to the device; on CUDA on a stream of its own, so that copies and computation overlap."""

    def __init__(self, device: str) -> None:
        self.device, self.pins = device, devices.on_gpu(device)
        self._stream: Any = None

    def copy(self, item: Item) -> Item:
        """Return the item on the device; on CUDA the copy has only begun."""
        if not self.pins:
            return Item(to_device(item.batch, self.device), item.fed)
        if self._stream is None:
            self._stream = devices.stream(self.device)
        with devices.within(self._stream):
            return Item(to_device(item.batch, self.device), item.fed)

    def wait(self, items: Sequence[Item]) -> None:
        """Let the stream that computes wait for the copies of `items`, which are in use there from now on."""
        if not self.pins:
            return
        computing = devices.current_stream(self.device)
        computing.wait_stream(self._stream)
        for item in items:
            for tensor in tensors_in(item.batch):
                tensor.record_stream(computing)  # else its memory could be reused while it is still read


class Receiver(Iterator[Any]):
    """An iterator over `items` that has up to `room` of them at hand.

    To unpack a batch from another process takes torch some tenths of a millisecond per tensor, to compute the next keys
    some microseconds: both are done here while the main thread trains.
    """

    def __init__(self, items: Iterator[Any], room: int) -> None:
        self._items = items
        self._ready: queue.Queue[Any] = queue.Queue(room)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="repro-input", daemon=True)
        self._thread.start()

    def __next__(self) -> Any:
        """Return the next item, and raise what `items` raised in its place."""
        found = self._ready.get()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the thread and let go of the items."""
        self._over.set()
        self._thread.join(CLOSE_SECONDS)

    def _receive(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    break
            else:
                self._put(StopIteration())
        except Exception as error:  # belongs to the main thread, which is about to ask for this item
            self._put(error)
        del self._items

    def _put(self, item: Any) -> bool:
        """Hand the item over when there is room; return False if the receiver was stopped."""
        while not self._over.is_set():
            try:
                self._ready.put(item, timeout=ASK_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def make_input(context: TrialContext, order: DataOrder) -> TrialInput:
    """Return the input that the trial asks for."""
    parts = context.parts
    if parts is None:
        return TrialInput()
    if not context.choices.input.workers:
        return DirectInput(context, order, parts)
    if parts.reader is None:
        raise TrialError(f"workload {context.choices.workload.kind!r} says that it reads samples and gives no reader "
                         "(`TrainingParts.reader`): no input worker can read its data")
    return WorkerInput(context, order, parts.reader)
