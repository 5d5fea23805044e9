"""Imports of published results -> the few columns that fit a README or a paper, as plain text; formats escape it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from repro.published.cells import batch_costs
from repro.published.record import PublishedCell, PublishedResult
from repro.published.store import Published, by_question
from repro.tables.layout import NOTHING, TextTable, name, rounded
from repro.tables.text import plural
from repro.tables.values import plain

from .contest_text import claim_doubts, claim_tables
from .view import NO_BATCH

REFUSED_UP_TO = 20
"""Most refused files in a short report; `refused.jsonl` of the import and the other formats have all."""
SCORES = ("System", "Organisation", "Division", "Accelerators", "Global batch", "Runs", "Without a time",
          "Score (min)", "Epochs to target", "Note")
COSTS = ("Global batch", "Systems", "Runs", "Least", "Median", "Most")
RULES = (
    "published: computed from files that others published; the results were not run again here, and MLCommons "
    "verified no score",
    "a score is minutes, computed by the rules of the program: MLPerf drops the fastest and the slowest run and "
    "averages the rest, DAWNBench has one run, a speed-run has the mean of all and is valid if its own logs "
    "support its quality",
    "the order of a table is not a verdict: repro compare compares two systems and gives its reasons",
)


@dataclass(frozen=True, slots=True)
class PublishedBrief:
    """The content of a short report on published results."""

    title: str
    facts: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    scores: tuple[TextTable, ...]
    """One per benchmark and round."""
    costs: tuple[TextTable, ...]
    """Cost of the target by batch size, one per benchmark and round."""
    refused: tuple[tuple[str, str], ...]
    """(file, reason) of the first refused files."""
    refused_left_out: int


def published_brief(imports: Sequence[Published]) -> PublishedBrief:
    """Summarize the imports; figures are those of `published_tables`, rounded."""
    refused = [(_line(item.source), _line(item.reason)) for found in imports for item in found.refused]
    return PublishedBrief(
        title=f"Published results: {', '.join(name(item.record.imported) for item in imports)}",
        facts=tuple(fact for item in imports for fact in _facts(item)),
        doubts=(*RULES, *(text for item in imports for text in _doubts(item))),
        scores=tuple(table for item in imports for table in (
            _scores(item, len(imports) > 1) if item.record.contest is None else claim_tables(item))),
        costs=tuple(table for item in imports for table in _costs(item, len(imports) > 1)),
        refused=tuple(refused[:REFUSED_UP_TO]), refused_left_out=max(0, len(refused) - REFUSED_UP_TO),
    )


def _line(text: str) -> str:
    return " ".join(plain(text).split())


def _facts(item: Published) -> Iterator[tuple[str, str]]:
    record = item.record
    yield name(record.imported), (
        f"{record.program}, {plural(len(item.results), 'run')} of {plural(len(record.cells), 'system')}, "
        f"{plural(len(item.refused), 'file')} refused; read by repro {name(record.reader)}, sha256 of results.jsonl "
        f"{record.results_sha256[:16]}")


def _doubts(item: Published) -> Iterator[str]:
    of = name(item.record.imported)
    yield from map(_line, claim_doubts(item))
    contest = item.record.contest is not None
    without = 0 if contest else sum(not cell.score.valid for cell in item.record.cells)
    if without:
        yield f"{of}: {without} of {plural(len(item.record.cells), 'score')} not valid, see the notes"
    for status, words in (("missed", "missed the target"), ("invalid", "have inconsistent logs")):
        count = sum(result.status == status for result in item.results)
        if count:
            yield f"{of}: {count} of {plural(len(item.results), 'run')} {words}; they have no time"
    if item.results and not contest and not batch_costs(item.results):
        yield f"{of}: no batch size against epochs: {NO_BATCH}"
    lost = sum(refused.cell_id is not None for refused in item.refused)
    if item.refused:
        yield (f"{of}: {plural(len(item.refused), 'file')} refused, {lost} of them logs that count as runs without a "
               "time")


def _scores(item: Published, several: bool) -> Iterator[TextTable]:
    runs = item.by_cell()
    for (round_name, benchmark), cells in by_question(item.record.cells).items():
        yield TextTable(
            title=f"Scores of {name(benchmark)}, {name(round_name)}"
                  + (f" ({name(item.record.imported)})" if several else ""),
            headers=SCORES, numeric=(False, False, False, False, True, True, True, True, True, False),
            rows=tuple(_score(cell, runs[cell.cell_id]) for cell in sorted(cells, key=lambda cell: cell.place)),
        )


def _score(cell: PublishedCell, runs: Sequence[PublishedResult]) -> tuple[str, ...]:
    of, score = cell.factors, cell.score
    chips = " x ".join(name(text) for key in ("accelerators", "accelerator") if (text := of.get(key)))
    review = f"scaled by {score.scaling_factor:g} in review" if score.scaling_factor != 1 else ""
    note = "; ".join(text for text in ("" if score.valid else f"not valid: {name(score.reason)}", review) if text)
    return (name(of["system"]), name(of["org"]), name(of.get("division", NOTHING)), chips or NOTHING,
            name(of.get("batch.global", NOTHING)), str(score.runs), str(score.failed), rounded(score.minutes, 4),
            _spread([run.epochs_to_target for run in runs]), note or NOTHING)


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    low, high = min(known), max(known)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _costs(item: Published, several: bool) -> Iterator[TextTable]:
    for of in batch_costs(item.results):
        known: dict[int, list[tuple[str, float]]] = {}
        for cost, value in of.points(of.unit):
            known.setdefault(cost.global_batch_size, []).append((cost.cell_id, value))
        yield TextTable(
            title=f"{of.unit.capitalize()} to the target by global batch: {name(of.benchmark)}, {name(of.round)}"
                  + (f" ({name(item.record.imported)})" if several else ""),
            headers=COSTS, numeric=(True,) * len(COSTS),
            rows=tuple((f"{batch:,}", str(len({cell for cell, _ in found})), str(len(found)),
                        *(rounded(of_all(value for _, value in found), 4) for of_all in (min, median, max)))
                       for batch, found in sorted(known.items())),
        )
