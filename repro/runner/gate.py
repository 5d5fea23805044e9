"""The parity gate of a plan: all engines must train alike before a trial is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repro.core.errors import ParityError
from repro.core.files import write_json
from repro.program.gate.judge import Difference as ProgramDifference
from repro.record.folder.resume import began_elsewhere
from repro.record.folder.store import Record
from repro.runner.context import RunContext
from repro.runner.launching import PARITY_WORKER, Launchers
from repro.seams.training import Optimizer, Precision
from repro.suite.model import Trial
from repro.worker.gate import parity
from repro.worker.gate.difference import LARGEST_TOLERANCE, LARGEST_UPDATE_TOLERANCE, TOLERANCE, Difference
from repro.worker.gate.judge import culprit, judge, judge_precision, largest_difference, sentence, widen_tolerances
from repro.worker.gate.trace import AGED_STEPS, STEPS, Trace, read_traces

CONFIRMATIONS = 2
"""Further seeds with which a candidate with a small difference is judged."""
DISTURBANCES = 1
"""Disturbed copies of the reference with each seed."""


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
            require_no_problem(self.run(), resumed=bool(record.attempts))

    def run(self, every: bool = False) -> list[dict[str, Any]]:
        """Compare all groups and write the verdict; return one finding for each candidate of each group.

        Args:
            every: compare all cells, also if the plan needs no gate.
        """
        groups = parity.groups(self.context.plan, every)
        verdict, skipped = self.context.folder.parity_verdict, parity.skipped(self.context.plan)
        left_out = {"skipped": skipped} if skipped else {}
        if not groups:
            write_json(verdict, {"needed": False, "why": parity.why_not(self.context.plan), **left_out})
            return []
        findings: list[dict[str, Any]] = []
        for group in groups:
            self.context.watcher.stage(f"parity gate: {group.title}")
            findings += self._judge(group)
            write_json(verdict, {"needed": True, "tolerance": TOLERANCE, "steps": STEPS, "findings": findings,
                                 **left_out})
        return findings

    def _judge(self, group: parity.Group) -> list[dict[str, Any]]:
        """Return the findings of one group.

        A unit that switches on in one engine and off in another, because of one last place, shows as a small difference
        with one seed; a defect shows with every seed. So a candidate with a small difference is judged with others too.
        """
        findings = self._judge_once(group)
        for repeat in range(1, CONFIRMATIONS + 1):
            doubtful = tuple(candidate for candidate, item in zip(group.candidates, findings, strict=True)
                             if _is_small(item))
            if not doubtful:
                break
            again = replace(group, reference=_with_repeat(group.reference, repeat),
                            candidates=tuple(_with_repeat(item, repeat) for item in doubtful))
            judged = zip(doubtful, self._judge_once(again), strict=True)
            cleared = {candidate.trial_id: item for candidate, item in judged if not item["problem"]}
            findings = [cleared[candidate.trial_id] | {"cleared": item["problem"], "repeat": repeat}
                        if candidate.trial_id in cleared else item
                        for candidate, item in zip(group.candidates, findings, strict=True)]
        return findings

    def _judge_once(self, group: parity.Group) -> list[dict[str, Any]]:
        """Return the findings with one seed; a candidate that does not run does not keep others from being judged."""
        try:
            reference = self._traces(group, group.reference)[0]
        except ParityError as error:
            return [_not_run(group, item, str(error)) for item in group.candidates]
        traces: dict[str, Sequence[Trace] | str] = {}
        for candidate in group.candidates:
            try:
                traces[candidate.trial_id] = self._traces(group, candidate)
            except ParityError as error:
                traces[candidate.trial_id] = str(error)
        findings = self._compare(group, reference, traces, ())
        if group.kind == "precision" or not any(item["problem"] and item["checks"] for item in findings):
            return findings
        # How far does the reference differ from itself if its weights are off by rounding? Less than that is no fault.
        disturbed = [self._traces(group, group.reference, number + 1)[0] for number in range(DISTURBANCES)]
        rounding = group.reference.training.optimizer.get(Optimizer).rounding
        return self._compare(group, reference, traces, widen_tolerances(reference, disturbed, rounding))

    def _compare(
        self, group: parity.Group, reference: Trace, traces: Mapping[str, Sequence[Trace] | str],
        tolerances: Sequence[float],
    ) -> list[dict[str, Any]]:
        findings = []
        for candidate in group.candidates:
            ranks = traces[candidate.trial_id]
            if isinstance(ranks, str):
                findings.append(_not_run(group, candidate, ranks))
                continue
            precision = candidate.training.precision.get(Precision)
            rounding = candidate.training.optimizer.get(Optimizer).rounding
            checks = judge(reference, ranks, tolerances, rounding) if group.kind == "fp32" else \
                judge_precision(precision, reference, ranks, rounding)
            worst = culprit(checks)
            findings.append({
                **_names(group, candidate), "problem": sentence(worst, tolerances, candidate.training),
                "largest_difference": largest_difference(reference, ranks[0]), "tolerances": list(tolerances),
                "checks": {name: found and as_json(found, sentence(found, tolerances, candidate.training))
                           for name, found in checks.items()}, "effective": ranks[0].effective,
            })
        return findings

    def _traces(self, group: parity.Group, member: Trial, disturbance: int = 0) -> list[Trace]:
        """Launch one member and read what its ranks measured."""
        place = f"{member.trial_id}-{group.kind}" + (f"-disturbed{disturbance}" if disturbance else "")
        folder = self.context.folder.parity / place
        ranks = group.candidates[0].choices.processes if member is group.reference else 1
        payload = {"kind": group.kind, "least_share": group.least_share, "disturbance": disturbance,
                   "ranks_of_candidates": ranks, "cache": str(self.context.folder.cache),
                   "code": str(self.context.folder.code)}
        outcome = self.launchers.launch(member, PARITY_WORKER, folder, payload)
        if not outcome.ok:
            called = parity.name(member) if member is group.reference else group.name(member)
            raise ParityError(f"{called} did not run: {outcome.failure_text()} (logs in {folder})")
        return read_traces(folder, member.choices.processes)


def _names(group: parity.Group, candidate: Trial) -> dict[str, Any]:
    return {"group": group.title, "kind": group.kind, "reference": parity.name(group.reference),
            "candidate": group.name(candidate)}


def _with_repeat(trial: Trial, repeat: int) -> Trial:
    return trial.model_copy(update={"repeat": repeat})


def _is_small(finding: Mapping[str, Any]) -> bool:
    """Return True if rounding could explain a finding: a small difference after the first step."""
    known = {name: item for name, item in finding["checks"].items() if item is not None}

    def limit(name: str, step: int) -> float:
        # A unit that switched at rate 0 shows in what the optimizer keeps, and so in later updates.
        return LARGEST_UPDATE_TOLERANCE if name == "update" and step > AGED_STEPS else LARGEST_TOLERANCE

    return bool(known) and all(item["size"] is not None and item["size"] < limit(name, item["step"])
                               and item["step"] > 1 for name, item in known.items())


def _not_run(group: parity.Group, candidate: Trial, problem: str) -> dict[str, Any]:
    return {**_names(group, candidate), "problem": problem, "largest_difference": 0.0, "tolerances": [], "checks": {},
            "effective": {}}


def as_json(found: Difference | ProgramDifference, text: str) -> dict[str, Any]:
    """Return a difference as the verdict has it (JSON-like)."""
    return {"step": found.step, "tensor": found.tensor, "text": text,
            "size": found.size if math.isfinite(found.size) else None,
            "tolerance": found.tolerance if math.isfinite(found.tolerance) else None}


def require_no_problem(
    findings: Sequence[Mapping[str, Any]], resumed: bool, checks: str = "repro gate SUITE"
) -> None:
    """Refuse to time trials if a candidate does not train like its reference.

    Args:
        checks: file or command that gives every check.

    Raises:
        ParityError: one does not.
    """
    if bad := [item for item in findings if item["problem"]]:
        raise ParityError(f"parity gate: no {'more trials are' if resumed else 'trial was'} timed", [
            *(f"{item['candidate']} against {item['reference']}: {item['problem']}" for item in bad),
            f"every check: {checks}"])
