"""`repro compare` of published results: one import's systems, or those of two imports."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.compare.condition import Condition, parse
from repro.core.errors import Exit, UsageError, nearest
from repro.published.comparison.contrast import PUBLISHED_METRICS, PublishedContrast, contrast_all
from repro.published.comparison.selection import Entry, contrasts, entries, read_factors
from repro.published.store import RECORD, Published, read_published
from repro.published.untrusted.text import visible
from repro.suite.metrics import DEFAULT, METRICS
from repro.suite.model import Metric


@dataclass(frozen=True, slots=True)
class PublishedCompared:
    """What a comparison of published systems came to."""

    folders: tuple[str, ...]
    metric: Metric
    entries: tuple[Entry, ...]
    """Cells that stand in a contrast, each once, in the order of the records."""
    contrasts: tuple[PublishedContrast, ...]
    failures: tuple[str, ...] = ()

    @property
    def exit_code(self) -> Exit:
        return Exit.NOT_REPRODUCED if self.failures else Exit.DONE

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1, "origin": "published", "exit_code": int(self.exit_code), "runs": list(self.folders),
            "metric": self.metric,
            "cells": [item.cell.model_dump(mode="json") | {
                "label": item.label, "folder": item.folder, "program": item.program,
                "minutes": [None if run.seconds is None else run.seconds / 60 for run in item.results],
            } for item in self.entries],
            "comparisons": [
                item.comparison.model_dump(mode="json", by_alias=True) | {"speedup": item.comparison.speedup}
                | item.model_dump(mode="json", exclude={"comparison"})
                for item in self.contrasts
            ],
            "failures": list(self.failures),
        }


def any_published(folders: Sequence[Path]) -> bool:
    """True where one of the folders is an import, damaged or not."""
    return any((folder / RECORD).is_file() for folder in folders)


def compare_published(
    folders: Sequence[Path], metric: Metric | None = None, baseline: str | None = None, candidate: str | None = None,
    fail_if: Sequence[str] = (), fail_any: bool = False, force: bool = False,
) -> PublishedCompared:
    """Compare systems of one import, or of two.

    Args:
        baseline: `key=value,...` that singles out the cells to compare against.
        candidate: the cells to compare; None: all others of the baseline's benchmark and round.
        force: refused: what the rules of the program keep apart stays apart.

    Raises:
        UsageError: a run of one's own among the folders, a pattern that cannot be read, nothing to compare.
        OutputError: a damaged folder.
    """
    conditions = [parse(text) for text in fail_if]
    if fail_any and not conditions:
        raise UsageError("--fail-any needs a --fail-if")
    if force:
        raise UsageError("--force is for runs; where the rules of published results allow no verdict there is none")
    if metric is not None and metric not in PUBLISHED_METRICS:
        raise UsageError(f"--metric {metric}: published logs do not say it{nearest(metric, PUBLISHED_METRICS)}")
    groups = entries(read_all(folders))
    patterns = [None if text is None else read_factors(text, option)
                for text, option in ((baseline, "--baseline"), (candidate, "--candidate"))]
    pairs = contrasts(groups, *patterns)
    found = tuple(contrast_all(pairs, metric or DEFAULT))
    used = {id(item) for pair in pairs for item in pair}
    return PublishedCompared(
        folders=tuple(map(str, folders)), metric=metric or DEFAULT,
        entries=tuple(item for group in groups for item in group if id(item) in used), contrasts=found,
        failures=_failures(found, conditions, fail_any),
    )


def read_all(folders: Sequence[Path]) -> list[tuple[str, Published]]:
    """(name to tell it by, import) of each; a single one needs no name.

    Raises:
        UsageError: more than two, or one is a run of one's own.
    """
    if not 1 <= len(folders) <= 2:
        raise UsageError(f"one folder of published results or two are compared, not {len(folders)}")
    own = [folder for folder in folders if not any_published([folder])]
    if own:
        raise UsageError(f"{own[0]} holds no published results: a run and published results are never put into one "
                         "ratio; `repro report PUBLISHED RUN` shows them beside each other")
    names = [folder.resolve().name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    return [(name if len(folders) > 1 else "", read_published(folder))
            for name, folder in zip(names, folders, strict=True)]


def _failures(found: Sequence[PublishedContrast], conditions: Sequence[Condition], fail_any: bool) -> tuple[str, ...]:
    if conditions and not fail_any and len(found) > 1:
        raise UsageError(f"--fail-if is about one contrast, and here are {len(found)}; name one with --candidate, or "
                         "check all of them with --fail-any")
    return tuple(text for item in found for condition in conditions if (text := condition.failure(item.comparison)))


def show(found: PublishedCompared, console: Console | None = None) -> None:
    """Scores, ratios, verdicts and why, for a terminal."""
    console = console or (Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=200))
    console.print(_line(f"published results: {', '.join(found.folders)}; {METRICS[found.metric].noun}"), soft_wrap=True)
    console.print(_scores(found.entries))
    console.print(_ratios(found.contrasts))
    for number, item in enumerate(found.contrasts, 1):
        settles = f"; {item.comparison.settles}" if item.comparison.settles else ""
        console.print(_line(f"{number}. {item.comparison.verdict}: {item.comparison.because}{settles}"), soft_wrap=True)
        if item.score_because and item.score_because not in item.comparison.because:
            console.print(_line(f"   no ratio of scores: {item.score_because}"), soft_wrap=True)
    for text, where in _cautions(found.contrasts):
        console.print(_line(f"caution: {text}{where}"), soft_wrap=True)
    for text in found.failures:
        console.print(_line(f"failed: {text}"), soft_wrap=True)


def _line(text: str) -> Text:
    return Text(visible(text))


def _scores(cells: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("cell", False), ("division", False), ("accelerators", True), ("runs", True),
                        ("without time", True), ("score, min", True), ("note", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for item in cells:
        score = item.cell.score
        table.add_row(*(_line(text) for text in (
            item.label, item.factor("division") or "-", item.factor("accelerators") or "-", str(score.runs),
            str(score.failed), "-" if score.minutes is None else f"{score.minutes:.3f}", score.reason)))
    return table


def _ratios(found: Sequence[PublishedContrast]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("", True), ("candidate", False), ("baseline", False), ("score ratio", True),
                        ("Welch ratio", True), ("95 % interval", True), ("runs", True), ("p", True), ("p Holm", True),
                        ("verdict", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, item in enumerate(found, 1):
        of = item.comparison
        table.add_row(*(_line(text) for text in (
            str(number), of.candidate_label, of.baseline_label, _figure(item.score_ratio), _figure(of.ratio),
            f"{of.interval.low:.3f} to {of.interval.high:.3f}" if of.interval else "-",
            f"{item.candidate_score.runs}, {item.baseline_score.runs}",
            "-" if of.p is None else f"{of.p:.3g}", "-" if of.p_adjusted is None else f"{of.p_adjusted:.3g}",
            of.verdict)))
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cautions(found: Sequence[PublishedContrast]) -> list[tuple[str, str]]:
    """(caution, which contrasts it is about where not all)."""
    where: dict[str, list[int]] = {}
    for number, item in enumerate(found, 1):
        for text in item.comparison.cautions:
            where.setdefault(text, []).append(number)
    return [(text, "" if len(numbers) == len(found) else f" ({', '.join(map(str, numbers))})")
            for text, numbers in where.items()]
