"""Record -> the few columns and sentences that fit a README or a paper, as plain text; each format escapes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from repro.compare import METRICS, Comparison
from repro.compare.design.effect import FEW, MainEffect
from repro.compare.findings import Findings, findings
from repro.core import registry
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell
from repro.tables.cell_tables import cell_table, checks_table, operations_table, training_table
from repro.tables.layout import TextTable, name, span
from repro.tables.tables import about
from repro.tables.text import plural
from repro.tables.values import Row, origins_of, plain
from repro.tables.verdicts import ALONE, claim_table, comparison_table, effect_table, factor_table, ratio_and_span


@dataclass(frozen=True, slots=True)
class Shown:
    """The part of a record that a short report shows, in the order of the plan and of `repro compare`."""

    found: Findings
    """Of the whole record."""
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    effects: tuple[MainEffect, ...]
    whole: bool
    """False: the declared contrast and its two cells. Its verdict still comes from the whole record."""

    def has(self, cell_id: str) -> bool:
        return any(cell.cell_id == cell_id for cell in self.cells)


def shown_of(record: Record, only_primary: bool = False) -> Shown:
    """Select what is shown.

    Raises:
        UsageError: only the declared contrast is asked for, and the suite declares none.
    """
    found = findings(record)
    if not only_primary:
        return Shown(found, record.plan.cells, found.comparisons, found.effects, True)
    if found.primary is None:
        raise UsageError(f"--only primary: {found.without_primary}; leave --only out")
    ids = (found.primary.candidate, found.primary.baseline)
    return Shown(found, tuple(cell for cell in record.plan.cells if cell.cell_id in ids), (found.primary,), (), False)


@dataclass(frozen=True, slots=True)
class VerdictText:
    """One verdict with its contrast and its reason."""

    verdict: str
    contrast: str
    why: str


@dataclass(frozen=True, slots=True)
class Brief:
    """The content of a short report."""

    title: str
    origins: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    verdicts: tuple[VerdictText, ...]
    errors: str
    """Spending of the 5 % for wrong verdicts; "" without a verdict."""
    tables: Mapping[str, TextTable]
    """Name of a file -> its table; those that have rows, main effects first."""


def brief(record: Record, shown: Shown | None = None) -> Brief:
    """Summarize a record, or the part of it that is `shown`.

    Every figure comes from the rows of `repro.tables`, rounded. Doubts, facts and error budget are the record's.
    """
    part = shown or shown_of(record)
    row = about(part.found)
    return Brief(
        title=name(str(row["title"] or row["suite"])), origins=origins_of(record, record.plan.cells),
        facts=tuple(_facts(record, row)), doubts=tuple(_doubts(part.found, row)),
        verdicts=tuple(_verdicts(part.comparisons, part.effects)), errors=part.found.error_budget,
        tables={key: table for key, table in _tables(record, part).items() if table is not None and table.rows})


def _tables(record: Record, part: Shown) -> dict[str, TextTable | None]:
    found, plan = part.found, record.plan
    of_cells = "" if plan.design.has_target or plan.measures else \
        " over a fixed number of steps; no accuracy was requested"
    return {
        "effects": effect_table(part.effects, found.origin).without((ALONE,)),
        "claims": claim_table([item for item in found.claims if part.has(item.cell_id)], found.origins),
        **({key: table(record) for key, table in registry.parts("short table").items()} if part.whole else {}),
        "cells": cell_table([item for item in found.summaries if part.has(item.cell_id)], found.origins,
                            f"Cells: {METRICS[plan.suite.metric].noun}{of_cells}"),
        "operations": operations_table(record, part.cells), "checks": checks_table(record, part.cells),
        "training": training_table({cell.cell_id: cell.label for cell in part.cells}, found.figures),
        "comparisons": comparison_table(part.comparisons, found.origins).without((ALONE,)),
        "convergence": factor_table(part.comparisons, found.origins),
    }


def _facts(record: Record, row: Row) -> Iterator[tuple[str, str]]:
    yield "suite", f"{name(str(row['suite']))}, digest {str(row['suite_digest'])[:16]}, method {row['method']}"
    most = "at most " if record.plan.design.looks else ""
    yield "trials", f"{row['trials']} of {row['planned']}, {most}{plural(int(row['seeds'] or 0), 'seed')} per cell, " \
                    f"{plural(int(row['attempts'] or 0), 'attempt')} in total"
    yield "machine", name(str(row["machine"]))
    yield "repro", f"{row['repro_version']}" + (f", commit {str(row['commit'])[:12]}" if row["commit"] else "")
    yield "false-positive rate", str(row["false_positive_rate"])


def _doubts(answers: Findings, row: Row) -> Iterator[str]:
    """Yield the warnings that apply before the figures are used."""
    record, tuned = answers.record, answers.tuning
    if row["parity_passed"] is False:
        yield "the parity gate failed: the engines do not train alike, so their times cannot be compared"
    if row["parity_needed"] is None:
        yield "no outcome of a parity gate is recorded: it is unknown whether the engines train alike"
    if row["trials"] != row["planned"]:
        yield f"only {row['trials']} of {row['planned']} trials have run; all figures can still change"
    failed = Counter(item.status for item in record.results if item.status != "ok")
    for status, count in sorted(failed.items()):
        yield f"{plural(count, 'trial')} ended as {status.replace('_', ' ')}"
    again = len(record.attempts) - len({item.trial_id for item in record.attempts})
    if again:
        yield f"{plural(again, 'further attempt')} of trials that ran before"
    yield from (f"unfair tuning: {plain(text)}" for text in (tuned.problems if tuned else ()))
    yield from (" ".join(plain(note).split())[:1000] for note in record.plan.notes)
    yield from (" ".join(plain(item.line).split())[:1000] for item in answers.warnings)
    if "simulated" in origins_of(record, record.plan.cells):
        yield "simulated figures come from an engine that trains nothing"
    if any(cell.choices.origin == "emulated" for cell in record.plan.cells):
        yield "emulated figures come from a cluster of network namespaces on one machine"
    for data in record.environment.data:
        if data.synthetic:
            yield f"{name(data.name)} is synthetic: a result on it says nothing about real data"
    if row["dirty"]:
        yield "the code had uncommitted changes"


def _verdicts(found: Sequence[Comparison], of_factors: Sequence[MainEffect]) -> Iterator[VerdictText]:
    """Yield the declared contrast, the main effects, and the other contrasts unless they are many besides effects."""
    primary, others = ([item for item in found if item.primary is wanted] for wanted in (True, False))
    yield from map(_sentence, primary)
    yield from map(_effect_sentence, of_factors)
    if not of_factors or len(others) <= FEW:
        yield from map(_sentence, others)


def _sentence(item: Comparison) -> VerdictText:
    kind = "declared contrast" if item.primary else "further contrast"
    pairs = plural(item.n, "pair") if item.paired else f"{item.n} per side, unpaired"
    return _verdict(item, f"{name(item.candidate_label)} against {name(item.baseline_label)} ({kind}", pairs, ())


def _effect_sentence(item: MainEffect) -> VerdictText:
    """Return a main effect with its scope, its reason and the factors that it depends on."""
    contrast = f"{name(item.level)} against {name(item.reference)} (main effect of {name(item.factor)}"
    return _verdict(item.pooled, contrast, f"{plural(item.pooled.n, 'seed')}, {item.scope}",
                    [f"it {other.words}" for other in item.flagged])


def _verdict(item: Comparison, contrast: str, size: str, cautions: Sequence[str]) -> VerdictText:
    scale, estimate = METRICS[item.metric], ""
    if item.ratio is not None:
        ratio, ends = ratio_and_span(item.ratio, item.interval)
        limits = span([ends], item.interval.level) if item.interval else "no interval"
        estimate = f"{ratio} x {scale.times}, {limits}, "
    also = f" It {plain(item.also)}." if item.also else ""
    ending = f" Next: {plain(item.settles)}." if item.settles else ""
    told = "".join(f" Caution: {plain(text)}." for text in (*cautions, *item.cautions))
    return VerdictText(verdict=item.spoken, contrast=f"{contrast}, {scale.noun})",
                       why=f"{estimate}{size}; {plain(item.because)}.{also}{ending}{told}")
