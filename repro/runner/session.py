"""A session: a command that writes a record holds its lock, handles signals and leaves the record sealed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from repro.core.errors import OutputError, ReproError, interrupter
from repro.record.environment.differences import Difference
from repro.record.folder.index import seal_again
from repro.record.folder.lock import RunLock
from repro.record.folder.resume import require_same, require_unmodified
from repro.record.folder.store import Record, RunFolder
from repro.runner.context import Watcher
from repro.runner.run import Findings, Run
from repro.runner.signals import Interrupts
from repro.suite.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Messages:
    """The texts that a command shows to the user who interrupts it."""

    kept: str
    """The treatment of completed trials."""
    next_step: str
    """The command to continue."""
    closing: str
    """The work after the last trial, when a signal no longer interrupts."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of a run: a record, a signal, or an error."""

    record: Record | None
    """None: the run did not reach its end."""
    interrupt: KeyboardInterrupt | None
    problem: ReproError | None
    """Reason why the run failed, or why its record could not be sealed."""

    def completed(self) -> Record:
        """Return the record of a run that reached its end.

        Raises:
            KeyboardInterrupt: a signal ended the run.
            ReproError: it failed.
        """
        if self.interrupt is not None:
            raise self.interrupt
        if self.problem is not None:
            raise self.problem
        assert self.record is not None
        return self.record


class RunSession:
    """The right to write one run folder, for as long as `open_session` is entered."""

    def __init__(self, folder: RunFolder, lock: RunLock, interrupts: Interrupts, watcher: Watcher,
                 messages: Messages) -> None:
        self.interrupts = interrupts
        self._folder, self._watcher, self._messages = folder, watcher, messages
        self._findings = Findings(stale_lock=lock.stale)

    def accept(self, plan: Plan, differences: Sequence[Difference], force: bool) -> None:
        """Check that the record was not modified and does not differ otherwise; the run records what `force` accepts.

        Raises:
            UsageError: it was or does, and `force` is False.
            OutputError: the index or one of the files cannot be read.
        """
        found = (*differences, *require_unmodified(self._folder, plan, force))
        require_same(self._folder.root, found, force)
        self._findings = Findings(self._findings.stale_lock, found)

    def execute(self, run: Run) -> Execution:
        """Execute `run` to its end, to a signal or to an error; the record is sealed unless the run was refused."""
        record, problem, interrupt = None, None, None
        try:
            try:
                record = run.execute(self._findings)
            except ReproError as error:
                problem = error
            self.interrupts.finish()  # up to here a signal raises, from here on it is only answered
        except KeyboardInterrupt as error:
            self.interrupts.finish()
            interrupt = error
            self._watcher.stage(self._interrupted_text(error))
        if run.has_written:
            try:
                seal_again(self._folder)  # the signal may have interrupted the sealing
            except OutputError as error:
                problem = problem or error
        return Execution(record, interrupt, problem)

    def _interrupted_text(self, error: KeyboardInterrupt) -> str:
        kept = self._messages.kept if self._folder.environment.is_file() else "nothing has run yet"
        return f"interrupted by {interrupter(error)}; {kept}; {self._messages.next_step}"


@contextmanager
def open_session(folder: RunFolder, watcher: Watcher, messages: Messages, force: bool = False) -> Iterator[RunSession]:
    """Hold the lock of `folder` and handle signals as `Interrupts` does.

    Args:
        force: replace a lock that another machine holds.

    Raises:
        OutputError: another process writes this folder, or it cannot be written.
    """
    with RunLock(folder.root).acquire(force) as lock, \
            Interrupts(lock, messages.next_step, messages.closing) as interrupts:
        yield RunSession(folder, lock, interrupts, watcher, messages)
