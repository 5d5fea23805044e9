"""A comparison as Markdown for a comment on a pull request: at most about 40 lines, nothing of this machine in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from repro.compare import METRICS, Comparison, Summary
from repro.compare.figures import DECIDED
from repro.core.errors import visible
from repro.core.markdown import escaped
from repro.core.redact import Scrubber

from .amounts import amount_text, ends_text
from .colors import p_text
from .compare import calibration_text, ok_header
from .contest import quality_lines
from .outcome import comparison_sentence

if TYPE_CHECKING:
    from repro.compare.runs.runs import Compared

ROWS, NOTES, SENTENCES = 6, 6, 3
"""Most rows of each table, most cautions, and most verdicts in full."""
LONGEST = 700
"""Most characters of one sentence."""
Row = Sequence[str]


def comment(found: Compared, conditions: Sequence[str] = ()) -> str:
    """Return the document: whether it passes, the verdicts, tables of ratios and cells, cautions.

    Args:
        conditions: those of --fail-if that `found.failures` were judged by.
    """
    scrubber = Scrubber.here(os.environ, {})

    def safe(text: str) -> str:
        text = visible(scrubber.text(text))
        return escaped(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")

    lines = [f"### {safe(found.suite)}: {safe(_headline(found, conditions))}", ""]
    lines += [f"- **failed** {safe(text)}" for text in found.failures[:SENTENCES]]
    lines += [f"- {safe(comparison_sentence(item))}" for item in _spoken(found)[:SENTENCES]]
    lines += [f"- {safe(text)}" for text in quality_lines(found.claims)[:ROWS]]
    ratios = [_ratio(item) for item in found.comparisons]
    lines += ["", *_table(("candidate", "baseline", "ratio", "95 % interval", "n", "p", "verdict"), ratios, safe)]
    cells = [_cell(item) for item in found.summaries]
    headers = ("cell", ok_header(found.summaries), f"median {METRICS[found.metric].noun}", "95 % interval")
    lines += ["", *_table(headers, cells, safe)]
    lines += ["", *(f"- {safe(text)}" for text in _noted(found))]
    lines += ["", f"suite digest {found.digest[:16]}, method {safe(found.method)}, {safe(METRICS[found.metric].noun)}"]
    return "\n".join(lines) + "\n"


def _headline(found: Compared, conditions: Sequence[str]) -> str:
    if conditions:
        return f"{'failed' if found.failures else 'passed'} (fail if {', '.join(conditions)})"
    words = [item.verdict for item in found.comparisons if item.primary] or [item.verdict for item in found.comparisons]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) if len(words) > 1 else words[0]


def _spoken(found: Compared) -> list[Comparison]:
    """Return the comparisons to be written in full: those declared, else those decided, else all."""
    return ([item for item in found.comparisons if item.primary]
            or [item for item in found.comparisons if item.verdict in DECIDED] or found.comparisons)


def _ratio(item: Comparison) -> Row:
    return (item.candidate_label, item.baseline_label, "-" if item.ratio is None else f"{item.ratio:.3f}",
            f"{item.interval.low:.3f} to {item.interval.high:.3f}" if item.interval else "-", str(item.n),
            p_text(item.p if item.primary or item.p_adjusted is None else item.p_adjusted),
            f"{item.verdict}{' (declared)' if item.primary else ''}")


def _cell(item: Summary) -> Row:
    return (item.label, f"{item.ok}/{item.n}",
            "-" if item.median is None else amount_text(item.median, item.metric),
            ends_text(item.interval.low, item.interval.high, item.metric) if item.interval else "-")


def _noted(found: Compared) -> list[str]:
    """Return what a reader must know beside the figures; the last lines say what is left out here."""
    cautions = dict.fromkeys(text for item in found.comparisons for text in item.cautions)
    also = dict.fromkeys(item.also for item in found.comparisons if item.also)
    notes = [*also, *(f"caution: {text}" for text in cautions), *(f"warning: {text}" for text in found.warnings),
             *(f"note: {text}" for text in found.notes)]
    return [*notes[:NOTES], *_left_out("note", len(notes) - NOTES), f"errors: {found.error_budget}",
            calibration_text(found.calibration)]


def _table(headers: Row, rows: Sequence[Row], safe: Callable[[str], str]) -> Iterator[str]:
    yield f"| {' | '.join(safe(text) for text in headers)} |"
    yield f"|{' --- |' * len(headers)}"
    for row in rows[:ROWS]:
        yield f"| {' | '.join(safe(text) for text in row)} |"
    if left := _left_out("row", len(rows) - ROWS):
        yield ""
        yield from left


def _left_out(noun: str, number: int) -> list[str]:
    return [f"{number} more {noun}{'s' if number > 1 else ''} by repro compare"] if number > 0 else []
