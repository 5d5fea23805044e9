"""Input workers: batches are read ahead of the steps that use them, in the order in which the trial uses them."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import Batch, Fed, SampleReader
from repro.seams.workload import tensors_in, to_device
from repro.worker.context import TrialContext
from repro.worker.evaluation import ShareBatches, share_indices
from repro.worker.input.data_order import DataOrder
from repro.worker.input.receiver import Receiver
from repro.worker.input.trial_input import DirectInput, NoInput, TrialInput
from repro.worker.input.worker import Arrival, Item, Reading, Unreadable, Wanted, as_read

if TYPE_CHECKING:
    import numpy as np
    from torch.utils.data import DataLoader

REAP_SECONDS = 1.0
"""Longest wait for the end of a worker whose connection broke."""
HINTS = {
    signal.SIGKILL: " (by the kernel when memory runs out, or by hand)",
    signal.SIGBUS: " (the batches on their way did not fit into /dev/shm)",
}


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
        self._items: Receiver[Item | Unreadable] | None = None
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

        trial, asked = self.context.trial, self.context.choices.input
        seeds = torch.Generator()  # by default the workers' seed is drawn from the generator that dropout draws from
        seeds.manual_seed(Streams(trial.master_seed, trial.repeat).seed("input", self.job.rank))
        # Forked: what `open` has read is shared and not copied, and a reader need not be picklable.
        return DataLoader(
            Reading(self.reader), batch_size=None, sampler=keys, collate_fn=as_read,  # type: ignore[arg-type]
            num_workers=asked.workers, prefetch_factor=asked.depth, pin_memory=self._copier.pins,
            multiprocessing_context="fork", worker_init_fn=Arrival(self.context.log), generator=seeds,
        )

    def _keys(self, step: int) -> Iterator[Wanted]:
        """Yield every batch that this rank uses from `step` to the end of the budget."""
        context, job = self.context, self.job
        while step < context.budget_steps:
            for _ in range(context.block_steps(step)):
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
        return self._read(next(self._items))

    def _read(self, item: Item | Unreadable) -> Item:
        if isinstance(item, Unreadable):
            raise TrialError(item.reason)
        return item

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
            moved = self._copier.copy(self._read(item))
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
        self.device, self.pins = device, device.startswith("cuda")
        self._stream: Any = None

    def copy(self, item: Item) -> Item:
        """Return the item on the device; on CUDA the copy has only begun."""
        if not self.pins:
            return Item(to_device(item.batch, self.device), item.fed)
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            return Item(to_device(item.batch, self.device), item.fed)

    def wait(self, items: Sequence[Item]) -> None:
        """Let the stream that computes wait for the copies of `items`, which are in use there from now on."""
        if not self.pins:
            return
        import torch

        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._stream)
        for item in items:
            for tensor in tensors_in(item.batch):
                tensor.record_stream(computing)  # else its memory could be reused while it is still read


def make_input(context: TrialContext, order: DataOrder) -> TrialInput:
    """Return the input that the trial asks for."""
    parts = context.parts
    if parts is None:
        return NoInput()
    if not context.choices.input.workers:
        return DirectInput(context, order, parts)
    if parts.reader is None:
        raise TrialError(f"workload {context.choices.workload.kind!r} says that it reads samples and gives no reader "
                         "(`TrainingParts.reader`): no input worker can read its data")
    return WorkerInput(context, order, parts.reader)
