"""The run folder between two sealed states: repaired after a killed start, sealed again at the end of this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from repro.core.files import write_model
from repro.record.environment.differences import Difference, other_code
from repro.record.environment.plugin_code import PluginCode, plugin_code
from repro.record.folder import resume
from repro.record.folder.index import seal_again, unseal
from repro.runner.context import RunContext
from repro.runner.preflight import Preflight


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a session before a run starts, recorded as soon as the run is known to be allowed."""

    stale_lock: str = ""
    """The ended owner whose lock was replaced; "" if there was none."""
    differences: tuple[Difference, ...] = ()
    """Differences of plan and record with which the run is resumed by `--force`."""


@contextmanager
def unsealed(context: RunContext, damage: Sequence[resume.Damaged]) -> Iterator[None]:
    """Open the folder for writing: repair it, remove the index that no longer holds; seal it at the end.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder, plan = context.folder, context.plan
    resume.set_aside(folder, damage)
    try:
        unseal(folder)
        folder.mend()
        resume.record_set_aside(folder, plan, damage)
        resume.complete_ledger(folder, plan)
        for item in damage:
            context.watcher.stage(f"warning: {item.trial_id}: {item.why}; set aside, the trial runs again")
        yield
    finally:
        seal_again(folder)


def record_start(context: RunContext, findings: Findings, preflight: Preflight) -> None:
    """Record the environment, or its differences from the first start, and the warnings of the checks."""
    folder = context.folder
    if findings.stale_lock:
        folder.append_incident("lock", f"the lock of {findings.stale_lock}, which no longer runs, was replaced")
    if not folder.environment.is_file():
        write_model(folder.environment, preflight.environment)
    for item in (*findings.differences, *preflight.differences):
        folder.append_incident("difference", item.text, difference=item.kind)
    for text in preflight.warnings:
        context.warn("machine", text)


def record_edits(context: RunContext, began_with: Sequence[PluginCode]) -> None:
    """Record the plug-ins whose source is no longer that with which this execution began.

    A rank imports what the fork server has not, so trials before and after the edit may have run different code.
    """
    try:
        found = list(other_code(began_with, plugin_code(context.plan, context.folder.root)))
    except OSError as error:
        found = [f"the source of a plug-in can no longer be read ({error.strerror})"]
    for text in found:
        context.warn("edited", f"{text}; it was edited during the run, so trials may have run different code")
