"""A run for its record alone, without page and tracking server; signals end it as they end `repro run`."""

from __future__ import annotations

from repro.cli.progress import TerminalWatcher
from repro.core.errors import interrupter
from repro.core.machine import detect
from repro.record import damaged
from repro.record.index import seal_again
from repro.record.lock import RunLock
from repro.record.resume import refuse
from repro.record.store import Record, RunFolder
from repro.runner.run import Run
from repro.runner.signals import Interrupts
from repro.suite.plan import Plan


def execute(plan: Plan, folder: RunFolder, then: str, force: bool = False) -> Record:
    """Run what is missing of the plan.

    Args:
        then: said when a signal ends it: what becomes of what has run.
        force: also where machine or code are not what the run began with.

    Raises:
        KeyboardInterrupt: a signal ended it; what has run is kept.
        ReproError: it could not be carried through.
    """
    with RunLock(folder.root).acquire(force) as lock, TerminalWatcher() as watcher, \
            Interrupts(lock, then, "the record is being closed") as interrupts:
        befell = [("difference", text) for text in _damage(folder, plan, force)]
        if lock.stale:
            befell.insert(0, ("lock", f"the lock of {lock.stale}, which no longer runs, was taken over"))
        run = Run(plan, folder, detect(), watcher, force=force, befell=befell)
        try:
            record = run.execute()
        except KeyboardInterrupt as error:
            interrupts.ended()
            watcher.stage(f"ended by {interrupter(error)}: {then}")
            if run.begun:
                seal_again(folder)  # the signal may have come in the middle of it
            raise
        interrupts.ended()
        return record


def _damage(folder: RunFolder, plan: Plan, force: bool) -> list[str]:
    """What was altered of a run that goes on; nothing of one that begins."""
    found = damaged.refuse(folder, plan, force)
    refuse(folder.root, found, force)
    return found
