"""The statements of one program as events of its trial's log, and the outcome that they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from repro.core.events import EventLog
from repro.core.redact import masked
from repro.program import clocks
from repro.program.observation import Observation
from repro.record.derive.trial_log import reached
from repro.record.log import schema
from repro.suite.kinds.program import ProgramConfig

MOST_STEPS = 100_000
"""Observations from which on steps are no longer kept: the clocks are compared over those before."""
PERIOD_SECONDS = 1.0
"""Least time between two events of progress."""


class Statements:
    """Keeps every observation of one run, writes evaluations as they come, progress at most once a second."""

    def __init__(self, choices: ProgramConfig, log: EventLog, started_ns: int, states_start: bool) -> None:
        """
        Args:
            states_start: the reader says when training begins; `run_start` waits for it.
        """
        self.choices, self.log, self.started_ns = choices, log, started_ns
        self.seen: list[Observation] = []
        self.hits = 0
        self.established = False
        self._event = schema.EvalError if choices.evaluation.direction == "lower" else schema.EvalAccuracy
        self._begun = self._said_start = self._counts_all = not states_start
        self.early = False
        """It evaluated before it said that its training begins."""
        self._stopped_ns: int | None = None
        self._due_ns = 0
        self._first_output_ns: int | None = None
        self._evaluations = 0
        if self._begun:
            self._begin(started_ns)

    def add(self, seen: Observation) -> None:
        """Take the next observation."""
        if seen.seen == "start":
            self._said_start = True
            if self._begun:
                self.early = True
            else:
                self._begin(seen.arrived_ns)
        elif seen.seen == "stop":
            self._stopped_ns = seen.arrived_ns
        elif seen.seen == "evaluation":
            self._evaluated(seen)
        if seen.seen != "step" or len(self.seen) < MOST_STEPS:
            self.seen.append(seen)
        if seen.seen == "step":
            self.still_runs(seen.arrived_ns)

    def still_runs(self, now_ns: int) -> None:
        """Write that output arrived: the launcher and the progress bar see it in the log."""
        self._first_output_ns = self._first_output_ns or now_ns
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + int(PERIOD_SECONDS * 1e9)
            last = self.seen[-1] if self.seen else None
            stated = schema.Progress(step=last.step, samples=last.samples) if last else schema.Progress()
            self.log.write(stated, at_ns=now_ns)
            self.log.flush()

    def _begin(self, at_ns: int) -> None:
        self._begun = True
        self.log.write(schema.InitStop(), at_ns=at_ns)
        self.log.write(schema.RunStart(), at_ns=at_ns)
        self.log.flush()

    def _evaluated(self, seen: Observation) -> None:
        if not self._begun:
            self._begin(self.started_ns)
        self._evaluations += 1
        value = seen.value if seen.value is not None and math.isfinite(seen.value) else None
        self.hits = self.hits + 1 if reached(value, self.choices.stop) else 0
        self.established = self.established or self.hits >= self.choices.stop.confirm_evals
        count, counted = self._samples(seen), self._counts_samples(seen)
        epochs = self._epochs(seen, count)
        self.log.write(self._event(
            value=value, samples_count=count, epoch_num=epochs or 0.0, step=seen.step, own_seconds=seen.own_seconds,
            read=seen.read, epochs_known=epochs is not None,
            **({} if counted else {"counted": False}),
        ), at_ns=seen.arrived_ns)
        self.log.flush()

    def _samples(self, seen: Observation) -> int:
        """Return the samples so far; steps if no batch is declared; if it states neither, only the order of its
        evaluations."""
        batch = self.choices.global_batch
        if seen.samples is not None:
            return seen.samples
        if seen.step is not None:
            return seen.step * (batch or 1)
        return self._evaluations

    def _epochs(self, seen: Observation, count: int) -> float | None:
        if seen.epochs is not None:
            return seen.epochs
        return count / self.choices.epoch_samples if self.choices.epoch_samples and self._counts_samples(seen) else None

    def _counts_samples(self, seen: Observation) -> bool:
        """Return True if `_samples` are samples and not steps or evaluations."""
        return seen.samples is not None or (seen.step is not None and self.choices.batch is not None)

    def finding(self, kind: str, text: str, void: bool) -> None:
        """Write something that is wrong with this run; `void`: it makes the trial invalid."""
        self.log.write(schema.ProgramFinding(kind=kind, text=masked(text), void=void))

    def judge_clocks(self, longest_delay: float | None) -> None:
        """Compare the program's clock with ours and write what does not agree."""
        least = self.choices.evaluation.least_own_share
        agreement = clocks.compare(self.seen, self.started_ns, least, longest_delay)
        kinds = [seen.seen for seen in self.seen]
        start: dict[str, int] = {}
        late: list[tuple[int, int]] = []
        for index, since in agreement.earliest.items():
            if kinds[index] == "start":
                start["start_since_ns"] = since
            else:
                late.append((kinds[:index].count("evaluation"), since))
        self.log.write(schema.ClocksCompared(
            own_share=agreement.share, steps_share=agreement.steps_share, judged_seconds=agreement.judged_seconds,
            **start, **self._startup(), **({"late": tuple(late)} if late else {})))
        for item in agreement.findings:
            self.finding(item.kind, item.text, void=True)

    def _startup(self) -> dict[str, float]:
        """Return the seconds on its clock before any sign of training: its first output, or its first step if that is
        before its first evaluation; {} if its clock begins with its training."""
        first = next((seen for seen in self.seen if seen.seen in ("step", "evaluation")), None)
        signs = [self._first_output_ns, first.arrived_ns if first is not None and first.seen == "step" else None]
        known = [at for at in signs if at is not None]
        return {"startup_seconds": (max(known) - self.started_ns) / 1e9} if self._counts_all and known else {}

    def _judged(self, last: float | None) -> tuple[schema.TrialOutcome, str]:
        """Return the outcome and its reason, by the value of the last evaluation; None: it has none."""
        stop = self.choices.stop
        if not stop.has_target:
            return "success", ""
        finite = last is not None and math.isfinite(last)
        if stop.judges == "mean":
            shown = f"{stop.metric} is not finite at its end"
            return ("success", "") if finite else ("missed" if last is None else "diverged", shown)
        if self.established:
            return "success", ""
        shown = "none" if last is None else f"{last:.6g}"
        return ("missed" if last is None or finite else "diverged",
                f"{stop.metric} never reached {stop.target:g}; its last value is {shown}")

    def _find_twice(self, evaluated: Sequence[Observation]) -> None:
        """Report the first two evaluations in a row that only one epoch places; a target that has to be confirmed is
        not by these two."""
        stop = self.choices.stop
        pairs = [(one, other) for one, other in pairwise(evaluated)
                 if other.step is None and other.samples is None and other.epochs is not None
                 and one.epochs == other.epochs]
        confirm = [pair for pair in pairs if stop.confirm_evals > 1 and all(reached(each.value, stop) for each in pair)]
        for _, other in (confirm or pairs)[:1]:
            self.finding("epoch", f"epoch {other.epochs:g} is evaluated twice in a row"
                         f"{', and both reach the target that another one has to confirm' if confirm else ''}: if "
                         "several ranks print, let one; else let each evaluation state its step", void=bool(confirm))

    def end(self, needs_start: bool, ended_ns: int) -> None:
        """Write how the run ended.

        Args:
            needs_start: without a start, or with one after the first evaluation, it is invalid; else its time counts
                from the start of its process.
            ended_ns: when the program ended, or its target was established.
        """
        evaluated = [seen for seen in self.seen if seen.seen == "evaluation"]
        if self.early and needs_start:
            self.finding("early evaluation", "it evaluated before it said that its training begins", void=True)
        elif not self._said_start and needs_start:
            self.finding("no start", "it never said that its training begins, so nothing tells from when its time "
                         "counts; declare no start, or let it say so", void=True)
        elif evaluated and (self.early or not self._said_start):
            self._counts_all = True
            self.finding("no start", "it did not print the line by which its ready pattern knows that training begins, "
                         "so its time counts from the start of its process", void=False)
        self._find_twice(evaluated)
        if not self._begun:
            self._begin(self.started_ns)
        outcome, reason = self._judged(evaluated[-1].value if evaluated else None)
        last_ns = max((seen.arrived_ns for seen in self.seen), default=0)  # what it started may have evaluated since
        at = self._stopped_ns if self._stopped_ns is not None else max(ended_ns, last_ns)
        self.log.write(schema.RunStop(
            status="success" if outcome == "success" else "aborted", outcome=outcome, reason=reason,
            samples_count=self._samples(evaluated[-1]) if evaluated else 0,
        ), at_ns=at)
