"""The outcome of a run as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from repro.cli.terminal import command
from repro.cli.text.compare import calibration_text, comparison_sentence, effect_lines, quality_lines
from repro.cli.text.suite import tuning_lines
from repro.cli.workflows.run import Ended
from repro.compare import Summary
from repro.compare.findings import Findings
from repro.core.errors import visible
from repro.tables.cell_tables import median_text


def ended_text(ended: Ended) -> str:
    """Return the results of a run; its last lines are the answer, its certainty, where to look and what is next."""
    found = ended.found
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(ended.trials.items())) or "none has ended"
    lines = [*cell_lines(found.summaries), f"trials: {statuses}",
             *(visible(f"warning: {text}") for text in (item.line for item in found.warnings)),
             *(map(visible, tuning_lines(ended.tuning)) if ended.tuning else ()), "",
             *answer_lines(found), calibration_text(found.calibration), "",
             f"report: {ended.report}", f"run:    {ended.folder}"]
    if ended.tracking:
        shown = "not replayed, see the warning" if ended.warning() else f"open it with: {command('ui')}"
        lines.append(f"mlflow: {ended.tracking.uri}  ({shown})")
    return "\n".join([*lines, f"next:   {ended.next_step}"])


def cell_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return the cells with their medians."""
    width = max((len(item.label) for item in summaries), default=0)
    resumed = " ({} resumed from a checkpoint; the lost time is on their clocks)"
    return [f"{item.label:<{width}}  {item.ok} of {item.n} {item.done}, median {median_text(item)}"
            + (resumed.format(item.resumed) if item.resumed else "") for item in summaries]


def answer_lines(found: Findings) -> list[str]:
    """Return claims, the primary contrast and each main effect, one sentence each."""
    primary = found.primary
    if primary is not None:
        answers = [comparison_sentence(primary), *([primary.also] if primary.also else []),
                   *(visible(f"caution: {text}") for text in primary.cautions)]
    else:
        answers = [] if found.effects else ["no primary contrast was declared"]
    qualities = map(visible, quality_lines(found.claims))
    return [*qualities, *answers, *(line for item in found.effects for line in effect_lines(item))]
