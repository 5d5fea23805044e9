"""The parity gate of a plan: all engines must train alike before a trial is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repro.core.errors import ParityError
from repro.core.files import write_json
from repro.record.resume import began_elsewhere
from repro.record.store import Record
from repro.runner.context import RunContext
from repro.runner.launching import PARITY_WORKER, Launchers
from repro.suite.model import Trial
from repro.worker import parity


@dataclass(frozen=True, slots=True)
class ParityGate:
    """Launches the members of every parity group and writes the verdict."""

    context: RunContext
    launchers: Launchers

    def require(self, record: Record) -> None:
        """Run the gate unless an earlier start of this run has passed it on this machine with this code.

        Raises:
            ParityError: it was not passed.
        """
        if began_elsewhere(record) or not parity.passed(self.context.plan, record.parity):
            self._run(resumed=bool(record.attempts))

    def _run(self, resumed: bool) -> None:
        groups = parity.groups(self.context.plan)
        verdict = self.context.folder.parity_verdict
        if not groups:
            write_json(verdict, {"needed": False, "why": parity.why_not(self.context.plan)})
            return
        findings: list[dict[str, Any]] = []
        for group in groups:
            self.context.watcher.stage(f"parity gate: {group.title}")
            findings += self._judge(group)
            write_json(verdict, {"needed": True, "tolerance": parity.TOLERANCE, "steps": parity.STEPS,
                                 "findings": findings})
        bad = next((item for item in findings if item["problem"]), None)
        if bad:
            raise ParityError(f"parity gate: {bad['candidate']} against {bad['reference']}: {bad['problem']}; "
                              f"no {'more trials are' if resumed else 'trial was'} timed")

    def _judge(self, group: parity.Group) -> list[dict[str, Any]]:
        members = (group.reference, *group.candidates)
        traces = {member.trial_id: self._traces(member, member.trial_id, 0.0) for member in members}
        findings = parity.judge_group(group, traces)
        if not any(item["problem"] for item in findings):
            return findings
        # How far does the reference differ from itself if its weights are off by rounding? Less than that is no fault.
        disturbed = self._traces(group.reference, f"{group.reference.trial_id}-disturbed", parity.DISTURBANCE)
        return parity.judge_group(group, traces, disturbed[0])

    def _traces(self, member: Trial, name: str, disturbance: float) -> list[parity.Trace]:
        folder = self.context.folder.parity / name
        payload = {"steps": parity.STEPS, "disturbance": disturbance}
        outcome = self.launchers.launch(member, PARITY_WORKER, folder, payload)
        if not outcome.ok:
            raise ParityError(f"parity gate: {parity.name(member)} did not run: {outcome.failure_text()} "
                              f"(logs in {folder})")
        return parity.read_traces(folder, member.choices.processes)
