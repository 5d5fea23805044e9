"""Imports of published results -> the few columns that fit a terminal, a README or a paper, as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from repro.published.cells import batch_costs
from repro.published.record import PublishedCell, PublishedResult
from repro.published.speedrun.claims import ArmClaim, TimeClaim, claim_tracks, judge_claims
from repro.published.store import Published, by_question
from repro.tables.layout import NOTHING, TextTable, name, rounded
from repro.tables.text import plural
from repro.tables.values import plain

NO_BATCH = "no run that reached its target states both its global batch and its cost, so there is nothing to draw"
REFUSED_UP_TO = 20
"""Most refused files in a short report; `refused.jsonl` of the import and the other formats have all."""
SCORES = ("System", "Organisation", "Division", "Accelerators", "Global batch", "Runs", "Without a time",
          "Score (min)", "Epochs to target", "Note")
CLAIMS = ("Record", "Arm", "Runs", "Mean loss", "p, one-sided", "Quality", "Mean time, s", "Ratio", "Against", "Time")
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
        facts=tuple(map(_fact, imports)),
        doubts=(*RULES, *(text for item in imports for text in _doubts(item))),
        scores=tuple(table for item in imports for table in score_tables(item, len(imports) > 1)),
        costs=tuple(table for item in imports for table in _costs(item, len(imports) > 1)),
        refused=tuple(refused[:REFUSED_UP_TO]), refused_left_out=max(0, len(refused) - REFUSED_UP_TO),
    )


def _line(text: str) -> str:
    return " ".join(plain(text).split())


def _fact(item: Published) -> tuple[str, str]:
    record = item.record
    return name(record.imported), (
        f"{record.program}, {plural(len(item.results), 'run')} of {plural(len(record.cells), 'system')}, "
        f"{plural(len(item.refused), 'file')} refused; read by repro {name(record.reader)}, sha256 of results.jsonl "
        f"{record.results_sha256[:16]}")


def notices(item: Published) -> Iterator[tuple[str, str, str]]:
    """Yield what a reader of an import must know: (`warn` or `note`, title, text)."""
    cells, results = item.record.cells, item.results
    contest = item.record.contest is not None
    without = 0 if contest else sum(not cell.score.valid for cell in cells)
    if without:
        yield ("warn", "Scores that are not valid", f"{plural(without, 'system')} of {len(cells)}; the "
               "table gives the reasons, and no comparison gives a verdict on them")
    for status, title in (("missed", "Runs that missed"), ("invalid", "Runs with inconsistent logs")):
        count = sum(result.status == status for result in results)
        if count:
            yield "warn", title, f"{count} of {plural(len(results), 'run')}; they have no time"
    lost = sum(refused.cell_id is not None for refused in item.refused)
    if item.refused:
        yield ("warn", "Refused files", f"{len(item.refused)}, {lost} of them logs that count as runs "
               "without a time")
    if results and not contest and not batch_costs(results):
        yield "note", "No batch size against epochs", NO_BATCH
    warned = sum(bool(result.warnings) for result in results)
    if warned:
        yield "note", "Warnings of the import", f"on {plural(warned, 'run')}, listed with each run"


def _doubts(item: Published) -> Iterator[str]:
    of = name(item.record.imported)
    yield from map(_line, claim_doubts(item))
    yield from (f"{of}: {title[0].lower()}{title[1:]}: {text}" for _, title, text in notices(item))


def score_tables(item: Published, several: bool = False) -> Iterator[TextTable]:
    """Yield one table per benchmark and round, of a contest one per track.

    Args:
        several: the titles name the import.
    """
    if item.record.contest is not None:
        for track, claims in claim_tracks(item).items():
            targets = ", ".join(sorted({f"{claim.quality.target:g}" for claim in claims}))
            yield TextTable(title=f"Claims of {name(track)}, target {targets}", headers=CLAIMS,
                            numeric=(False, False, True, True, True, False, True, True, False, False),
                            rows=tuple(_claim(claim, time, claims) for claim in claims for time in claim.times))
        return
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
            cost_text(runs) or NOTHING, note or NOTHING)


def cost_text(results: Sequence[PublishedResult]) -> str:
    """Return the least and the most that runs needed to the target, in epochs or else samples; "" if unknown."""
    for key, unit in (("epochs_to_target", ""), ("samples_to_target", " samples")):
        known = [value for item in results if (value := getattr(item, key)) is not None]
        if known:
            low, high = min(known), max(known)
            ends = [f"{value:,}" if isinstance(value, int) else f"{value:.6g}" for value in dict.fromkeys((low, high))]
            return " to ".join(ends) + unit
    return ""


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


def claim_doubts(item: Published) -> Iterator[str]:
    """Yield what the logs do not support or cannot test, with the figures, and what the reader concluded."""
    if item.record.contest is None:
        return
    claims = judge_claims(item)
    for claim in claims.arms:
        if claim.quality.verdict != "supported":
            yield f"{name(claim.record)}, {name(claim.arm)}: quality {claim.quality.verdict}: {claim.quality.because}"
        yield from dict.fromkeys(f"{name(claim.record)}, {name(claim.arm)}: {text}"
                                 for time in claim.times for text in time.cautions)
    yield from (stated.because for stated in claims.stated)
    yield from claims.rules.notes


def _claim(claim: ArmClaim, time: TimeClaim, claims: Sequence[ArmClaim]) -> tuple[str, ...]:
    quality, other = claim.quality, next((item for item in claims if item.cell_id == time.against), None)
    return (
        name(claim.record), name(claim.arm), str(claim.runs),
        NOTHING if quality.mean is None else f"{quality.mean:.5f}",
        NOTHING if quality.p is None else f"{quality.p:.2g}", quality.verdict,
        NOTHING if claim.seconds is None else f"{claim.seconds:,.3f}",
        NOTHING if time.ratio is None else f"{time.ratio:.4f}" + (
            f" ({time.interval[0]:.4f} to {time.interval[1]:.4f})" if time.interval else ""),
        "" if other is None else name(other.arm) if other.record == claim.record else
        f"{name(other.record)}, {name(other.arm)}", time.verdict,
    )
