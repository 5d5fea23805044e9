"""Watch one running trial from the parent, once a second: the tail of its log and the load of the machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

from repro.core.events import EventLog
from repro.record.log.reading import follow_log
from repro.record.log.schema import Evaluation, RunStart, SystemSample

PERIOD_SECONDS = 1.0
Tick = Callable[[float | None, float, float | None], None]


class Monitor:
    """A thread that wakes once a second while a trial runs; it never blocks and never busy-waits."""

    def __init__(self, log: Path, system_log: Path, tick: Tick, live: Callable[[], None]) -> None:
        """Prepare to watch.

        Args:
            log: events of rank 0, read as they are written.
            system_log: receives system metrics.
            tick: called with (last value, epochs, samples per second) of the newest evaluation.
            live: called every second.
        """
        self._log, self._system_log, self._tick, self._live = log, system_log, tick, live
        self.unwritten = ""
        """Reason why system metrics are no longer written; "" if they are."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="repro-monitor", daemon=True)

    def __enter__(self) -> Monitor:
        try:
            self._thread.start()
        except BaseException:  # a signal while the thread starts: it would never be stopped
            self._stop.set()
            with contextlib.suppress(RuntimeError):  # not started
                self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        try:
            self._thread.join()
        except BaseException:  # a signal during the wait: the thread must not write into a sealed run
            self._thread.join()
            raise

    def _watch(self) -> None:
        psutil.cpu_percent()  # the first call only sets the starting point
        system: EventLog | None = None
        offset = 0
        start_ns: int | None = None
        while not self._stop.wait(PERIOD_SECONDS):
            if not self.unwritten:
                system = self._sample(system)
            latest = None
            for recorded, after in follow_log(self._log, offset):
                offset = after
                if recorded is not None and isinstance(recorded.event, RunStart):
                    start_ns = recorded.at_ns
                elif recorded is not None and isinstance(recorded.event, Evaluation) and recorded.at_ns is not None:
                    latest = (recorded.event, recorded.at_ns)
            if latest is not None and start_ns is not None:
                self._report(*latest, start_ns)
            self._live()
        if system is not None:
            try:
                system.close()
            except OSError as error:
                system.abandon()
                self.unwritten = error.strerror or type(error).__name__

    def _sample(self, system: EventLog | None) -> EventLog | None:
        """Write a line of system metrics; a full disk ends them, not the trial."""
        try:
            system = system or EventLog(self._system_log)
            sample_system(system)
        except OSError as error:
            if system is not None:
                system.abandon()
            self.unwritten = error.strerror or type(error).__name__
            return None
        return system

    def _report(self, latest: Evaluation, at_ns: int, start_ns: int) -> None:
        """Pass the newest evaluation to `tick`."""
        seconds = (at_ns - start_ns) / 1e9
        self._tick(latest.value, latest.epoch_num, latest.samples_count / seconds if seconds else None)


def sample_system(log: EventLog) -> None:
    """Write one line of system metrics under the names that MLflow uses."""
    memory = psutil.virtual_memory()
    log.write(SystemSample(
        cpu_utilization_percentage=psutil.cpu_percent(),
        system_memory_usage_megabytes=round(memory.used / 1e6, 1), system_memory_usage_percentage=memory.percent,
    ))
    log.flush()
