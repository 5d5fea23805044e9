"""A comparison as Markdown for a comment on a pull request: at most about 40 lines, nothing of this machine in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from repro.cli.text.compare import DIGITS, calibration_text
from repro.cli.text.contest import quality_lines
from repro.cli.text.outcome import comparison_sentence
from repro.compare import METRICS, Comparison
from repro.compare.figures import DECIDED
from repro.core.errors import visible
from repro.core.markdown import escaped
from repro.core.redact import Scrubber
from repro.tables.cell_tables import spread_table
from repro.tables.layout import TextTable, as_markdown, compact
from repro.tables.verdicts import ALONE, FOOTNOTE, comparison_table

if TYPE_CHECKING:
    from repro.compare.runs.runs import Compared

ROWS, NOTES, SENTENCES = 6, 6, 3
"""Most rows of each table, most cautions, and most verdicts in full."""
LONGEST = 700
"""Most characters of one sentence."""


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
    ratios = comparison_table(found.comparisons, found.origins, DIGITS).without((ALONE,))
    cells = spread_table(found.summaries, found.origins).without(("CV", "Other ends"))
    lines += [*_table(ratios, safe), *_table(cells, safe)]
    lines += ["", *(f"- {safe(text)}" for text in (FOOTNOTE, *_noted(found)))]
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


def _noted(found: Compared) -> list[str]:
    """Return what a reader must know beside the figures; the last lines say what is left out here."""
    cautions = dict.fromkeys(text for item in found.comparisons for text in item.cautions)
    also = dict.fromkeys(item.also for item in found.comparisons if item.also)
    notes = [*also, *(f"caution: {text}" for text in cautions), *(f"warning: {text}" for text in found.warnings),
             *(f"note: {text}" for text in found.notes)]
    return [*notes[:NOTES], *_left_out("note", len(notes) - NOTES), f"errors: {found.error_budget}",
            calibration_text(found.calibration)]


def _table(table: TextTable, safe: Callable[[str], str]) -> Iterator[str]:
    short, said = compact(table)
    yield from ("", safe(f"{short.title}. {said}".rstrip()), "", as_markdown(short.first(ROWS), safe))
    if left := _left_out("row", len(table.rows) - ROWS):
        yield from ("", *left)


def _left_out(noun: str, number: int) -> list[str]:
    return [f"{number} more {noun}{'s' if number > 1 else ''} by repro compare"] if number > 0 else []
