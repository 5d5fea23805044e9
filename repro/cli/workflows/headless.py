"""Execute a plan without report and tracking, for the commands that only need its record."""

from __future__ import annotations

from repro.cli.workflows.progress import TerminalWatcher
from repro.core.machine import detect
from repro.record.folder.store import Record, RunFolder
from repro.runner.context import Options
from repro.runner.run import Run
from repro.runner.session import Messages, open_session
from repro.suite.planning.plan import Plan


def execute(plan: Plan, folder: RunFolder, kept: str, next_step: str, force: bool = False) -> Record:
    """Run the trials of the plan that have no result yet.

    Args:
        kept: what becomes of completed trials if a signal ends the run; shown to the user.
        next_step: how to continue after that; shown to the user.
        force: also if machine, code or record differ from those that the run began with.

    Raises:
        KeyboardInterrupt: a signal ended it; completed trials are kept.
        ReproError: it could not be completed.
    """
    messages = Messages(kept, next_step, closing="the record is being closed")
    with TerminalWatcher() as watcher, open_session(folder, watcher, messages, force) as session:
        session.accept(plan, (), force)
        return session.execute(Run(plan, folder, detect(), watcher, Options(force=force))).completed()
