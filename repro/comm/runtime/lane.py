"""Queue that runs collectives strictly in the order of submission, in a background thread or in the caller's wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, Thread, current_thread, get_ident
from typing import Any

import torch

from repro.comm.runtime.meter import Meter, OnCpu


class AlgorithmWork(torch.distributed.Work):
    """A submitted collective."""

    def __init__(self, lane: Lane, job: Callable[[], None], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._lane, self._job, self._tensors = lane, job, tensors
        self._error: BaseException | None = None
        self._done = False
        self._submitted, self._ended = lane.device.mark(), None
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        self._future: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))

    def run(self) -> None:
        """Run the collective; called once, by the lane."""
        start = stop = None
        try:
            if self._lane.broken:
                raise self._lane.broken
            with self._lane.device.after(self._submitted, self._tensors):
                start = self._lane.device.stamp()
                self._job()
                stop = self._lane.device.stamp()
                self._ended = self._lane.device.mark()
        except Exception as error:
            # Any error of a schedule, a link or torch is kept and raised in the thread that waits (the caller's, or DDP
            # in C++ through the future), and by every later collective of the group. KeyboardInterrupt is not caught
            # and ends the rank.
            self._error = error
            self._lane.broken = self._lane.broken or error
        if stop is not None:
            self._lane.meter.ran(start, stop)
        self._done = True
        if self._error is None:
            with self._lane.device.after(self._ended, ()):
                self._future.set_result(self._tensors)
        else:
            self._future.set_exception(self._error)

    def wait(self, timeout: Any = None) -> bool:
        """Block until the collective is done; run it in this thread if the background has not started it.

        Raises:
            TrialError: a rank is gone; every later collective raises the same error.
        """
        start = self._lane.device.stamp()
        self._lane.finish(self)
        if self._error is not None:
            raise self._error
        self.join()
        self._lane.meter.waited(start, self._lane.device.stamp())
        return True

    def join(self) -> None:
        """Run the caller's further work on its device after the collective; nothing after one that failed."""
        if self._error is None:
            self._lane.device.join(self._ended)

    def is_completed(self) -> bool:
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        return self._future


class Lane:
    """Queue of one process group.

    Collectives of one group never overtake one another, so that each meets its counterpart on the other ranks. A caller
    that waits runs the queue itself instead of waiting for another thread to be scheduled.
    """

    def __init__(self, meter: Meter, name: str, device: OnCpu) -> None:
        self.meter, self.device = meter, device
        meter.clock = device
        self.broken: BaseException | None = None
        self._jobs: deque[AlgorithmWork] = deque()
        self._running = Lock()
        self._arrival = Condition()
        self._open = True
        self._inline: set[int] = set()
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], tensors: list[torch.Tensor], opts: Any = None) -> AlgorithmWork:
        """Append a collective to the queue; a synchronous one is done on return."""
        work = AlgorithmWork(self, job, tensors)
        if getattr(opts, "asyncOp", True) is False:
            # Set by torch since 2.8. Waking the lane's thread would only make two threads contend for one job.
            self._jobs.append(work)
            start = self.device.stamp()
            self.finish(work)
            work.join()  # else the second stamp of a GPU's stream would be in front of the collective
            self.meter.waited(start, self.device.stamp())
            return work
        inline = get_ident() in self._inline
        if not inline:
            self.meter.submitted(self.device.stamp())
        with self._arrival:
            self._jobs.append(work)
            self._arrival.notify()
        if inline:
            self.finish(work)
        return work

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Make collectives that this thread submits inside the block finish before `submit` returns.

        For chains of collectives in callbacks of a future (PowerSGD): they run on the lane's own thread and would wait
        there for work that only that thread can do.
        """
        self._inline.add(get_ident())
        try:
            yield
        finally:
            self._inline.discard(get_ident())

    def finish(self, work: AlgorithmWork) -> None:
        """Run the queue up to and including `work`."""
        with self._running:
            while not work.is_completed():
                self._jobs.popleft().run()

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._arrival:
                while self._open and not self._jobs:
                    self._arrival.wait()
                if not self._open and not self._jobs:
                    return
            with self._running:
                if self._jobs:
                    self._jobs.popleft().run()

    def close(self) -> None:
        """Finish the queue and end the thread."""
        with self._arrival:
            self._open = False
            self._arrival.notify()
        if current_thread() is not self._thread:
            self._thread.join()
