"""`repro compare` of published results: the systems of one import, or of two imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.compare.verdict.condition import Condition, parse
from repro.core.errors import Exit, UsageError, nearest
from repro.published.comparison.contrast import (
    PUBLISHED_METRICS,
    Entry,
    PublishedContrast,
    contrast_all,
    contrasts,
    entries,
    read_factors,
)
from repro.published.store import RECORD, Published, read_published
from repro.suite.metrics import DEFAULT
from repro.suite.model import Metric


@dataclass(frozen=True, slots=True)
class PublishedCompared:
    """The outcome of a comparison of published systems."""

    folders: tuple[str, ...]
    metric: Metric
    entries: tuple[Entry, ...]
    """Cells of the contrasts, each once, in the order of the records."""
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
                item.comparison.model_dump(mode="json", by_alias=True)
                | item.model_dump(mode="json", exclude={"comparison"})
                for item in self.contrasts
            ],
            "failures": list(self.failures),
        }


def any_published(folders: Sequence[Path]) -> bool:
    """Return True if one of the folders is an import, damaged or not."""
    return any((folder / RECORD).is_file() for folder in folders)


def compare_published(
    folders: Sequence[Path], metric: Metric | None = None, baseline: str | None = None, candidate: str | None = None,
    fail_if: Sequence[str] = (), fail_any: bool = False, force: bool = False,
) -> PublishedCompared:
    """Compare systems of one import, or of two.

    Args:
        baseline: `key=value,...` that selects the cells to compare with.
        candidate: the cells to compare; None: all others of the baseline's benchmark and round.
        force: always refused: the rules of the program decide what can be compared.

    Raises:
        UsageError: an own run among the folders, an invalid pattern, nothing to compare.
        OutputError: a damaged folder.
    """
    conditions = [parse(text) for text in fail_if]
    if fail_any and not conditions:
        raise UsageError("--fail-any needs a --fail-if")
    if force:
        raise UsageError("--force applies to runs only; the rules of published results decide on a verdict")
    if metric is not None and metric not in PUBLISHED_METRICS:
        raise UsageError(f"--metric {metric}: published logs do not contain it{nearest(metric, PUBLISHED_METRICS)}")
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
    """Read the imports: (name, import) of each; the name of a single import is empty.

    Raises:
        UsageError: more than two folders, or one is an own run.
    """
    if not 1 <= len(folders) <= 2:
        raise UsageError(f"published results are compared in one folder or between two, not {len(folders)}")
    own = [folder for folder in folders if not any_published([folder])]
    if own:
        raise UsageError(f"{own[0]} holds no published results: a run is never compared with published results; "
                         "`repro report PUBLISHED RUN` shows both on one page")
    names = [folder.resolve().name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    return [(name if len(folders) > 1 else "", read_published(folder))
            for name, folder in zip(names, folders, strict=True)]


def _failures(found: Sequence[PublishedContrast], conditions: Sequence[Condition], fail_any: bool) -> tuple[str, ...]:
    if conditions and not fail_any and len(found) > 1:
        raise UsageError(f"--fail-if applies to one contrast, and there are {len(found)}; select one with --candidate, "
                         "or check all of them with --fail-any")
    return tuple(text for item in found for condition in conditions if (text := condition.failure(item.comparison)))
