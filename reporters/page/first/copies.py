"""Texts that a reader copies from the page: a verdict as a sentence, plain and for LaTeX."""

from __future__ import annotations

from repro.tables.text import plural, visible, without_paths

from ...paper.latex_text import breakable_text
from .speedup import Ratio


def sentence(row: Ratio) -> str:
    """Return the verdict as one sentence, with interval, pairs and the origin of the figures."""
    candidate, baseline = (visible(without_paths(mark.label)) for mark in (row.candidate, row.baseline))
    goal = f" to reach {row.goal}" if row.to_target else ""
    clock = f" by the {row.clock}" if row.by_clock else ""
    ends = f", {row.level} interval {row.interval[0]} to {row.interval[1]}" if row.interval else ""
    origin = " and ".join(dict.fromkeys((row.candidate.origin, row.baseline.origin)))
    facts = f"({plural(row.n, 'pair')}{ends}; {origin})"
    if row.ratio is None and row.to_target and row.n and not row.refused:
        return (f"{candidate} reached {row.goal} in {row.reached[0]}, {baseline} in {row.reached[1]}{clock} {facts}. "
                f"The ratio of their {row.amount}s is unknown: {row.verdict}.")
    if row.ratio is None:
        what = f"result for {candidate} against" if row.refused else f"ratio of {candidate} to"
        return f"No {what} {baseline}{goal}{clock} {facts}: {row.verdict}."
    if row.open:
        return f"Undecided between {candidate} and {baseline}{goal}{clock}: ratio {row.ratio} {facts}, {row.verdict}."
    return (f"{candidate} {row.said[0]} {row.ratio} times {row.said[1]} {baseline}{goal}{clock} {facts}: "
            f"{row.verdict}{f' within {row.margin}' if row.verdict == 'same' else ''}.")


def latex(row: Ratio) -> str:
    """Return the same sentence for LaTeX; a long word of a label may be broken after a mark."""
    return breakable_text(sentence(row))
